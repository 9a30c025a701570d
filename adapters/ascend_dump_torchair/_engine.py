"""What torchair's process has once: GE is initialised by the first graph, with options that count from then on.

The steps to begin anew are torchair's own function and two of its globals, which nothing else resets. The function ends
GE's session with its models, and what was set through acl; a new session takes new options.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Optional

from ascend_dump_torchair._config import engine_modules

__all__ = ["can_close", "close", "forget_graphs", "generates_json", "recorded", "was_closed"]

_RECORDED, _GENERATED = "_GLOBAL_COMPILE_OPTION", "g_cached_dump_root"
#: The torchairs whose GE was closed here.
_closed: weakref.WeakSet[Any] = weakref.WeakSet()


def recorded() -> Optional[Mapping[str, str]]:
    """GE's options of the first graph of this process; None before there is one."""
    backend, _, _ = engine_modules()
    return getattr(backend, _RECORDED, None)


def can_close() -> bool:
    backend, _, _ = engine_modules()
    return callable(getattr(backend, "finalize_graph_engine", None)) and hasattr(backend, _RECORDED)


def was_closed() -> bool:
    """Whether GE was closed in this process, so that the next graph begins anew."""
    backend, _, _ = engine_modules()
    return backend is not None and backend in _closed


def close() -> None:
    """Close GE, end its dump and forget every compiled graph: the next one begins with options of its own.

    Raises what torchair raises; it has forgotten its options then, too.

    (assumption torchair.closed_engine)
    """
    backend, converter, _ = engine_modules()
    if backend is None or not can_close():
        return
    _closed.add(backend)
    # Older versions do not do it themselves; what was compiled would run in a session that is gone.
    forget_graphs()
    try:
        backend.finalize_graph_engine()
    finally:
        setattr(backend, _RECORDED, None)
        if hasattr(converter, _GENERATED):
            setattr(converter, _GENERATED, None)


def forget_graphs() -> None:
    """Forget every compiled graph, so that what was compiled into it is compiled anew."""
    import torch

    torch._dynamo.reset()


def generates_json() -> bool:
    """Whether this torchair also hands a dump JSON of its own to the device, written into the working directory."""
    _, converter, native = engine_modules()
    return hasattr(converter, "_set_dump_options_json") or hasattr(native, "AclmdlSetDump")
