"""Dumps on a file system that is nearly full: it is in memory, and visible to this process only."""

import ctypes
import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ascend_dump.selftest.onnx_model import OnnxNode
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.offline_network import build_offline, run_dumped, start_device
from ascend_dump.selftest.tiny_network import IN, OUT

acl: Any = import_module("acl")
DEVICE = 0
#: Constants of Linux' sched.h and mount.h.
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
#: Sizes of file systems, and used bytes in each; a page of memory is not larger.
SIZES, TAKEN = {"tight": "1m", "roomy": "64m"}, 64 << 10


def mount_small(directory: Path) -> dict[str, Path]:
    """Mount file systems of these sizes. Raises OSError if the process may not mount."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}; the process needs the right to mount")

    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    mounts = {name: directory / name for name in SIZES}
    for name, path in mounts.items():
        path.mkdir()
        call("mount", b"tmpfs", bytes(path), b"tmpfs", ctypes.c_ulong(0), f"size={SIZES[name]},mode=700".encode())
        (path / "taken").write_bytes(bytes(TAKEN))
    return mounts


def dumped(root: Path, directory: Path) -> list[int]:
    """Return the sizes of the files of a dump into a directory."""
    om = build_offline(
        acl, directory / "net.om", (OnnxNode("only", "MatMul", ("x", "w")),), {"w": np.ones((IN, OUT), "f4")}
    )
    config = directory / f"{root.name}.json"
    config.write_text(json.dumps({"dump": {"dump_path": str(root), "dump_mode": "all", "dump_list": [{}]}}))
    run_dumped(acl, str(config), om)
    return [path.stat().st_size for path in root.rglob("*") if path.is_file() and path.name != "taken"]


def disk_reserve(directory: Path) -> dict[str, int]:
    """Return the number of files on the small and on the large file system, and the bytes on the latter."""
    # Before acl starts: its threads write the files, and inherit the mounts of the thread that starts them.
    mounts = mount_small(directory)
    start_device(acl, DEVICE)
    tight, roomy = (dumped(mounts[name], directory) for name in SIZES)
    return {"tight": len(tight), "roomy": len(roomy), "bytes": sum(roomy)}


def ask(directory: Path) -> dict[str, Any]:
    return ask_each(directory, {"disk_reserve": partial(disk_reserve, directory.resolve())})


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
    acl.finalize()
