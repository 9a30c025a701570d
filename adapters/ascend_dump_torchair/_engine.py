"""The state of GE in this process, and closing GE.

The first graph initialises GE, and its options apply to all later graphs. To close GE, a function of torchair is
called, which ends GE's session, its models, and the settings made through acl. Then two globals of torchair are
cleared, because torchair does not clear them itself. A new session reads new options.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Optional

from ascend_dump_torchair._config import engine_modules

__all__ = ["can_close", "close", "forget_graphs", "generates_json", "recorded", "was_closed"]

_RECORDED, _GENERATED = "_GLOBAL_COMPILE_OPTION", "g_cached_dump_root"
#: The backend modules of torchair whose GE was closed by this module.
_closed: weakref.WeakSet[Any] = weakref.WeakSet()


def recorded() -> Optional[Mapping[str, str]]:
    """Return the options with which GE was initialised; None if it is not initialised."""
    backend, _, _ = engine_modules()
    return getattr(backend, _RECORDED, None)


def can_close() -> bool:
    """Return True if this torchair has the function and the global that closing GE needs."""
    backend, _, _ = engine_modules()
    return callable(getattr(backend, "finalize_graph_engine", None)) and hasattr(backend, _RECORDED)


def was_closed() -> bool:
    """Return True if GE was closed in this process, so that the next graph initialises it again."""
    backend, _, _ = engine_modules()
    return backend is not None and backend in _closed


def close() -> None:
    """Close GE, end its dump and drop all compiled graphs, so that the next graph sets new options.

    Raises the errors of torchair. Its options are cleared even then. (assumption torchair.closed_engine)
    """
    backend, converter, _ = engine_modules()
    if backend is None or not can_close():
        return
    _closed.add(backend)
    # Older versions of torchair do not drop compiled graphs, which would then run in a closed session.
    forget_graphs()
    try:
        backend.finalize_graph_engine()
    finally:
        setattr(backend, _RECORDED, None)
        if hasattr(converter, _GENERATED):
            setattr(converter, _GENERATED, None)


def forget_graphs() -> None:
    """Drop all compiled graphs, so that they are compiled again."""
    import torch

    torch._dynamo.reset()


def generates_json() -> bool:
    """Return True if this torchair writes its own dump JSON into the working directory and passes it to the device."""
    _, converter, native = engine_modules()
    return hasattr(converter, "_set_dump_options_json") or hasattr(native, "AclmdlSetDump")
