"""How MindSpore writes files: private, read-only, long names mapped, its own `.npy` header.

Measured with MindSpore 2.10.0: files 0400 in directories 0700, an npy header of 128 bytes whose shape ends with a
comma, bfloat16 as it is (`<E2`), and names of more than 255 bytes replaced by a number that `mapping.csv` explains.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from ascend_dump.cann.mapping import MAPPING, mapping_line, needs_mapping
from ascend_dump.fakes._mindspore_types import BFLOAT16

if TYPE_CHECKING:
    from ascend_dump.fakes._npu_disk import Disk

    _Array = np.ndarray[Any, Any]

__all__ = ["Folder", "npy_bytes"]

_FILE, _DIRECTORY = 0o400, 0o700
_HEADER = 128
_NUMBERS = 2**31


def npy_bytes(array: _Array) -> bytes:
    """The content of an `.npy` file as MindSpore writes it."""
    descr = "<E2" if array.dtype == BFLOAT16 else array.dtype.newbyteorder("<").str
    shape = "".join(f"{length}," for length in array.shape)
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}"
    room = -(-(10 + len(text) + 1) // _HEADER) * _HEADER - 10
    header = text.ljust(room - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + array.tobytes()


class Folder:
    """One directory of a dump. disk: where it is. log: takes what MindSpore would only log."""

    def __init__(self, path: Path, disk: Disk, log: Callable[[str, str], None]) -> None:
        self.path = path
        self._disk = disk
        self._log = log
        self._numbers = random.Random()

    def create(self) -> bool:
        """Make it with its parents; a failure is logged and nothing is written then."""
        missing = []
        here = self.path
        while not here.exists() and here != here.parent:
            missing.append(here)
            here = here.parent
        try:
            for directory in reversed(missing):
                directory.mkdir(mode=_DIRECTORY)
                directory.chmod(_DIRECTORY)
            if not self.path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except FileExistsError:
            return self.create()
        except OSError as error:
            self._log("ERROR", f"Create the dir({self.path}) failed. Errno: {error.errno}, ErrInfo: {error.strerror}")
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a file anew. Raises RuntimeError when the disk takes it not."""
        self._put(name, data, os.O_TRUNC)

    def append(self, name: str, data: bytes) -> bool:
        """Append to a file; tells whether it was new."""
        new = not (self.path / name).exists()
        self._put(name, data, os.O_APPEND)
        return new

    def write_tensor(self, name: str, array: _Array) -> None:
        """Write an `.npy` file; a name that is too long becomes a number, explained in `mapping.csv`."""
        if not array.size:
            return
        if needs_mapping(name):
            number = f"{self._numbers.randrange(_NUMBERS)}.npy"
            self.append(MAPPING, mapping_line(number, name).encode())
            name = number
        self.write(name, npy_bytes(array))

    def _put(self, name: str, data: bytes, flag: int) -> None:
        if not self.create():
            return
        place = self.path / name
        try:
            data = data[: self._disk.take(self.path, len(data))]
            if place.exists():
                place.chmod(_FILE | 0o200)
            fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, _FILE | 0o200)
            with open(fd, "wb") as file:
                file.write(data)
            place.chmod(_FILE)
        except OSError as error:
            raise RuntimeError(
                f"Write mem to file {place} failed. This error may be caused by insufficient disk space. "
                f"Errno: {error.errno}, ErrInfo: {error.strerror}"
            ) from error
