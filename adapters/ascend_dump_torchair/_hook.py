"""What the program gives to torchair inside a block: configs, and options of `torch.compile`."""

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
    """A function of torchair that makes something of a config. positional: its arguments without a name."""

    name: str
    modules: tuple[str, ...]
    positional: tuple[str, ...] = ()


#: `get_compiler` only where programs find it: torchair calls it itself for the configs of `get_npu_backend`.
_MAKERS = (
    _Maker("get_npu_backend", ("torchair", "torchair.npu_fx_compiler", "torch_npu.dynamo.torchair")),
    _Maker("get_compiler", ("torchair", "torch_npu.dynamo.torchair"), (_CONFIG,)),
)


class _LeftAlone(NamedTuple):
    """A function of torchair that compiles a model which no capture without a target can dump."""

    name: str
    modules: tuple[str, ...]
    code: str
    why: str


_LEFT_ALONE = (
    _LeftAlone(
        "cache_compile",
        ("torchair.inference",),
        "AD247",
        "a model of torchair.inference.cache_compile is not captured: it keeps the dump options it was first compiled "
        "with; compile it with torch.compile and get_npu_backend for the capture",
    ),
    _LeftAlone(
        "dynamo_export",
        ("torchair", "torchair.npu_export", "torch_npu.dynamo.torchair"),
        "AD256",
        "torchair.dynamo_export writes a model into a file and runs nothing, so it dumps nothing: capture the program "
        "that runs the file, with framework='acl'",
    ),
)
#: The function by which torchair sets `torch.compile(options=…)` on the config of a backend, when it compiles a graph.
_APPLY = "_process_kwargs_options"
_COMPILER = "torchair.npu_fx_compiler"
#: Those among these options that are about the dump, and the option of a CompilerConfig that each of them sets.
_OF_DUMP: Mapping[str, str] = {
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_dir": "dump_config.dump_path",
    "data_dump_stage": "dump_config.data_dump_stage",
}


class Hook:
    """Calls `fill(config)` with each config that a backend or a compiler is made of, until `remove`.

    Where the program gives none, torchair gets a new one. What the program compiles otherwise is left alone and told
    in the log: a model of `cache_compile` keeps the options of its first compilation, in later processes too, and
    cannot be compiled anew; one of `dynamo_export` is not run. `left` has why, once for each such function.
    """

    def __init__(self, fill: Callable[[Any], object]) -> None:
        self.left: list[str] = []
        self._undo: list[Callable[[], None]] = []
        for maker in _MAKERS:
            for place in maker.modules:
                self._replace(place, maker.name, functools.partial(self._fill, maker, fill))
        for other in _LEFT_ALONE:
            for place in other.modules:
                self._replace(place, other.name, functools.partial(self._leave, f"{other.why} [{other.code}]"))

    def _fill(
        self, maker: _Maker, fill: Callable[[Any], object], original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if len(args) > len(maker.positional):
            return original(*args, **kwargs)  # which raises
        given = {**dict(zip(maker.positional, args)), **kwargs}
        if given.get(_CONFIG) is None:
            given[_CONFIG] = torchair().CompilerConfig()
        try:
            fill(given[_CONFIG])
        except AscendDumpError as error:
            # The program goes on without a dump.
            log.warning("a config given to torchair.%s is not captured: %s", maker.name, error)
        return original(**given)

    def _leave(self, why: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if why not in self.left:
            self.left.append(why)
            log.warning("%s", why)
        return original(*args, **kwargs)

    def _replace(self, place: str, name: str, call: Callable[..., Any]) -> None:
        module = sys.modules.get(place)
        original = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        setattr(module, name, replacement)
        self._undo.append(lambda: self._put_back(module, name, replacement, original))

    def _put_back(self, module: Any, name: str, ours: object, original: object) -> None:
        # Replaced again by somebody else: that one stays.
        if getattr(module, name, None) is ours:
            setattr(module, name, original)

    def remove(self) -> None:
        """Put the functions back; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


class OptionsOfCompile:
    """Keeps `torch.compile(options=…)` from replacing what the capture has set on a config, until `remove`.

    held(config): the options that the capture has set there. report(name, value): called for an option that is ignored.
    """

    def __init__(self, held: Callable[[Any], Mapping[str, Any]], report: Callable[[str, Any], object]) -> None:
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
                    report(name, value)
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
