"""Read, set and restore options of a torchair.CompilerConfig, by the attributes that it has, not by its version."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, Optional

from ascend_dump import ConfigError, NotSupported

__all__ = [
    "Filled",
    "config_of",
    "engine_modules",
    "find_detours",
    "is_config",
    "is_foreign",
    "read_options",
    "torchair",
]

_ABSENT = object()
#: The options of a config that matter to a dump.
_OPTIONS = (
    "mode",
    *(
        f"dump_config.{name}"
        for name in (
            "enable_dump",
            "dump_path",
            "dump_mode",
            "quant_dumpable",
            "dump_step",
            "dump_layer",
            "dump_data",
            "dump_config_path",
            "data_dump_stage",
        )
    ),
    "debug.data_dump.type",
    "debug.data_dump.path",
    "debug.data_dump.filter",
    "debug.graph_dump.type",
    "debug.graph_dump.path",
    "debug.run_eagerly",
    "debug.fx_summary.type",
    "debug.fx_summary.skip_compile",
    "experimental_config.aclgraph._super_kernel_optimize",
)


def torchair() -> Any:
    """Return the module torchair, imported if necessary. Raises any error of that import."""
    import importlib

    return importlib.import_module("torchair")


def is_config(target: Any) -> bool:
    """Return True if this is a CompilerConfig, of torchair or of a copy imported under a longer path."""
    kind = type(target)
    return kind.__name__ == "CompilerConfig" and hasattr(target, "dump_config") and hasattr(target, "mode")


def is_foreign(target: Any) -> bool:
    """Return True if the class of a config is not `torchair.CompilerConfig`."""
    loaded = sys.modules.get("torchair")
    # A proxy of torch_npu raises AttributeError until it is initialised.
    return type(target) is not getattr(loaded, "CompilerConfig", None)


def config_of(target: Any, from_request: Any) -> Any:
    """Return the config to fill: the target, the one in the options of the request, or a new one."""
    if is_config(target):
        return target
    return torchair().CompilerConfig() if from_request is None else from_request


def read_options(config: Any) -> dict[str, Any]:
    """Return the options that matter to a dump and that this torchair has, each as text or None."""
    values = {option: _find(config, option) for option in _OPTIONS}
    options = {option: _read(value) for option, value in values.items() if value is not _ABSENT}
    # The oldest versions of torchair have only this mode.
    options["mode"] = str(options.get("mode") or "max-autotune")
    return options


def find_detours(options: Mapping[str, Any]) -> list[str]:
    """Return the options that make every graph run eagerly, so that GE gets none and dumps nothing."""
    of_ge = options["mode"] == "max-autotune"
    summary = options.get("debug.fx_summary.type") is not None and options.get("debug.fx_summary.skip_compile") == "1"
    detours = {
        "debug.run_eagerly": of_ge and options.get("debug.run_eagerly") == "1",
        "debug.data_dump.type": options.get("debug.data_dump.type") is not None,
        "debug.fx_summary.type": of_ge and summary,
    }
    return [option for option, on in detours.items() if on]


def _read(value: Any) -> Any:
    return getattr(value, "value", value)


def _find(config: Any, option: str) -> Any:
    value = config
    for name in option.split("."):
        value = getattr(value, name, _ABSENT)
    return value


class Filled:
    """Sets options on a config; `restore` resets them to their earlier values."""

    def __init__(self, config: Any) -> None:
        self.config = config
        #: The options that were set here, and their values.
        self.options: dict[str, Any] = {}
        #: The values as text; paths with links resolved.
        self._set_to: dict[str, Any] = {}
        self._undo: list[Callable[[], None]] = []

    def set(self, options: Mapping[str, Any]) -> None:
        """Set options, such as {"dump_config.dump_step": "0|1"}; if one fails, none is set.

        Raises ConfigError for a value that torchair refuses, NotSupported for an option that it does not have.
        """
        try:
            for option, value in options.items():
                self._set(option, value)
        except BaseException:
            self.restore()
            raise

    def _set(self, option: str, value: Any) -> None:
        path, _, name = option.rpartition(".")
        section = _find(self.config, path) if path else self.config
        if section is _ABSENT or getattr(section, name, _ABSENT) is _ABSENT:
            raise NotSupported(
                f"this torchair has no option config.{option}", hint="it came with a later torch_npu; see its release"
            )
        self._undo.append(_remember(section, name))
        self.options[option] = value
        try:
            setattr(section, name, value)
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise _refusal(option, value, error) from error
        self._set_to[option] = _read(_find(self.config, option))

    def replaced(self) -> dict[str, Any]:
        """Return the options that were changed since `set`, with their current values."""
        now = {option: _read(_find(self.config, option)) for option in self._set_to}
        return {option: value for option, value in now.items() if value != self._set_to[option]}

    def restore(self) -> None:
        """Reset every option; a second call does nothing."""
        self.options, self._set_to = {}, {}
        while self._undo:
            self._undo.pop()()


def _refusal(option: str, value: object, error: Exception) -> ConfigError:
    """Return the error for a refused option, with the first line of torchair's message: the rest is a traceback."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"torchair refuses config.{option} = {value!r}: {reason}",
        hint="`ascend-dump check --against torchair` lists the values of each option",
        code="AD243",
    )


def _remember(section: Any, name: str) -> Callable[[], None]:
    # The raw value is restored: reading an option returns text, and some options refuse their own default.
    attribute = vars(section).get(name, vars(section).get(f"_{name}", _ABSENT))
    if hasattr(attribute, "_value"):
        before = attribute._value
        return lambda: setattr(attribute, "_value", before)
    plain = vars(section).get(name, _ABSENT)
    return lambda: object.__setattr__(section, name, None if plain is _ABSENT else plain)


def engine_modules() -> tuple[Optional[Any], Optional[Any], Optional[Any]]:
    """Return the modules of torchair with global state of the process; None for each that is not loaded."""
    names = ("torchair.core._backend", "torchair._ge_concrete_graph.fx2ge_converter", "torchair.core._torchair")
    backend, converter, native = (sys.modules.get(name) for name in names)
    return backend, converter, native
