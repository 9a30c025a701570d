"""NpuOptimizer in a ConfigProto: what its entries say together, and our settings in the one that counts.

The bridge walks all entries of that name in order, the last one wins for each key (hicann/tensorflow
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
#: RewriterConfig.OFF, also what the documents write into memory_optimization.
_OFF = 2
_SWITCHES = ("enable_dump", "enable_dump_debug")

Value = Union[bool, int, str]


def config_class() -> Any:
    """ConfigProto of the TensorFlow that is loaded. Raises FrameworkMissing."""
    tensorflow = sys.modules.get("tensorflow")
    for place in (tensorflow, getattr(getattr(tensorflow, "compat", None), "v1", None)):
        found = getattr(place, "ConfigProto", None)
        if found is not None:
            return found
    raise FrameworkMissing("tensorflow is not imported", hint="import tensorflow first")


def copy_of(config: Any) -> Any:
    """A ConfigProto with the same content; of None, what a session without a configuration gets."""
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
    """What the bridge would read for each key that is set: the last entry that has it.

    Bytes are decoded; a value in another field than the one that is read comes as the type it has.

    (assumption npu_bridge.last_entry)
    """
    found: dict[str, Any] = {}
    for entry in entries(config):
        for name, value in entry.parameter_map.items():
            found[name] = _plain(value)
    return found


def settings_of_entries(config: Any) -> list[dict[str, Any]]:
    """What the bridge goes by when it checks each entry: its own keys, and the switches as they are by then."""
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
    """Which switch of `settings` excludes those of `values`, or nothing."""
    for name in _SWITCHES:
        if settings.get(name) is True and not values.get(name) and any(values.get(other) for other in _SWITCHES):
            return name
    return ""


def put(config: Any, values: Mapping[str, Value]) -> Any:
    """Set the keys in the entry that counts, and take older dump settings out of every entry.

    Without an entry one is added, with what npu_config_proto sets beside it. Raises ConfigError (AD291) where the
    configuration detects overflow and `values` dump, or the other way round.
    """
    other = conflict(effective(config), values)
    if other:
        raise ConfigError(
            f"the configuration sets {other}, and enable_dump and enable_dump_debug exclude each other",
            hint=f"take {other} out, or capture in two runs",
            code="AD291",
        )
    # The bridge checks each entry with what the ones before have set, so none may keep a part.
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
    """The configuration, or a copy without the dump into one of `roots` where it asks for that."""
    if not any(has_root(entry, roots) for entry in entries(config)):
        return config
    made = copy_of(config)
    take_out(made, roots)
    return made


def take_out(config: Any, roots: Collection[str]) -> None:
    """Remove the dump into one of `roots` from the configuration itself."""
    for entry in entries(config):
        if has_root(entry, roots):
            for name in DUMP_KEYS:
                if name in entry.parameter_map:
                    del entry.parameter_map[name]


def has_root(entry: Any, roots: Collection[str]) -> bool:
    """Whether an entry dumps into one of these directories."""
    return "dump_path" in entry.parameter_map and os.fsdecode(entry.parameter_map["dump_path"].s) in roots


class ArmedSwitches:
    """A user's ConfigProto that holds our settings until `restore`."""

    def __init__(self, config: Any, values: Mapping[str, Value]) -> None:
        self.config = config
        self._before = copy_of(config)
        self._values = dict(values)
        put(config, values)
        self._after = copy_of(config)

    def restore(self) -> None:
        """Take our settings back; what others changed meanwhile stays."""
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
            # The entry that we added goes, unless somebody else has put settings into it.
            for place in reversed(range(len(optimizers))):
                if optimizers[place].name == OPTIMIZER and set(optimizers[place].parameter_map) <= {"use_off_line"}:
                    del optimizers[place]
