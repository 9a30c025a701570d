"""Query the MindSpore of this process. Uses only modules that are imported already."""

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
    """Return True if it is a Cell or a Model of the imported MindSpore."""
    mindspore = sys.modules.get("mindspore")
    kinds = [_reach(mindspore, path) for path in ("nn.Cell", "train.Model", "Model")]
    return any(isinstance(kind, type) and isinstance(target, kind) for kind in kinds)


def current_runtime(mindspore: ModuleType) -> Runtime:
    """Return the device and the kind of execution, by the context."""
    device = context(mindspore, "device_target")
    if device != "Ascend":
        return Runtime("GPU" if device == "GPU" else "CPU")
    ge = context(mindspore, "jit_level") == "O2"
    version = parse_version(getattr(mindspore, "__version__", None))
    return Runtime("Ascend", ge, ge and version is not None and version < _GE_BY_MSPROBE_SINCE)


def is_initialized(mindspore: ModuleType) -> bool:
    """Return True if MindSpore's device is initialised; after that it reads no dump configuration."""
    ask = _reach(mindspore, "hal.device.is_initialized") or _reach(mindspore, "hal.is_initialized")
    if ask is None:
        return False
    try:
        return bool(ask(str(context(mindspore, "device_target"))))
    except (RuntimeError, ValueError):  # there is no such device
        return False


def is_pynative(mindspore: ModuleType) -> bool:
    mode = getattr(mindspore, "PYNATIVE_MODE", None)
    return mode is not None and context(mindspore, "mode") == mode


def cell_of(target: Any) -> Any:
    """Return the network of a Model, a Cell itself."""
    return getattr(target, "_network", target)


def native(mindspore: ModuleType, name: str) -> Optional[Callable[..., Any]]:
    """Return a private function of the extension module; None if this version does not have it."""
    function = getattr(sys.modules.get("mindspore._c_expression"), name, None)
    return function if callable(function) else None


def wait_for_operators() -> None:
    """Wait until queued operators of PyNative mode have run; the first one initialises the device.

    Raises the error of a failed operator, as MindSpore does when a result is read.
    """
    for module in ("mindspore.graph.api", "mindspore.common.api"):
        sync = _reach(sys.modules.get(module), "_pynative_executor.sync")
        if callable(sync):
            sync()
            return


def set_dump(mindspore: ModuleType) -> Optional[Callable[..., Any]]:
    """Return `set_dump` under its new name, or under the one deprecated since 2.7.1."""
    function = _reach(mindspore, "tools.set_dump") or getattr(mindspore, "set_dump", None)
    return function if callable(function) else None


def device_id() -> Optional[int]:
    """Return the device of this process, if a launcher has set DEVICE_ID."""
    text = os.environ.get("DEVICE_ID", "")
    return int(text) if text.isascii() and text.isdigit() else None


def context(mindspore: ModuleType, name: str) -> Any:
    """Return the value of `get_context`; None for a name that this version does not have."""
    ask = getattr(mindspore, "get_context", None)
    try:
        return None if ask is None else ask(name)
    except (KeyError, ValueError):  # an unknown name
        return None


def _reach(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
