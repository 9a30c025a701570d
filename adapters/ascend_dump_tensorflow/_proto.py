"""Read and write the entries of NpuOptimizer in a ConfigProto.

The bridge reads all entries with that name in order, and for each key the last entry wins (hicann/tensorflow
`npu_attrs`). NPUEstimator appends an entry of its own, which switches the dump off unless `dump_config=` is set.
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
    """Return the class ConfigProto of the loaded TensorFlow. Raises FrameworkMissing."""
    tensorflow = sys.modules.get("tensorflow")
    for namespace in (tensorflow, getattr(getattr(tensorflow, "compat", None), "v1", None)):
        config = getattr(namespace, "ConfigProto", None)
        if config is not None:
            return config
    raise FrameworkMissing("tensorflow is not imported", hint="import tensorflow first")


def copy_of(config: Any) -> Any:
    """Return a copy of a ConfigProto; if it is None, a copy of the default configuration of a session."""
    if config is None:
        context = sys.modules.get("tensorflow.python.eager.context")
        config = context.context().config if context is not None else None
    copied = config_class()()
    if config is not None:
        copied.CopyFrom(config)
    return copied


def settings_of_entries(config: Any) -> list[dict[str, Any]]:
    """Return the settings that the bridge checks for each entry: its keys, and the switches of earlier entries."""
    switches: dict[str, Any] = {}
    settings = []
    for entry in entries(config):
        keys = {name: tf1_dump.plain(value) for name, value in entry.parameter_map.items()}
        switches.update({name: keys[name] for name in tf1_dump.SWITCHES if name in keys})
        settings.append({**switches, **keys})
    return settings


def put(config: Any, values: Mapping[str, Value]) -> Any:
    """Set the keys in the last entry with `tf1_dump.put`, and return the config. Raises ConfigError (AD291)."""
    _refuse_conflict(config, values)
    return tf1_dump.put(config, values)


def arm(config: Any, values: Mapping[str, Value]) -> tf1_dump.ArmedConfig:
    """Put the settings into the program's ConfigProto, until `restore` of the result. Raises ConfigError (AD291)."""
    _refuse_conflict(config, values)
    return tf1_dump.ArmedConfig(config, values)


def _refuse_conflict(config: Any, values: Mapping[str, Value]) -> None:
    conflicting = conflict(effective(config), values)
    if conflicting:
        raise ConfigError(
            f"the configuration sets {conflicting}, and enable_dump and enable_dump_debug exclude each other",
            hint=f"take {conflicting} out, or capture in two runs",
            code="AD291",
        )


def strip(config: Any, roots: Collection[str]) -> Any:
    """Return the configuration, or, if it dumps into one of `roots`, a copy without the dump settings."""
    if not any(has_root(entry, roots) for entry in entries(config)):
        return config
    copied = copy_of(config)
    take_out(copied, roots)
    return copied


def take_out(config: Any, roots: Collection[str]) -> None:
    """Remove the dump settings from entries of the configuration that dump into one of `roots`, in place."""
    for entry in entries(config):
        if has_root(entry, roots):
            for name in DUMP_KEYS:
                if name in entry.parameter_map:
                    del entry.parameter_map[name]


def has_root(entry: Any, roots: Collection[str]) -> bool:
    """Return True if an entry dumps into one of these directories."""
    return "dump_path" in entry.parameter_map and os.fsdecode(entry.parameter_map["dump_path"].s) in roots
