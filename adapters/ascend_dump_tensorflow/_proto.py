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
from ascend_dump.native.tensorflow import tf1_dump
from ascend_dump.native.tensorflow.config import DUMP_KEYS
from ascend_dump.native.tensorflow.tf1_dump import conflict, effective, entries

__all__ = [
    "arm",
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


def settings_of_entries(config: Any) -> list[dict[str, Any]]:
    """The settings by which the bridge checks each entry: its own keys, and the switches set up to it."""
    switches: dict[str, Any] = {}
    found = []
    for entry in entries(config):
        own = {name: tf1_dump.plain(value) for name, value in entry.parameter_map.items()}
        switches.update({name: own[name] for name in tf1_dump.SWITCHES if name in own})
        found.append({**switches, **own})
    return found


def put(config: Any, values: Mapping[str, Value]) -> Any:
    """Set the keys in the last entry, as `tf1_dump.put`. Raises ConfigError (AD291)."""
    _refuse_conflict(config, values)
    return tf1_dump.put(config, values)


def arm(config: Any, values: Mapping[str, Value]) -> tf1_dump.ArmedConfig:
    """Put the settings into a user's ConfigProto until `restore`. Raises ConfigError (AD291)."""
    _refuse_conflict(config, values)
    return tf1_dump.ArmedConfig(config, values)


def _refuse_conflict(config: Any, values: Mapping[str, Value]) -> None:
    other = conflict(effective(config), values)
    if other:
        raise ConfigError(
            f"the configuration sets {other}, and enable_dump and enable_dump_debug exclude each other",
            hint=f"take {other} out, or capture in two runs",
            code="AD291",
        )


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
    """Return True if an entry dumps into one of these directories."""
    return "dump_path" in entry.parameter_map and os.fsdecode(entry.parameter_map["dump_path"].s) in roots
