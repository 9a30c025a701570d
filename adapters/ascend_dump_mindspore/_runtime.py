"""Query the MindSpore of this process. Only modules that are already imported are used."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Callable, Optional

from ascend_dump.native.mindspore.runtime import Runtime, parse_version

__all__ = [
    "cell_of",
    "context",
    "current_runtime",
    "device_id",
    "is_initialized",
    "is_pynative",
    "is_target",
    "native",
    "set_dump",
    "wait_for_operators",
]

_GE_BY_MSPROBE_SINCE = (2, 6)


def is_target(target: Any) -> bool:
    """Return True if the target is a Cell or a Model of the imported MindSpore."""
    mindspore = sys.modules.get("mindspore")
    kinds = [_attribute(mindspore, path) for path in ("nn.Cell", "train.Model", "Model")]
    return any(isinstance(kind, type) and isinstance(target, kind) for kind in kinds)


def current_runtime(mindspore: ModuleType) -> Runtime:
    """Return the device and the kind of execution, according to MindSpore's context."""
    device = context(mindspore, "device_target")
    if device != "Ascend":
        return Runtime("GPU" if device == "GPU" else "CPU")
    ge = context(mindspore, "jit_level") == "O2"
    version = parse_version(getattr(mindspore, "__version__", None))
    return Runtime("Ascend", ge, ge and version is not None and version < _GE_BY_MSPROBE_SINCE)


def is_initialized(mindspore: ModuleType) -> bool:
    """Return True if MindSpore's device is initialised. From then on MindSpore reads no dump configuration."""
    ask = _attribute(mindspore, "hal.device.is_initialized") or _attribute(mindspore, "hal.is_initialized")
    if ask is None:
        return False
    try:
        return bool(ask(str(context(mindspore, "device_target"))))
    except (RuntimeError, ValueError):  # this machine has no such device
        return False


def is_pynative(mindspore: ModuleType) -> bool:
    mode = getattr(mindspore, "PYNATIVE_MODE", None)
    return mode is not None and context(mindspore, "mode") == mode


def cell_of(target: Any) -> Any:
    """Return the network of a Model; a Cell is returned unchanged."""
    return getattr(target, "_network", target)


def native(mindspore: ModuleType, name: str) -> Optional[Callable[..., Any]]:
    """Return a private function of MindSpore's extension module; None if this version does not have it."""
    function = getattr(sys.modules.get("mindspore._c_expression"), name, None)
    return function if callable(function) else None


def wait_for_operators() -> None:
    """Wait until the queued operators of PyNative mode have run. The first operator initialises the device.

    Raises the error of a failed operator, which MindSpore would raise when a result is read.
    """
    for module in ("mindspore.graph.api", "mindspore.common.api"):
        sync = _attribute(sys.modules.get(module), "_pynative_executor.sync")
        if callable(sync):
            sync()
            return


def set_dump(mindspore: ModuleType) -> Optional[Callable[..., Any]]:
    """Return MindSpore's `set_dump`, by its new name or by the name deprecated since 2.7.1; None if neither exists."""
    function = _attribute(mindspore, "tools.set_dump") or getattr(mindspore, "set_dump", None)
    return function if callable(function) else None


def device_id() -> Optional[int]:
    """Return the device of this process, None unless a launcher has set DEVICE_ID."""
    text = os.environ.get("DEVICE_ID", "")
    return int(text) if text.isascii() and text.isdigit() else None


def context(mindspore: ModuleType, name: str) -> Any:
    """Return a value of MindSpore's `get_context`; None for a name that this version does not have."""
    ask = getattr(mindspore, "get_context", None)
    try:
        return None if ask is None else ask(name)
    except (KeyError, ValueError):  # an unknown name
        return None


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
