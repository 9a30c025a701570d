"""What the program gives to torchair inside a block: configs for its backends, and options of `torch.compile`."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any, Callable

from ascend_dump import AscendDumpError
from ascend_dump_torchair._config import torchair

__all__ = ["Hook", "OptionsOfCompile"]

log = logging.getLogger("ascend_dump")

_NAME = "get_npu_backend"
_PLACES = ("torchair", "torchair.npu_fx_compiler", "torch_npu.dynamo.torchair")
#: How torchair takes `torch.compile(options=…)` onto the config of a backend, when a graph is compiled.
_APPLY = "_process_kwargs_options"
_COMPILER = "torchair.npu_fx_compiler"
#: What of them sets the dump, and the option of a CompilerConfig that it replaces.
_OF_DUMP: Mapping[str, str] = {
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_dir": "dump_config.dump_path",
    "data_dump_stage": "dump_config.data_dump_stage",
}


class Hook:
    """Calls `fill(config)` for each backend that is made, until `remove`."""

    def __init__(self, fill: Callable[[Any], object]) -> None:
        self._undo: list[Callable[[], None]] = []
        for place in _PLACES:
            module = sys.modules.get(place)
            found = getattr(module, _NAME, None)
            if found is not None:
                self._replace(module, found, fill)

    def _replace(self, module: Any, original: Callable[..., Any], fill: Callable[[Any], object]) -> None:
        @functools.wraps(original)
        def get_npu_backend(*args: Any, **kwargs: Any) -> Any:
            if not args and "compiler_config" in kwargs:
                if kwargs["compiler_config"] is None:
                    kwargs["compiler_config"] = torchair().CompilerConfig()
            elif not args:
                kwargs["compiler_config"] = torchair().CompilerConfig()
            try:
                fill(kwargs["compiler_config"])
            except (AscendDumpError, KeyError) as error:
                # The program goes on without a dump.
                log.warning("this backend is not captured: %s", error)
            return original(*args, **kwargs)

        setattr(module, _NAME, get_npu_backend)
        self._undo.append(lambda: self._put_back(module, get_npu_backend, original))

    def _put_back(self, module: Any, ours: object, original: object) -> None:
        # Replaced again by somebody else: that one stays.
        if getattr(module, _NAME, None) is ours:
            setattr(module, _NAME, original)

    def remove(self) -> None:
        """Put the functions back; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


class OptionsOfCompile:
    """Keeps `torch.compile(options=…)` from replacing what the capture has set on a config, until `remove`.

    `held(config)` gives the options that the capture has set there; `told(name, value)` is called for what is left out.
    """

    def __init__(self, held: Callable[[Any], Mapping[str, Any]], told: Callable[[str, Any], object]) -> None:
        self._undo: Callable[[], None] = lambda: None
        module = sys.modules.get(_COMPILER)
        original = getattr(module, _APPLY, None)
        if original is None:
            return

        @functools.wraps(original)
        def apply(config: Any, given: dict[str, Any]) -> Any:
            options = dict(given.get("options") or {})
            kept = held(config)
            for name in [name for name in options if _OF_DUMP.get(name) in kept]:
                value = options.pop(name)
                if value != kept[_OF_DUMP[name]]:
                    told(name, value)
            return original(config, {**given, "options": options} if "options" in given else given)

        setattr(module, _APPLY, apply)

        def put_back() -> None:
            if getattr(module, _APPLY, None) is apply:
                setattr(module, _APPLY, original)

        self._undo = put_back

    def remove(self) -> None:
        """Put torchair's function back; a second call does nothing."""
        self._undo()
        self._undo = lambda: None
