"""Intercept the configs, and the options of `torch.compile`, that the program passes to torchair."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ascend_dump import AscendDumpError
from ascend_dump_torchair._config import torchair

__all__ = ["Hook", "OptionsOfCompile"]

log = logging.getLogger("ascend_dump")

_CONFIG = "compiler_config"


class _Maker(NamedTuple):
    """A function of torchair that has a parameter for a config. positional: names of its positional parameters."""

    name: str
    modules: tuple[str, ...]
    positional: tuple[str, ...] = ()


#: `get_compiler` is replaced only in the public namespace, because `get_npu_backend` calls it too.
_MAKERS = (
    _Maker("get_npu_backend", ("torchair", "torchair.npu_fx_compiler", "torch_npu.dynamo.torchair")),
    _Maker("get_compiler", ("torchair", "torch_npu.dynamo.torchair"), (_CONFIG,)),
)


class _Uncaptured(NamedTuple):
    """A function of torchair that compiles a model in a way that a capture without a target cannot dump."""

    name: str
    modules: tuple[str, ...]
    code: str
    why: str


_UNCAPTURED = (
    _Uncaptured(
        "cache_compile",
        ("torchair.inference",),
        "AD247",
        "a model of torchair.inference.cache_compile is not captured: it keeps the dump options with which it was "
        "first compiled; compile it with torch.compile and get_npu_backend for the capture",
    ),
    _Uncaptured(
        "dynamo_export",
        ("torchair", "torchair.npu_export", "torch_npu.dynamo.torchair"),
        "AD256",
        "torchair.dynamo_export writes a model into a file and runs nothing, so it dumps nothing: capture the program "
        "that runs the file, with framework='acl'",
    ),
)
#: The function by which torchair sets the options of `torch.compile(options=…)` on the config of a backend.
_APPLY = "_process_kwargs_options"
_COMPILER = "torchair.npu_fx_compiler"
#: The options of torch.compile that concern the dump, and the option of a CompilerConfig that each of them sets.
_OF_DUMP: Mapping[str, str] = {
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_dir": "dump_config.dump_path",
    "data_dump_stage": "dump_config.data_dump_stage",
}


class Hook:
    """Calls `fill(config)` with the config of each new backend or compiler, until `remove`.

    If the program passes no config, a new config is used. Models that are compiled in other ways are not captured, and
    a warning is logged. A model of `cache_compile` keeps the options of its first compilation, even in later processes.
    A model of `dynamo_export` is not run.

    uncaptured: the reasons why models were not captured, one per function
    """

    def __init__(self, fill: Callable[[Any], object]) -> None:
        self.uncaptured: list[str] = []
        self._undo: list[Callable[[], None]] = []
        for maker in _MAKERS:
            for module in maker.modules:
                self._replace(module, maker.name, functools.partial(self._fill, maker, fill))
        for function in _UNCAPTURED:
            for module in function.modules:
                self._replace(module, function.name, functools.partial(self._skip, f"{function.why} [{function.code}]"))

    def _fill(
        self, maker: _Maker, fill: Callable[[Any], object], original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if len(args) > len(maker.positional):
            return original(*args, **kwargs)  # raises TypeError: too many positional arguments
        arguments = {**dict(zip(maker.positional, args)), **kwargs}
        if arguments.get(_CONFIG) is None:
            arguments[_CONFIG] = torchair().CompilerConfig()
        try:
            fill(arguments[_CONFIG])
        except AscendDumpError as error:
            # The program continues without a dump of this backend.
            log.warning("a config passed to torchair.%s is not captured: %s", maker.name, error)
        return original(**arguments)

    def _skip(self, why: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if why not in self.uncaptured:
            self.uncaptured.append(why)
            log.warning("%s", why)
        return original(*args, **kwargs)

    def _replace(self, module_name: str, name: str, call: Callable[..., Any]) -> None:
        module = sys.modules.get(module_name)
        original = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        setattr(module, name, replacement)
        self._undo.append(lambda: self._put_back(module, name, replacement, original))

    def _put_back(self, module: Any, name: str, ours: object, original: object) -> None:
        # Not if something else has replaced the function in the meantime.
        if getattr(module, name, None) is ours:
            setattr(module, name, original)

    def remove(self) -> None:
        """Restore the functions of torchair. A second call does nothing."""
        while self._undo:
            self._undo.pop()()


class OptionsOfCompile:
    """Makes torchair ignore options of `torch.compile(options=…)` that the capture has set, until `remove`.

    options_of(config)   returns the options that the capture has set on this config
    report(name, value)  is called for an ignored option that has another value than the capture's
    """

    def __init__(self, options_of: Callable[[Any], Mapping[str, Any]], report: Callable[[str, Any], object]) -> None:
        self._undo: Callable[[], None] = lambda: None
        module = sys.modules.get(_COMPILER)
        original = getattr(module, _APPLY, None)
        if original is None:
            return

        @functools.wraps(original)
        def apply(config: Any, requested: dict[str, Any]) -> Any:
            options = dict(requested.get("options") or {})
            our_options = options_of(config)
            for name in [name for name in options if _OF_DUMP.get(name) in our_options]:
                value = options.pop(name)
                if value != our_options[_OF_DUMP[name]]:
                    report(name, value)
            return original(config, {**requested, "options": options} if "options" in requested else requested)

        setattr(module, _APPLY, apply)

        def put_back() -> None:
            if getattr(module, _APPLY, None) is apply:
                setattr(module, _APPLY, original)

        self._undo = put_back

    def remove(self) -> None:
        """Restore torchair's function. A second call does nothing."""
        self._undo()
        self._undo = lambda: None
