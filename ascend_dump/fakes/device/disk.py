"""The host's disk writer behind the simulated device: appends, drops on a full disk, renames what is too long.

Sources: adump file_utils (O_APPEND, permissions, the limit of 1 MiB, ENAMETOOLONG) and adx_dump_record.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump import WriteError
from ascend_dump.adapter import PRIVATE_FILE, make_private_directory
from ascend_dump.native.cann.dump_file import write
from ascend_dump.native.cann.mapping import MAPPING, hashed_name, mapping_line, needs_mapping

__all__ = ["Disk"]

#: Below this much free space nothing is written.
_LEAST_FREE = 1 << 20
#: The device sends files in slices, and each one writes its line of the mapping.
_SLICE = 128 << 20


class Disk:
    """Where dump files go. `files` are those written, `log` what CANN would only write to its log.

    free: bytes free where a path is; by default those of the file system.
    """

    def __init__(self, free: Optional[Callable[[Path], int]] = None) -> None:
        self.files: list[Path] = []
        self.log: list[str] = []
        self.cut_after: Optional[int] = None
        self._free = free or (lambda path: shutil.disk_usage(path).free)
        self._left: Optional[int] = None

    def fill(self, free_bytes: int) -> None:
        """Leave so many bytes free; what is written from now on uses them up."""
        self._left = free_bytes

    def room(self, directory: Path) -> int:
        """Bytes that are free for what is written there."""
        return self._free(directory) if self._left is None else self._left

    def take(self, size: int) -> None:
        """Use up room: another writer of the host has written so much."""
        if self._left is not None:
            self._left -= size

    def write_dump(self, path: str, tensors: Sequence[Any], *, exception: bool = False, **header: Any) -> None:
        """Append a dump file. path: the whole text of it as CANN builds it, doubled slashes included."""

        def put(place: Path) -> None:
            write(place, tensors, append=True, host=exception, **header)

        # The header counts too, but it is small against the limits.
        self._put(path, sum(tensor.size for tensor, _ in tensors), put, exception)

    def write_text(self, path: str, text: str) -> None:
        """Append a statistics file."""
        data = text.encode()

        def put(place: Path) -> None:
            with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "ab") as file:
                file.write(data)

        self._put(path, len(data), put, False)

    def _put(self, path: str, size: int, put: Callable[[Path], None], exception: bool) -> None:
        # (assumption cann.append)
        # (assumption cann.file_mode)
        # (assumption cann.disk_reserve)
        folder, _, name = path.rpartition("/")
        directory = Path(folder)
        try:
            make_private_directory(directory)
            free = self.room(directory)
            if free < _LEAST_FREE or size > free:
                self.log.append(f"the disk is full ({free} bytes free), dropped: {path}")
                return
            place = directory / name
            if needs_mapping(name):
                place = directory / hashed_name(path, exception=exception)
                self._append_mapping(directory, mapping_line(place.name, name) * (size // _SLICE + 1))
            start = place.stat().st_size if place.exists() else 0
            put(place)
            if self.cut_after is not None:
                os.truncate(place, min(place.stat().st_size, start + self.cut_after))
        except (OSError, WriteError) as error:
            # The process that dumps learns of nothing.
            self.log.append(f"cannot write {path}: {error}")
            return
        self.take(place.stat().st_size - start)
        self.files.append(place)

    def _append_mapping(self, directory: Path, lines: str) -> None:
        # (assumption cann.long_names)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(os.open(directory / MAPPING, flags, PRIVATE_FILE), "ab") as file:
            file.write(os.fsencode(lines))
