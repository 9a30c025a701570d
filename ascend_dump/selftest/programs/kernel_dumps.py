"""Dumps of eager kernels by torch_npu's dump interface. Each dump has its own directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import torch

__all__ = ["KernelDumps"]


def _one_kernel() -> None:
    (torch.ones(4).npu() + 1).cpu()


class KernelDumps:
    """Dumps of kernels below one directory. They use `torch_npu.npu.utils`, whose functions raise errors."""

    def __init__(self, torch_npu: Any, directory: Path) -> None:
        self.directory = directory
        self.npu: Any = torch_npu.npu
        self.utils: Any = torch_npu.npu.utils

    def config(self, name: str, **settings: Any) -> str:
        """Write a dump JSON `{name}.json` that dumps kernels to the directory `name`, and return its path.

        settings: further keys; None removes a default key.
        """
        root = self.directory / name
        root.mkdir(exist_ok=True)
        keys = {"dump_path": str(root), "dump_mode": "all", "dump_op_switch": "on", "dump_list": [], **settings}
        keys = {key: value for key, value in keys.items() if value is not None}
        return self.text(name, json.dumps({"dump": keys}))

    def text(self, name: str, content: str) -> str:
        file = self.directory / f"{name}.json"
        file.write_text(content)
        return str(file)

    def files(self, name: str) -> list[Path]:
        return sorted(path for path in (self.directory / name).rglob("*") if path.is_file())

    def has_files(self, name: str) -> bool:
        return bool(self.files(name))

    def dump(self, *configs: str, launch: Callable[[], Any] = _one_kernel) -> None:
        """Call set_dump with each of these files, launch kernels, and end the dump. launch: runs the kernels."""
        self.utils.init_dump()
        try:
            for config in configs:
                self.utils.set_dump(config)
            launch()
            self.npu.synchronize()
        finally:
            self.utils.finalize_dump()

    def files_of(self, name: str, *, launch: Callable[[], Any] = _one_kernel, **settings: Any) -> list[Path]:
        """Dump kernels with these settings to the directory `name`, and return the files."""
        self.dump(self.config(name, **settings), launch=launch)
        return self.files(name)
