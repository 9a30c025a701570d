"""Dumps of eager kernels through torch_npu's dump interface, each into a directory of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import torch

__all__ = ["KernelDumps"]


def _one_kernel() -> None:
    (torch.ones(4).npu() + 1).cpu()


class KernelDumps:
    """The dump interface that raises errors, and the directories of dumps of kernels."""

    def __init__(self, torch_npu: Any, directory: Path) -> None:
        self.directory = directory
        self.npu: Any = torch_npu.npu
        self.utils: Any = torch_npu.npu.utils

    def config(self, name: str, **settings: Any) -> str:
        """Write a dump JSON for kernels, with a directory of its own, and return its path."""
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
        """Set these files one after the other, launch kernels, and end the dump."""
        self.utils.init_dump()
        try:
            for config in configs:
                self.utils.set_dump(config)
            launch()
            self.npu.synchronize()
        finally:
            self.utils.finalize_dump()

    def files_of(self, name: str, *, launch: Callable[[], Any] = _one_kernel, **settings: Any) -> list[Path]:
        """Return the files of a dump of kernels with these settings."""
        self.dump(self.config(name, **settings), launch=launch)
        return self.files(name)
