"""Write files to disk as CANN's host process does for the device.

It appends to existing files, drops files if the disk is nearly full, and replaces names that are too long by hashes.
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

#: If fewer bytes are free, nothing is written.
_LEAST_FREE = 1 << 20
#: The device sends a file in slices of this number of bytes. For a long name, each slice adds a line to the mapping.
_SLICE = 128 << 20


class Disk:
    """The disk to which dump files are written.

    free       returns the number of free bytes at a path; by default that of the file system
    files      the written files
    log        lines for CANN's log
    cut_after  if not None, each write is truncated to this number of bytes (a fault)
    """

    def __init__(self, free: Optional[Callable[[Path], int]] = None) -> None:
        self.files: list[Path] = []
        self.log: list[str] = []
        self.cut_after: Optional[int] = None
        self._free = free or (lambda path: shutil.disk_usage(path).free)
        self._left: Optional[int] = None

    def fill(self, free_bytes: int) -> None:
        """Set the number of free bytes. Files that are written use them up."""
        self._left = free_bytes

    def room(self, directory: Path) -> int:
        """Return the number of free bytes for files in a directory."""
        return self._free(directory) if self._left is None else self._left

    def take(self, size: int) -> None:
        """Reduce the number of free bytes, if it was set by `fill`: another writer wrote a file of this size."""
        if self._left is not None:
            self._left -= size

    def write_dump(self, path: str, tensors: Sequence[Any], *, exception: bool = False, **header: Any) -> None:
        """Append a dump to a file.

        path: as CANN builds it, with double slashes, because its hash replaces a name that is too long. exception: True
        for an exception dump. header: further fields of the header.
        """

        def put(file: Path) -> None:
            write(file, tensors, append=True, host=exception, **header)

        # The size of the header is not counted; it is small compared with `_LEAST_FREE`.
        self._put(path, sum(tensor.size for tensor, _ in tensors), put, exception)

    def write_text(self, path: str, text: str) -> None:
        """Append a text, a table of statistics, to a file."""
        data = text.encode()

        def put(target: Path) -> None:
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "ab") as file:
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
            file = directory / name
            if needs_mapping(name):
                file = directory / hashed_name(path, exception=exception)
                self._append_mapping(directory, mapping_line(file.name, name) * (size // _SLICE + 1))
            start = file.stat().st_size if file.exists() else 0
            put(file)
            if self.cut_after is not None:
                os.truncate(file, min(file.stat().st_size, start + self.cut_after))
        except (OSError, WriteError) as error:
            # As in CANN, the process that is dumped gets no error.
            self.log.append(f"cannot write {path}: {error}")
            return
        self.take(file.stat().st_size - start)
        self.files.append(file)

    def _append_mapping(self, directory: Path, lines: str) -> None:
        # (assumption cann.long_names)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(os.open(directory / MAPPING, flags, PRIVATE_FILE), "ab") as file:
            file.write(os.fsencode(lines))
