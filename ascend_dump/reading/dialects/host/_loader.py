"""Read the tensors of the dialect `host` from shards. A shard is a file with tensors of one step."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from ascend_dump.dump_format import content_of
from ascend_dump.errors import CorruptDump, NotSupported, ReadError, StorageError
from ascend_dump.reading._record import Record
from ascend_dump.statistics import COUNTS, Statistics
from ascend_dump.storage import StoredPath
from ascend_dump.storage.files import NotRegularFile, is_there, open_descriptor, read_part, regular_status

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.dump_format import Line

__all__ = [
    "MOST_COPIED",
    "LineLoader",
    "ShardRegion",
    "Shards",
    "read_array",
    "refuse_format",
    "row_major",
    "why_removed",
]

#: Maximum number of shards that stay mapped for later reads; each mapping takes a file descriptor.
_MOST_MAPPED = 32
#: Tensors of at most this many bytes are copied. The copy takes little time, and it stays valid: access to a view of a
#: file that was cut off kills the process (SIGBUS).
MOST_COPIED = 4096
_NONFINITE_TEXTS = ("nan", "inf", "-inf")
#: The types of the values of valid statistics, one tuple per combination. Combinations with a text are not stored,
#: because each text has to be checked.
_valid_types: set[tuple[type, ...]] = set()
_MOST_VALID = 256
#: An object with the bytes of a shard: a mapped file, or an object in a store that is read part by part.
Shard = Union[mmap.mmap, "StoredShard"]


def why_removed(step: Path) -> Optional[ReadError]:
    """Return the error for a file that is missing because a capture with `keep=` removed its step, else None.

    step: the directory of the step
    """
    from ascend_dump.dump_format import REMOVED

    if not step.parent.is_dir() or (is_there(step) and not is_there(step / REMOVED)):
        return None
    return ReadError(
        "the step was removed after the dump was opened: with keep= only the last steps stay on disk",
        path=step,
        hint="open the dump again, or give a larger keep=",
        code="AD404",
    )


class ShardRegion(NamedTuple):
    """The position of a tensor in a shard.

    begin, end  the bytes of the file that belong to the tensor
    offset      position of element 0 in the file, in bytes
    strides     in elements
    """

    begin: int
    end: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StoredShard:
    """A shard in an object store. Slicing reads only the requested bytes."""

    def __init__(self, path: StoredPath) -> None:
        self._path = path
        self._size = regular_status(path).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, end, _ = part.indices(self._size)
        return read_part(self._path, start, end - start)


class Shards:
    """The mapped shards of one dump, shared by all its records."""

    _of_dump: ClassVar[weakref.WeakValueDictionary[str, Shards]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()
        #: Paths of shards whose directory was checked: it is not a link.
        self._checked: set[Path] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, root: Path) -> Shards:
        """Return the shards of the dump opened at `root`."""
        shards = cls._of_dump.get(str(root))
        if shards is None:
            shards = cls._of_dump[str(root)] = cls()
        return shards

    def map(self, path: Path) -> Shard:
        """Map a shard, or return the existing mapping if the file has not changed.

        Raises CorruptDump if it is missing or not a regular file, ReadError if it cannot be mapped.
        """
        try:
            if isinstance(path, StoredPath):
                return StoredShard(path)
            if path not in self._checked:
                if stat.S_ISLNK(os.lstat(path.parent).st_mode):
                    raise CorruptDump("its directory is a link, which could lead out of the dump", path=path)
                self._checked.add(path)
            status = regular_status(path, follow_links=False)
            # The system does not reuse the inode number of a file as long as it is mapped.
            key = (status.st_dev, status.st_ino)
            with self._lock:
                mapped = self._maps.get(key)
                # If the size changed, map again: access to mapped memory beyond the end of the file kills the process.
                if mapped is None or len(mapped) != status.st_size:
                    mapped = self._maps[key] = _map_file(path)
                    while len(self._maps) > _MOST_MAPPED:
                        self._maps.popitem(last=False)
                self._maps.move_to_end(key)
            return mapped
        except FileNotFoundError:
            raise CorruptDump(
                "the shard is missing",
                path=path,
                hint="records of later steps may read from the shards of earlier ones",
            ) from None
        except NotRegularFile:
            raise CorruptDump("the shard is not a regular file", path=path, hint="links are not followed") from None
        except StorageError:
            raise
        except OSError as error:
            raise ReadError(
                f"the shard cannot be mapped: {error.strerror}",
                path=path,
                hint="check its permissions; if too many files are open, keep copies of arrays, not the arrays",
            ) from None


def _map_file(path: Path) -> mmap.mmap:
    # Links are refused here again, because a link may have replaced the shard since its status was read.
    fd = open_descriptor(path, follow_links=False)
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise CorruptDump("the shard is empty", path=path) from None
    finally:
        os.close(fd)


def read_array(mapped: Optional[Shard], region: ShardRegion, record: Record) -> np.ndarray:
    """Return a read-only array: a copy if it is small, else a view of the mapped file.

    Raises CorruptDump if the tensor exceeds its bytes, NotSupported for an unknown dtype.
    """
    import numpy as np

    from ascend_dump.dump_format import numpy_dtype

    dtype = numpy_dtype(region.dtype)
    shape = region.shape
    try:
        if 0 in shape:
            return np.empty(shape, dtype)
        # Strides along axes with one element are never used, but numpy multiplies them, which may overflow.
        strides = tuple(step * dtype.itemsize if n > 1 else dtype.itemsize for n, step in zip(shape, region.strides))
        last = region.offset + sum((n - 1) * step for n, step in zip(shape, strides)) + dtype.itemsize
        end = min(region.end, 0 if mapped is None else len(mapped))
        if len(strides) != len(shape) or min(strides, default=0) < 0 or not 0 <= region.begin <= region.offset:
            raise CorruptDump(
                f"{record.label} has impossible strides or offsets",
                path=record.path,
                offset=region.offset,
                hint="the index does not belong to the shard, or it is damaged",
            )
        if last > end:
            raise CorruptDump(
                f"{record.label} reaches to byte {last}, but its data ends at {end}",
                path=record.path,
                offset=region.offset,
                hint="the file was cut off or the index does not belong to it",
            )
        array: np.ndarray
        if isinstance(mapped, StoredShard):
            array = np.ndarray(shape, dtype, buffer=mapped[region.offset : last], strides=strides)
        else:
            array = np.ndarray(shape, dtype, buffer=mapped, offset=region.offset, strides=strides)
        if array.nbytes <= MOST_COPIED:
            array = array.copy("K")
            array.flags.writeable = False
        return array
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, CorruptDump):
            raise
        raise CorruptDump(
            f"{record.label} has an impossible shape: {error}",
            path=record.path,
            offset=region.offset,
            hint="the index is damaged",
        ) from None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


def refuse_format(record: Record, format: Optional[str]) -> None:
    if format not in (None, "ND"):
        raise NotSupported(
            f"{record} is stored without a device format, so it cannot be converted to {format!r}",
            hint="transpose the array; its layout is the one that the model used",
        )


class LineLoader:
    """The loader of records that were read from lines of an index; the `key` of a record is its line."""

    def __init__(self, root: Path, shards: Shards) -> None:
        # The directory of the steps, because lines may refer to shards of earlier steps.
        self._root = root
        self._shards = shards

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        line: Line = record.key
        refuse_format(record, format)
        mapped = None
        if line.shard:
            if 0 not in line.shape:
                mapped = self._map(record)
        elif line.skipped:
            raise NotSupported(f"{record} was not stored: {line.skipped}", hint="try its statistics()")
        elif line.nbytes:
            raise NotSupported(
                f"{record} holds statistics only", hint="dump with data='full' or data='tensor' to keep values"
            )
        begin, size = line.blob or (line.offset, 0)
        strides = line.stride if line.stored_stride is None else line.stored_stride
        if not strides:
            strides = row_major(line.shape)
        return read_array(
            mapped, ShardRegion(begin, begin + size, line.offset, line.dtype, line.shape, strides), record
        )

    def _map(self, record: Record) -> Shard:
        try:
            return self._shards.map(record.path)
        except CorruptDump as error:
            removed = None if is_there(record.path) else why_removed(self._root / str(record.step))
            raise removed or error from None

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        return content_of(record.key)

    def statistics(self, record: Record) -> Optional[Statistics]:
        line: Line = record.key
        if line.stats is None:
            _refuse_packed(record)
            if line.unmeasured:
                raise NotSupported(
                    f"{record.label} has no statistics: {line.unmeasured[:500]}",
                    hint="try numpy(), which returns its values if the dump has them",
                )
            return None
        types = tuple(map(type, line.stats))
        if types in _valid_types and line.stats[0] >= 0:  # type: ignore[operator]  # a valid count is a number
            return Statistics(*line.stats)  # type: ignore[arg-type]
        values: list[Any] = [_number(value, record) if isinstance(value, str) else value for value in line.stats]
        if not isinstance(values[0], int) or values[0] < 0:
            raise CorruptDump(f"{record.label} has statistics of {values[0]} elements", path=record.path)
        statistics = Statistics(*values)
        for name in COUNTS:
            value = getattr(statistics, name)
            if value is not None and not isinstance(value, int):
                raise CorruptDump(f"{record.label} has statistics that count {value} for {name}", path=record.path)
        if str not in types and len(_valid_types) < _MOST_VALID:
            _valid_types.add(types)
        return statistics


def _refuse_packed(record: Record) -> None:
    from ascend_dump.dump_format import has_values

    if record.dtype is not None and not has_values(record.dtype):
        raise NotSupported(
            f"no statistics are defined for {record.dtype}", hint="numpy() gives the bytes as they are stored"
        )


def _number(value: str, record: Record) -> float:
    if value not in _NONFINITE_TEXTS:
        raise CorruptDump(f"{record.label} has statistics with {value[:40]!r} in them", path=record.path)
    return float(value)
