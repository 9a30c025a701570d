"""Read the tensors in converted files: npy, npz and pt files, raw bytes, and text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, NotSupported, StorageError
from ascend_dump.native.cann.converted import ARCHIVE_MEMBER, ConvertedName
from ascend_dump.native.cann.dtypes import DataType, data_type
from ascend_dump.native.npy import NpyHeader, read_npy_header, read_npz_headers
from ascend_dump.reading._npy import dtype_of, read_array
from ascend_dump.reading._record import Record
from ascend_dump.storage.files import NotRegularFile, read_part, regular_status

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["ARRAYS", "StoredArray", "WithoutValues", "of_archive", "of_file", "of_overflow"]

_Shape = tuple[int, ...]

_MAX_INT64 = 2**63 - 1
#: CANN's types by their names in lower case.
_CANN_TYPES = {cann_type.name.lower(): cann_type for cann_type in map(data_type, range(43))}
#: The first line of a text file of `ascend-dump convert`: dtype, shape and layout.
_TEXT_HEAD = re.compile(rb"# ([a-z]\w*) \[((?:\d{1,19}(?:, \d{1,19})*)?)\] (\w+)\n", re.ASCII)
_LONGEST_HEAD = 4096


class StoredArray(NamedTuple):
    """A tensor in a file. `load` reads it."""

    dtype: str
    shape: _Shape
    nbytes: int
    load: Callable[[], np.ndarray]


class _Arrays:
    """The loader of records with a StoredArray as their `key`."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, record.format):
            raise NotSupported(
                f"{record} is in a converted file, and its layout cannot be converted again",
                hint="leave format= out, or read the dump file that was converted",
            )
        stored: StoredArray = record.key
        return stored.load()

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


ARRAYS = _Arrays()


class WithoutValues:
    """The loader of records without readable values: reading them raises the given error."""

    def __init__(self, error: NotSupported) -> None:
        self._error = error

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise self._error

    def statistics(self, record: Record) -> Optional[Statistics]:
        raise self._error


def of_file(path: Path, name: ConvertedName) -> StoredArray:
    """Describe the tensor in a converted file. Raises CorruptDump; NotSupported if its type or shape is unknown."""
    if name.type == "npy":
        return _of_npy(path, read_npy_header(path))
    if name.type == "pt":
        return _of_pt(path)
    if name.type == "bin":
        return _of_bytes(path, name)
    return _of_text(path, name)


def of_archive(path: Path) -> Iterator[tuple[str, int, StoredArray]]:
    """Yield (io, index, tensor) for each member of an npz file. Raises CorruptDump."""
    headers = read_npz_headers(path)
    for member, header in headers.items():
        match = ARCHIVE_MEMBER.fullmatch(member)
        if match is None:
            raise CorruptDump(f"its member {member[:80]!r} is not named like an input or an output", path=path)
        io = "buffer" if match[1] == "l1buffer" else match[1]
        yield io, int(match[2]), _of_npy(path, header)


def of_overflow(document: dict[str, Any]) -> StoredArray:
    """Return an overflow record as an array of its bytes. document: its JSON, which has to be valid."""
    from ascend_dump.native.cann.overflow import PAYLOAD_SIZE, encode_overflow

    def load() -> np.ndarray:
        import numpy as np

        return np.frombuffer(encode_overflow(document), np.uint8)

    return StoredArray("uint8", (PAYLOAD_SIZE,), PAYLOAD_SIZE, load)


def _of_npy(path: Path, header: NpyHeader) -> StoredArray:
    return StoredArray(dtype_of(header.dtype).name, header.shape, header.nbytes, lambda: read_array(path, header))


def _of_pt(path: Path) -> StoredArray:
    from ascend_dump.reading._pt_file import describe_pt, read_pt_array

    tensor = describe_pt(path)
    nbytes = math.prod(tensor.shape) * dtype_of(tensor.dtype).itemsize
    return StoredArray(tensor.dtype, tensor.shape, nbytes, lambda: read_pt_array(path, tensor))


def _of_bytes(path: Path, name: ConvertedName) -> StoredArray:
    size = _size_of(path)
    label = name.dtype or "uint8"
    shape = (size,) if name.shape is None else name.shape
    count = math.prod(shape)
    if count > _MAX_INT64:
        raise CorruptDump(f"its name has the shape {shape}, which is larger than any memory", path=path)
    kind = _CANN_TYPES.get(label)
    if kind is not None and kind.storage == "raw":
        return StoredArray("uint8", (size,), size, lambda: _bytes(path, size))
    if kind is not None and kind.storage != "plain" and size == (count * kind.bits + 7) // 8:
        return StoredArray(kind.numpy or label, shape, size, lambda: _decoded(path, size, kind, shape))
    try:
        dtype = dtype_of(label)
    except TypeError:
        raise CorruptDump(f"its name has the type {label!r}, which numpy does not know", path=path) from None
    if label == "bfloat16" and count and size == 4 * count:
        dtype = dtype_of("float32")  # msaccucmp widens the values and keeps the name
    if dtype.hasobject or size != count * dtype.itemsize:
        raise CorruptDump(
            f"it has {size} bytes, but {label} of the shape {shape}, as in its name, needs {count * dtype.itemsize}",
            path=path,
        )
    return StoredArray(dtype.name, shape, size, lambda: _bytes(path, size).view(dtype).reshape(shape))


def _decoded(path: Path, size: int, kind: DataType, shape: _Shape) -> np.ndarray:
    from ascend_dump.native.cann.dtypes import decode

    return decode(_bytes(path, size), kind.value, shape)


def _bytes(path: Path, size: int) -> np.ndarray:
    import numpy as np

    try:
        content = np.frombuffer(read_part(path, 0, size), np.uint8)
    except StorageError:
        raise
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path) from None
    if content.size != size:
        raise CorruptDump(f"it has {content.size} bytes, but had {size} when the dump was opened", path=path)
    return content


def _size_of(path: Path) -> int:
    try:
        return regular_status(path, follow_links=False).st_size
    except NotRegularFile as error:
        raise CorruptDump(error.what, path=path) from None
    except StorageError:
        raise
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path) from None


def _of_text(path: Path, name: ConvertedName) -> StoredArray:
    size = _size_of(path)
    label, shape, start = name.dtype, name.shape, 0
    if name.type == "txt":
        match = _TEXT_HEAD.match(_head(path))
        if match is not None:
            label, start = match[1].decode(), match.end()
            shape = tuple(int(text) for text in match[2].decode().split(", ") if text)
    if label is None or shape is None:
        raise NotSupported(
            f"{path} is text without the type and shape of its tensor",
            hint="convert to npy, or with --names ours, which writes type and shape into the file name",
        )
    try:
        dtype = dtype_of(label)
    except TypeError:
        raise CorruptDump(f"its values have the type {label!r}, which numpy does not know", path=path) from None
    count = math.prod(shape)
    # Each value takes at least two bytes: a digit and a separator; the last separator may be missing.
    if dtype.hasobject or 2 * count > size - start + 1:
        raise CorruptDump(f"its shape {shape} has {count} values, too many for {size} bytes", path=path)
    separator = "," if name.type == "csv" else None
    return StoredArray(
        dtype.name, shape, count * dtype.itemsize, lambda: _parsed(path, size, start, separator, dtype, shape)
    )


def _head(path: Path) -> bytes:
    try:
        return read_part(path, 0, _LONGEST_HEAD)
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path) from None


def _parsed(
    path: Path, size: int, start: int, separator: Optional[str], dtype: np.dtype[Any], shape: _Shape
) -> np.ndarray:
    import numpy as np

    text = bytes(_bytes(path, size)[start:]).decode("ascii", "replace")
    cells: Sequence[str] = text.split() if separator is None else text.replace(separator, " ").split()
    kind = dtype.kind if dtype.isbuiltin == 1 else "i" if "int" in dtype.name else "f"
    number: Callable[[str], Any] = complex if kind == "c" else float if kind == "f" else int
    try:
        return np.array([number(cell) for cell in cells], None if cells else dtype).astype(dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise CorruptDump(f"its text is not {dtype.name} of the shape {shape}: {error}", path=path) from None
