"""Read the elements of npy files, after the header was checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.storage import StoredPath
from ascend_dump.storage.files import open_regular, read_part

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.native.npy import NpyHeader

__all__ = ["dtype_of", "read_array"]

#: Minimum size in bytes of a memory-mapped array: reading a smaller one into memory is faster.
_MAP_FROM = 1 << 20


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype for a type string of numpy, or a name in numpy or ml_dtypes, such as "bfloat16"."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def read_array(path: Path, header: NpyHeader) -> np.ndarray:
    """Return the array of a file, memory-mapped if it is large. Raises CorruptDump."""
    import numpy as np

    dtype = dtype_of(header.dtype)
    order: Any = "F" if header.fortran else "C"
    try:
        if header.nbytes >= _MAP_FROM and not isinstance(path, StoredPath):
            with open_regular(path) as file:
                mapped: np.ndarray = np.memmap(file, dtype, "r", header.offset, header.shape, order)
            return mapped
        data = read_part(path, header.offset, header.nbytes)
        return np.frombuffer(data, dtype).reshape(header.shape, order=order)
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptDump(f"cannot be read: {error}", path=path, offset=header.offset) from None
