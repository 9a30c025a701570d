"""Read and write the entries of NpuOptimizer in a ConfigProto.

The bridge reads all entries of that name in order, and for each key the last one takes precedence (hicann/tensorflow
`npu_attrs`); NPUEstimator appends an entry of its own that switches the dump off unless `dump_config=` is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any, Union

from ascend_dump import ConfigError, FrameworkMissing
from ascend_dump.native.tensorflow.config import DUMP_KEYS, KEYS

__all__ = [
    "ArmedSwitches",
    "config_class",
    "conflict",
    "copy_of",
    "effective",
    "entries",
    "has_root",
    "put",
    "settings_of_entries",
    "strip",
    "take_out",
]

OPTIMIZER = "NpuOptimizer"
#: RewriterConfig.OFF, which the documents also set for memory_optimization.
_OFF = 2
_SWITCHES = ("enable_dump", "enable_dump_debug")

Value = Union[bool, int, str]


def config_class() -> Any:
    """The class ConfigProto of the loaded TensorFlow. Raises FrameworkMissing."""
    tensorflow = sys.modules.get("tensorflow")
    for place in (tensorflow, getattr(getattr(tensorflow, "compat", None), "v1", None)):
        found = getattr(place, "ConfigProto", None)
        if found is not None:
            return found
    raise FrameworkMissing("tensorflow is not imported", hint="import tensorflow first")


def copy_of(config: Any) -> Any:
    """A copy of a ConfigProto; for None the default configuration of a session."""
    if config is None:
        context = sys.modules.get("tensorflow.python.eager.context")
        config = context.context().config if context is not None else None
    made = config_class()()
    if config is not None:
        made.CopyFrom(config)
    return made


def entries(config: Any) -> list[Any]:
    """The entries of NpuOptimizer, in order. Reading creates nothing."""
    return [one for one in config.graph_options.rewrite_options.custom_optimizers if one.name == OPTIMIZER]


def effective(config: Any) -> dict[str, Any]:
    """The value that the bridge reads for each key that is set: that of the last entry with it.

    Bytes are decoded; a value in the wrong field of the proto keeps its type.

    (assumption npu_bridge.last_entry)
    """
    found: dict[str, Any] = {}
    for entry in entries(config):
        for name, value in entry.parameter_map.items():
            found[name] = _plain(value)
    return found


def settings_of_entries(config: Any) -> list[dict[str, Any]]:
    """The settings by which the bridge checks each entry: its own keys, and the switches set up to it."""
    switches: dict[str, Any] = {}
    found = []
    for entry in entries(config):
        own = {name: _plain(value) for name, value in entry.parameter_map.items()}
        switches.update({name: own[name] for name in _SWITCHES if name in own})
        found.append({**switches, **own})
    return found


def _plain(value: Any) -> Any:
    field = value.WhichOneof("value")
    if field is None:
        return None
    held = getattr(value, field)
    return os.fsdecode(held) if isinstance(held, bytes) else held


def conflict(settings: Mapping[str, Any], values: Mapping[str, Value]) -> str:
    """The switch in `settings` that excludes those in `values`; "" if there is none."""
    for name in _SWITCHES:
        if settings.get(name) is True and not values.get(name) and any(values.get(other) for other in _SWITCHES):
            return name
    return ""


def put(config: Any, values: Mapping[str, Value]) -> Any:
    """Set the keys in the last entry, and remove other dump settings from all entries.

    Without an entry one is added, with the other settings of npu_config_proto. Raises ConfigError (AD291) if the
    configuration detects overflow and `values` dump, or the other way round.
    """
    other = conflict(effective(config), values)
    if other:
        raise ConfigError(
            f"the configuration sets {other}, and enable_dump and enable_dump_debug exclude each other",
            hint=f"take {other} out, or capture in two runs",
            code="AD291",
        )
    # The bridge checks each entry with the switches of earlier ones, so none may keep a part of the settings.
    own = [name for name in DUMP_KEYS if name != "quant_dumpable" or name in values]
    found = entries(config)
    for entry in found:
        for name in own:
            # Indexing would create the key.
            if name in entry.parameter_map:
                del entry.parameter_map[name]
    last = found[-1] if found else _add(config)
    for name, value in values.items():
        field = KEYS[name].field
        setattr(last.parameter_map[name], field, os.fsencode(value) if isinstance(value, str) else value)
    return last


def _add(config: Any) -> Any:
    rewriting = config.graph_options.rewrite_options
    entry = rewriting.custom_optimizers.add()
    entry.name = OPTIMIZER
    entry.parameter_map["use_off_line"].b = True
    rewriting.remapping = _OFF
    rewriting.memory_optimization = _OFF
    return entry


def strip(config: Any, roots: Collection[str]) -> Any:
    """The configuration; if it dumps into one of `roots`, a copy without this dump."""
    if not any(has_root(entry, roots) for entry in entries(config)):
        return config
    made = copy_of(config)
    take_out(made, roots)
    return made


def take_out(config: Any, roots: Collection[str]) -> None:
    """Remove the dump into one of `roots` from the configuration, in place."""
    for entry in entries(config):
        if has_root(entry, roots):
            for name in DUMP_KEYS:
                if name in entry.parameter_map:
                    del entry.parameter_map[name]


def has_root(entry: Any, roots: Collection[str]) -> bool:
    """Whether an entry dumps into one of these directories."""
    return "dump_path" in entry.parameter_map and os.fsdecode(entry.parameter_map["dump_path"].s) in roots


class ArmedSwitches:
    """Puts the settings into a user's ConfigProto until `restore`."""

    def __init__(self, config: Any, values: Mapping[str, Value]) -> None:
        self.config = config
        self._before = copy_of(config)
        self._values = dict(values)
        put(config, values)
        self._after = copy_of(config)

    def restore(self) -> None:
        """Remove the settings; changes that others made in the meantime stay."""
        if self.config == self._after:
            self.config.CopyFrom(self._before)
            return
        old = entries(self._before)
        optimizers = self.config.graph_options.rewrite_options.custom_optimizers
        for place, entry in enumerate(entries(self.config)):
            was: Any = old[place].parameter_map if place < len(old) else {}
            for name, value in self._values.items():
                if name in entry.parameter_map and _plain(entry.parameter_map[name]) == value:
                    del entry.parameter_map[name]
            for name in DUMP_KEYS:
                if name in was and name not in entry.parameter_map:
                    entry.parameter_map[name].CopyFrom(was[name])
        if not old:
            # The added entry is removed, unless other settings were put into it.
            for place in reversed(range(len(optimizers))):
                if optimizers[place].name == OPTIMIZER and set(optimizers[place].parameter_map) <= {"use_off_line"}:
                    del optimizers[place]
