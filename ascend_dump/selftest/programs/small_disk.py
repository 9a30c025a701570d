"""Facts about a dump to a file system that is nearly full.

The program mounts two small file systems in memory. Only this process sees them.
"""

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
#: Sizes of the file systems, and the size in bytes of a file in each of them. The file takes at least one page of
#: memory, so the smaller file system has less than 1 MiB free.
SIZES, TAKEN = {"tight": "1m", "roomy": "64m"}, 64 << 10


def mount_small(directory: Path) -> dict[str, Path]:
    """Mount a file system for each entry of `SIZES`, and return the paths. Raises OSError if mounting is denied."""
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
    """Dump one run of a model to `root`, and return the sizes of the dump files in bytes."""
    om = build_offline(
        acl, directory / "net.om", (OnnxNode("only", "MatMul", ("x", "w")),), {"w": np.ones((IN, OUT), "f4")}
    )
    config = directory / f"{root.name}.json"
    config.write_text(json.dumps({"dump": {"dump_path": str(root), "dump_mode": "all", "dump_list": [{}]}}))
    run_dumped(acl, str(config), om)
    return [path.stat().st_size for path in root.rglob("*") if path.is_file() and path.name != "taken"]


def disk_reserve(directory: Path) -> dict[str, int]:
    """Return the number of dump files on the small ("tight") and the large ("roomy") file system.

    bytes: size of all files on the large one.
    """
    # Mount before acl starts. Its threads write the files, and they see the mounts of the thread that starts them.
    mounts = mount_small(directory)
    start_device(acl, DEVICE)
    tight, roomy = (dumped(mounts[name], directory) for name in SIZES)
    return {"tight": len(tight), "roomy": len(roomy), "bytes": sum(roomy)}


def ask(directory: Path) -> dict[str, Any]:
    return ask_each(directory, {"disk_reserve": partial(disk_reserve, directory.resolve())})


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
    acl.finalize()
