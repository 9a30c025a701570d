"""Read, set and restore options of a torchair.CompilerConfig. Existing attributes decide, not torchair's version."""

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
#: The options of a config that affect a dump.
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
    """Return the module torchair, and import it if necessary. Raises any error of the import."""
    import importlib

    return importlib.import_module("torchair")


def is_config(target: Any) -> bool:
    """Return True for a CompilerConfig of torchair, or of a copy of torchair that has another import path."""
    kind = type(target)
    return kind.__name__ == "CompilerConfig" and hasattr(target, "dump_config") and hasattr(target, "mode")


def is_foreign(target: Any) -> bool:
    """Return True for a config of a copy of torchair: its class is not `torchair.CompilerConfig`."""
    loaded = sys.modules.get("torchair")
    # A proxy of torch_npu raises AttributeError until it is initialised.
    return type(target) is not getattr(loaded, "CompilerConfig", None)


def config_of(target: Any, from_request: Any) -> Any:
    """Return the config to set: the target, or the config in the request's options, or a new config."""
    if is_config(target):
        return target
    return torchair().CompilerConfig() if from_request is None else from_request


def read_options(config: Any) -> dict[str, Any]:
    """Return the options that affect a dump and that this torchair has. Values are text or None."""
    values = {option: _option_of(config, option) for option in _OPTIONS}
    options = {option: _plain_value(value) for option, value in values.items() if value is not _ABSENT}
    # The oldest versions of torchair have only this mode.
    options["mode"] = str(options.get("mode") or "max-autotune")
    return options


def find_detours(options: Mapping[str, Any]) -> list[str]:
    """Return the options because of which every graph runs eagerly, so that GE gets no graph and dumps nothing."""
    of_ge = options["mode"] == "max-autotune"
    summary = options.get("debug.fx_summary.type") is not None and options.get("debug.fx_summary.skip_compile") == "1"
    detours = {
        "debug.run_eagerly": of_ge and options.get("debug.run_eagerly") == "1",
        "debug.data_dump.type": options.get("debug.data_dump.type") is not None,
        "debug.fx_summary.type": of_ge and summary,
    }
    return [option for option, on in detours.items() if on]


def _plain_value(value: Any) -> Any:
    return getattr(value, "value", value)


def _option_of(config: Any, option: str) -> Any:
    value = config
    for name in option.split("."):
        value = getattr(value, name, _ABSENT)
    return value


class Filled:
    """A config with options that `set` has changed. `restore` resets them to their earlier values."""

    def __init__(self, config: Any) -> None:
        self.config = config
        #: The options that were set, with the values that were given.
        self.options: dict[str, Any] = {}
        #: The same options with the values that the config then returned: text, and paths with resolved links.
        self._set_to: dict[str, Any] = {}
        self._undo: list[Callable[[], None]] = []

    def set(self, options: Mapping[str, Any]) -> None:
        """Set options, such as {"dump_config.dump_step": "0|1"}. If an option fails, none is set.

        Raises ConfigError for a value that torchair refuses, NotSupported for an option that torchair does not have.
        """
        try:
            for option, value in options.items():
                self._set(option, value)
        except BaseException:
            self.restore()
            raise

    def _set(self, option: str, value: Any) -> None:
        path, _, name = option.rpartition(".")
        section = _option_of(self.config, path) if path else self.config
        if section is _ABSENT or getattr(section, name, _ABSENT) is _ABSENT:
            raise NotSupported(
                f"this torchair has no option config.{option}",
                hint="install a later version of torch_npu, which has it",
            )
        self._undo.append(_restorer_of(section, name))
        self.options[option] = value
        try:
            setattr(section, name, value)
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise _refusal(option, value, error) from error
        self._set_to[option] = _plain_value(_option_of(self.config, option))

    def replaced(self) -> dict[str, Any]:
        """Return the options that were changed since `set`, with their current values."""
        now = {option: _plain_value(_option_of(self.config, option)) for option in self._set_to}
        return {option: value for option, value in now.items() if value != self._set_to[option]}

    def restore(self) -> None:
        """Reset every option to its earlier value. A second call does nothing."""
        self.options, self._set_to = {}, {}
        while self._undo:
            self._undo.pop()()


def _refusal(option: str, value: object, error: Exception) -> ConfigError:
    """Return the error for a refused option. It contains the first line of torchair's message, without traceback."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"torchair refuses config.{option} = {value!r}: {reason}",
        hint="`ascend-dump check --against torchair` lists the values of each option",
        code="AD243",
    )


def _restorer_of(section: Any, name: str) -> Callable[[], None]:
    # The raw value is saved, because reading an option returns text, and some options refuse their own default.
    attribute = vars(section).get(name, vars(section).get(f"_{name}", _ABSENT))
    if hasattr(attribute, "_value"):
        before = attribute._value
        return lambda: setattr(attribute, "_value", before)
    plain = vars(section).get(name, _ABSENT)
    return lambda: object.__setattr__(section, name, None if plain is _ABSENT else plain)


def engine_modules() -> tuple[Optional[Any], Optional[Any], Optional[Any]]:
    """Return the modules of torchair that contain global state: backend, converter and native module.

    A module that is not loaded is None.
    """
    names = ("torchair.core._backend", "torchair._ge_concrete_graph.fx2ge_converter", "torchair.core._torchair")
    backend, converter, native = (sys.modules.get(name) for name in names)
    return backend, converter, native
