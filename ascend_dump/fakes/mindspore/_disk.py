"""How MindSpore writes files: private, read-only, long names mapped, its own `.npy` header.

Measured with MindSpore 2.10.0: files 0400 in directories 0700, an npy header of 128 bytes whose shape ends with a
comma, bfloat16 as it is (`<E2`), and names of more than 255 bytes replaced by a number that `mapping.csv` explains.
On a full disk the program learns of tensors from 1024 bytes on; smaller ones, and all texts, become empty files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from ascend_dump.fakes.mindspore._types import BFLOAT16
from ascend_dump.native.cann.mapping import MAPPING, mapping_line, needs_mapping

if TYPE_CHECKING:
    from ascend_dump.fakes.device.disk import Disk

    _Array = np.ndarray[Any, Any]

__all__ = ["Folder", "npy_bytes"]

_FILE, _DIRECTORY = 0o400, 0o700
#: What a file has until it is complete.
_OPEN_FILE = 0o644
#: A C++ stream writes so many bytes at once; it keeps fewer until the file is closed, and nobody asks then.
_UNBUFFERED = 1024
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
        # Unlike the methods of paths, it answers for names that are too long and for places that may not be seen.
        while not os.path.isdir(here) and here != here.parent:
            missing.append(here)
            here = here.parent
        try:
            for here in reversed(missing):
                # It may be there as a file, as a link that leads nowhere, or because another process was faster.
                with contextlib.suppress(FileExistsError):
                    here.mkdir(mode=_DIRECTORY)
                    here.chmod(_DIRECTORY)
            if not os.path.isdir(self.path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            self._log("ERROR", f"Create the dir({here}) failed. Errno: {error.errno}, ErrInfo: {error.strerror}")
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a text anew. What there is no room for is lost silently."""
        self._put(name, data, os.O_TRUNC)

    def append(self, name: str, data: bytes) -> None:
        """Append to a text, as silently."""
        self._put(name, data, os.O_APPEND)

    def write_tensor(self, name: str, array: _Array) -> None:
        """Write an `.npy` file; a name that is too long becomes a number, explained in `mapping.csv`.

        Raises RuntimeError when the file cannot be made or a larger tensor does not fit.
        """
        if not array.size:
            return
        if needs_mapping(name):
            number = f"{self._numbers.randrange(_NUMBERS)}.npy"
            self.append(MAPPING, mapping_line(number, name).encode())
            name = number
        if not self.create():
            return
        place = self.path / name
        try:
            fd = _open(place, os.O_TRUNC)
        except OSError as error:
            raise RuntimeError(f"Open file {place} failed. Errno: {error.errno}, ErrInfo: {error.strerror}") from error
        lost = self._fill(fd, npy_bytes(array))
        if lost is not None and array.nbytes >= _UNBUFFERED:
            raise RuntimeError(
                f"Write mem to file {place} failed. This error may be caused by insufficient disk space. "
                "Please check the available disk space."
            ) from lost
        place.chmod(_FILE)

    def _put(self, name: str, data: bytes, flag: int) -> None:
        if not self.create():
            return
        place = self.path / name
        try:
            fd = _open(place, flag)
        except OSError as error:
            self._log("ERROR", f"Open file '{place}' failed! Errno: {error.errno}, ErrInfo: {error.strerror}")
            return
        self._fill(fd, data)
        place.chmod(_FILE)

    def _fill(self, fd: int, data: bytes) -> Optional[OSError]:
        """Write what there is room for, and tell why it was not all."""
        lost = None
        room = self._disk.room(self.path)
        if len(data) > room:
            lost = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[:room][: self._disk.cut_after]
        try:
            with open(fd, "wb") as file:
                file.write(data)
        except OSError as error:
            lost = error
        self._disk.take(len(data))
        return lost


def _open(place: Path, flag: int) -> int:
    if os.path.exists(place):
        place.chmod(_FILE | 0o200)
    return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, _OPEN_FILE)
