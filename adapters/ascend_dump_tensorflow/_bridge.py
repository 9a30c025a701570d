"""Detect which parts of TensorFlow on Ascend are loaded, from sys.modules and types, without importing them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, Optional, Union

from ascend_dump import FrameworkMissing, NotSupported

__all__ = [
    "bridge",
    "device",
    "device_is_open",
    "device_settings",
    "holder_of",
    "is_on_npu",
    "kind_of",
    "known_keys",
    "make_dump_config",
    "unknown_keys",
]

#: The modules with the class DumpConfig: in the bridge for TensorFlow 1, and in its copy for TensorFlow 2.
_CONFIG_MODULES = ("npu_bridge.estimator.npu.npu_config", "npu_device.compat.v1.estimator.npu.npu_config")
#: Names of the classes that can be a target, and their kinds.
_KINDS = {
    "ConfigProto": "config",
    "NPURunConfig": "npu_run_config",
    "RunConfig": "run_config",
    "Estimator": "estimator",
    "EstimatorV2": "estimator",
    "BaseSession": "session",
    "Session": "session",
}
#: Settings that the bridges of 2021 do not have yet.
_NEWER = ("dump_layer", "dump_data")


def kind_of(target: Any) -> str:
    """Return the kind of a target: "config", "run_config", "npu_run_config", "estimator" or "session".

    It is "process" for None, and "" for any other object.
    """
    if target is None:
        return "process"
    for base in type(target).__mro__:
        top = base.__module__.partition(".")[0]
        kind = _KINDS.get(base.__name__)
        if kind and top in ("tensorflow", "tensorflow_estimator", "npu_bridge", "npu_device", "ascend_dump"):
            return kind
    return ""


def holder_of(target: Any) -> Any:
    """Return the object whose `_session_config` the sessions of a RunConfig or an Estimator use."""
    if kind_of(target) == "estimator" and "_session_config" not in vars(target):
        return target.config
    return target


def bridge() -> Optional[Any]:
    """Return the loaded npu_bridge: that of TensorFlow 1, or npu_device.compat.v1. None if neither is loaded."""
    return sys.modules.get("npu_bridge") or sys.modules.get("npu_device.compat.v1")


def device() -> Optional[Any]:
    """Return the loaded npu_device, the bridge of TensorFlow 2. None if it is not loaded."""
    return sys.modules.get("npu_device")


def is_on_npu() -> bool:
    return bridge() is not None or device() is not None


def device_is_open() -> bool:
    """Return True if npu_device.open() has read its options already. (assumption npu_device.options_once)"""
    module = sys.modules.get("npu_device.npu_device", device())
    return bool(getattr(module, "_npu_device_instances", None))


def device_settings() -> dict[str, Any]:
    """Return the dump settings that the program has made in npu_device's `global_options()`.

    Switches are bool, other settings are text.
    """
    module = device()
    if module is None or not hasattr(module, "global_options"):
        return {}
    options = vars(module.global_options().dump_config)
    texts = {name: getattr(option, "value", None) for name, option in options.items()}
    return {
        name: value == "1" if name.startswith("enable_") else value
        for name, value in texts.items()
        if value is not None
    }


def known_keys() -> Optional[frozenset[str]]:
    """Return the names of settings that the Python part of the bridge has; None if that cannot be determined."""
    config = _config_module()
    if config is not None:
        return frozenset(inspect.signature(config.DumpConfig.__init__).parameters)
    module = device()
    if module is not None and hasattr(module, "global_options"):
        return frozenset(vars(module.global_options().dump_config))
    return None


def _config_module() -> Optional[Any]:
    return next((sys.modules[name] for name in _CONFIG_MODULES if name in sys.modules), None)


def unknown_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the names of settings in `values` that this bridge does not have, because it is too old."""
    keys = known_keys()
    return [] if keys is None else [name for name in _NEWER if name in values and name not in keys]


def make_dump_config(values: Mapping[str, Union[bool, int, str]]) -> Any:
    """Return npu_bridge's DumpConfig with these settings. Raises FrameworkMissing and NotSupported (AD293)."""
    from importlib import import_module

    try:
        config = _config_module() or import_module(_CONFIG_MODULES[0])
    except ImportError as error:
        raise FrameworkMissing(
            f"{_CONFIG_MODULES[0]} cannot be imported: {error}", hint="DumpConfig is a class of npu_bridge"
        ) from error
    old = unknown_keys(values)
    if old:
        raise NotSupported(
            f"DumpConfig of this npu_bridge has no {old[0]}",
            hint=f"use a newer npu_bridge, or leave {old[0]} out",
            code="AD293",
        )
    return config.DumpConfig(**{name: value for name, value in values.items() if name != "quant_dumpable"})
