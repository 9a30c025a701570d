"""One run of one rank: its directory, which no other run shares, and its manifest."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from ascend_dump._errors import WriteError
from ascend_dump._paths import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private_directory, make_run_directory
from ascend_dump._rank import Rank
from ascend_dump._version import __version__
from ascend_dump.writing.layout import MANIFEST

__all__ = ["Run"]


class Run:
    """A fresh `{path}/worldsizeN_global_rankR/{time}` directory with its manifest.

    Raises WriteError when the directory cannot be made.
    """

    def __init__(self, path: Path, rank: Rank, *, request: dict[str, Any], versions: dict[str, str]) -> None:
        self.root = make_run_directory(path / rank.level)
        self._manifest: dict[str, Any] = {
            "schema": "ascend-dump/host/1",
            "state": "running",
            "request": request,
            "rank": rank.rank,
            "world_size": rank.world,
            "versions": {"ascend_dump": __version__, "python": platform.python_version(), **versions},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": sys.argv,
            "start": time.time(),
        }
        self.write_manifest()

    def directory(self, device: int, model: str) -> Path:
        """Create and return `{device}/{model}/{model_id}`, with a model_id that is still free."""
        base = self.root / str(device) / _file_name(model)
        make_private_directory(base)
        number = 0
        while True:
            directory = base / str(number)
            try:
                directory.mkdir(mode=PRIVATE_DIRECTORY)
                return directory
            except FileExistsError:
                number += 1

    def write_manifest(self, **changes: Any) -> None:
        """Replace the manifest as a whole, so that a reader never sees half of one."""
        self._manifest.update(changes)
        target = self.root / MANIFEST
        draft = self.root / f".{MANIFEST}.{os.getpid()}"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(self._manifest, enc_hook=str)))
            os.replace(draft, target)
        except OSError as error:
            raise WriteError(f"{target} cannot be written: {error.strerror}", hint="free some space") from error


def _file_name(model: str) -> str:
    """A model name as CANN writes it into a path (device-side dump_task)."""
    return "".join("_" if letter in " ./\\" else letter for letter in model) or "model"
