"""Write files as MindSpore does.

Measured with MindSpore 2.10.0: files have the mode 0400 and directories 0700. A name of more than 255 bytes is
replaced by a number, which `mapping.csv` lists. The header of an `.npy` file has a multiple of 128 bytes, and its shape
ends with a comma. bfloat16 is stored unchanged, with the type `<E2`. On a full disk, a tensor of 1024 bytes or more
raises an error; smaller tensors, and all texts, become empty files.
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
#: The mode of a file until it is completely written.
_OPEN_FILE = 0o644
#: A C++ stream writes this number of bytes or more at once, and MindSpore notices an error. Fewer bytes are buffered
#: until the file is closed, and then errors are not checked.
_UNBUFFERED = 1024
#: The size of an `.npy` header is a multiple of this number of bytes.
_HEADER = 128
#: The numbers that replace long names are below this one.
_NUMBERS = 2**31


def npy_bytes(array: _Array) -> bytes:
    """Return the content of the `.npy` file that MindSpore writes for an array."""
    descr = "<E2" if array.dtype == BFLOAT16 else array.dtype.newbyteorder("<").str
    shape = "".join(f"{length}," for length in array.shape)
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}"
    room = -(-(10 + len(text) + 1) // _HEADER) * _HEADER - 10
    header = text.ljust(room - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + array.tobytes()


class Folder:
    """A directory of a dump. disk: the simulated disk below it. log: writes a level and a text to MindSpore's log."""

    def __init__(self, path: Path, disk: Disk, log: Callable[[str, str], None]) -> None:
        self.path = path
        self._disk = disk
        self._log = log
        self._numbers = random.Random()

    def create(self) -> bool:
        """Create the directory and its parents. Returns False after a failure, which is logged."""
        missing = []
        directory = self.path
        # Unlike the methods of Path, isdir returns False for long names and for directories without permission.
        while not os.path.isdir(directory) and directory != directory.parent:
            missing.append(directory)
            directory = directory.parent
        try:
            for directory in reversed(missing):
                # FileExistsError is raised if another process created the directory. The name may also be a file or a
                # broken link, which is checked below.
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(mode=_DIRECTORY)
                    directory.chmod(_DIRECTORY)
            if not os.path.isdir(self.path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            self._log("ERROR", f"Create the dir({directory}) failed. Errno: {error.errno}, ErrInfo: {error.strerror}")
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a text file, in place of an earlier one. Bytes that do not fit on the disk are lost silently."""
        self._put(name, data, os.O_TRUNC)

    def append(self, name: str, data: bytes) -> None:
        """Append to a text file. Bytes that do not fit on the disk are lost silently."""
        self._put(name, data, os.O_APPEND)

    def write_tensor(self, name: str, array: _Array) -> None:
        """Write an `.npy` file; nothing for a tensor without elements. A long name is replaced by a number.

        Raises RuntimeError if the file cannot be created, or if a tensor of `_UNBUFFERED` bytes or more does not fit on
        the disk.
        """
        if not array.size:
            return
        if needs_mapping(name):
            number = f"{self._numbers.randrange(_NUMBERS)}.npy"
            self.append(MAPPING, mapping_line(number, name).encode())
            name = number
        if not self.create():
            return
        path = self.path / name
        try:
            fd = _open(path, os.O_TRUNC)
        except OSError as error:
            raise RuntimeError(f"Open file {path} failed. Errno: {error.errno}, ErrInfo: {error.strerror}") from error
        failure = self._fill(fd, npy_bytes(array))
        if failure is not None and array.nbytes >= _UNBUFFERED:
            raise RuntimeError(
                f"Write mem to file {path} failed. This error may be caused by insufficient disk space. "
                "Please check the available disk space."
            ) from failure
        path.chmod(_FILE)

    def _put(self, name: str, data: bytes, flag: int) -> None:
        if not self.create():
            return
        path = self.path / name
        try:
            fd = _open(path, flag)
        except OSError as error:
            self._log("ERROR", f"Open file '{path}' failed! Errno: {error.errno}, ErrInfo: {error.strerror}")
            return
        self._fill(fd, data)
        path.chmod(_FILE)

    def _fill(self, fd: int, data: bytes) -> Optional[OSError]:
        """Write the bytes that fit on the disk. Returns the error if some are lost, else None."""
        failure = None
        room = self._disk.room(self.path)
        if len(data) > room:
            failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[:room][: self._disk.cut_after]
        try:
            with open(fd, "wb") as file:
                file.write(data)
        except OSError as error:
            failure = error
        self._disk.take(len(data))
        return failure


def _open(path: Path, flag: int) -> int:
    if os.path.exists(path):
        path.chmod(_FILE | 0o200)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, _OPEN_FILE)
