"""Tensors of checkpoints, read in pieces."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.storage import StoredPath
from ascend_dump.storage.files import NotRegularFile, open_descriptor, read_part

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FileBytes", "WeightTensor", "numpy_dtype"]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype for a name in numpy or ml_dtypes, such as "bfloat16"."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


class FileBytes:
    """A file from which byte ranges are read. It is opened at the first read and stays open."""

    def __init__(self, path: Path, *, follow_links: bool = True) -> None:
        self.path = path
        self._follow_links = follow_links
        self._descriptor: Optional[int] = None

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from the position `start`. Raises CorruptDump if it cannot be read or is too short."""
        try:
            if isinstance(self.path, StoredPath):
                data = read_part(self.path, start, size)
            else:
                if self._descriptor is None:
                    self._descriptor = open_descriptor(self.path, follow_links=self._follow_links)
                data = _read_fully(self._descriptor, start, size)
        except StorageError:
            raise
        except NotRegularFile as error:
            raise CorruptDump(error.what, path=self.path) from None
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self.path, offset=start) from None
        if len(data) != size:
            raise CorruptDump(
                f"ends after {start + len(data)} bytes, expected {start + size}: it is truncated",
                path=self.path,
                offset=start,
            )
        return data

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _read_fully(descriptor: int, start: int, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the file. A loop, because one pread returns at most 2 GiB."""
    data = os.pread(descriptor, size, start)
    if len(data) == size or not data:
        return data
    pieces = [data]
    while (done := sum(map(len, pieces))) < size:
        piece = os.pread(descriptor, size - done, start + done)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


class WeightTensor:
    """One named tensor of a checkpoint or dump.

    dtype   a name in numpy or ml_dtypes
    path    the file with the tensor
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        path: Path,
        *,
        content: Optional[tuple[FileBytes, int]] = None,
        load: Optional[Callable[[], np.ndarray]] = None,
    ) -> None:
        """Create a tensor from either `content` or `load`.

        content: the file and the byte position of the first element, for a tensor in row-major order. load: a function
        that returns the whole tensor, for any other tensor.
        """
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.path = path
        self.size = math.prod(shape)
        self._content = content
        self._load = load

    def __repr__(self) -> str:
        return f"<WeightTensor {self.name} {self.dtype} {list(self.shape)}>"

    @property
    def nbytes(self) -> int:
        return self.size * numpy_dtype(self.dtype).itemsize

    def elements(self, start: int = 0, stop: Optional[int] = None) -> np.ndarray:
        """Return the elements from start to stop in row-major order, as a flat array. Raises ReadError.

        A tensor without `content` is loaded as a whole at each call.
        """
        import numpy as np

        stop = self.size if stop is None else min(stop, self.size)
        dtype = numpy_dtype(self.dtype)
        if self._content is None:
            assert self._load is not None
            return np.ascontiguousarray(self._load()).reshape(-1)[start:stop]
        file, offset = self._content
        return np.frombuffer(file.read(offset + start * dtype.itemsize, (stop - start) * dtype.itemsize), dtype)

    @property
    def is_in_pieces(self) -> bool:
        """True if `elements` reads only the requested elements."""
        return self._content is not None
