"""What torchair's process has once: GE is initialised by the first graph, with options that count from then on.

The steps to begin anew are torchair's own functions and two of its globals, which nothing else resets. Without
torch_npu they close GE; beside it they close GE's session, and a new one takes new options.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump._paths import open_private
from ascend_dump_torchair._config import engine_modules

__all__ = ["close", "forget_graphs", "generates_json", "recorded", "take_back"]

_RECORDED, _GENERATED = "_GLOBAL_COMPILE_OPTION", "g_cached_dump_root"
#: No graph has this name: a dump of it is none. The dump JSON has no key that ends a dump.
_NOBODY = "ascend_dump_ended"


def recorded() -> Optional[Mapping[str, str]]:
    """GE's options of the first graph of this process; None before there is one."""
    backend, _, _ = engine_modules()
    return getattr(backend, _RECORDED, None)


def can_close() -> bool:
    backend, _, _ = engine_modules()
    return callable(getattr(backend, "finalize_graph_engine", None)) and hasattr(backend, _RECORDED)


def close() -> None:
    """Close GE and forget every compiled graph: the next one initialises it with options of its own."""
    backend, converter, _ = engine_modules()
    if backend is None or not can_close():
        return
    backend.finalize_graph_engine()
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


def can_take_back() -> bool:
    """Whether a dump that was set through acl can be ended."""
    _, _, native = engine_modules()
    return hasattr(native, "AclmdlSetDump")


def take_back(folder: Path) -> None:
    """End a dump that was set through acl, by one that takes nothing. folder: where its file may be for a moment."""
    _, _, native = engine_modules()
    set_dump: Any = getattr(native, "AclmdlSetDump", None)
    if set_dump is None:
        return
    settings = {"dump_path": os.fspath(folder), "dump_list": [{"model_name": _NOBODY}], "dump_op_switch": "off"}
    file = folder / f"torchair-ended-{os.getpid()}.json"
    with open(open_private(file, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as opened:
        json.dump({"dump": settings}, opened)
    try:
        set_dump(os.fspath(file))
    finally:
        file.unlink()
