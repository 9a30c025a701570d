"""The interface of dialects. A dialect reads one format: it recognises the files of a directory by their names.

A dump is opened by one walk over the tree. Each directory is passed to the dialects in order. A dialect claims the file
names that it knows, and returns an Entry for each of these files that has records, without opening it. An entry opens
its file when its records are requested.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading._record import Record

__all__ = ["Batch", "Dialect", "Directory", "Entry", "WrappedEntry", "rank_of"]

#: The cost of opening a file and reading its header: as much as reading this many lines of an index.
_LINES_OF_A_FILE = 10
_RANK_LEVEL = re.compile(r"worldsize(\d+)_global_rank(\d+)")


class Directory(NamedTuple):
    """One directory of the walk.

    parts  the levels of its absolute path, from the file system's root down
    names  the names of its files that no earlier dialect has claimed
    """

    path: Path
    parts: tuple[str, ...]
    names: Sequence[str]
    #: The opened root: no path read from inside a file may lead out of it.
    root: Path


class Batch:
    """Consecutive records of a file that belong to the same step and rank.

    A dialect can return a subclass that creates its records on access, if that saves memory or time.
    """

    __slots__ = ("_records", "rank", "step")

    def __init__(self, records: Sequence[Record], rank: Optional[int], step: Optional[int]) -> None:
        self._records = records
        self.rank = rank
        self.step = step

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def identities(self) -> Iterable[Optional[Hashable]]:
        """Return one value per record, to recognise equal records of two dumps without creating them.

        Two values are equal only if both records are the same tensor of the same operator, with equal bytes or without
        values for the same reason. None: not known without reading files.
        """
        return [None] * len(self)


class Entry:
    """One file of a dump, with the fields that are in its name and its directory's path.

    None means "not known before opening". `records()` reads the file. For a broken file it does
    not raise, but yields a Record with `error` set, so that the rest of the dump stays readable.
    """

    __slots__ = ("path", "op_type", "op_name", "step", "rank", "device", "model", "run", "order")

    def __init__(
        self,
        path: Path,
        *,
        op_type: Optional[str] = None,
        op_name: Optional[str] = None,
        step: Optional[int] = None,
        rank: Optional[int] = None,
        device: Optional[int] = None,
        model: Optional[str] = None,
        run: Optional[str] = None,
        order: int = 0,
    ) -> None:
        self.path = path
        self.op_type = op_type
        self.op_name = op_name
        self.step = step
        self.rank = rank
        self.device = device
        self.model = model
        self.run = run
        self.order = order  # execution order within a step, such as a timestamp

    @property
    def written_name(self) -> Optional[str]:
        """The operator's name as it is in the file name (such as `_` for each slash); None if `op_name` is known."""
        return None

    @property
    def framework_step(self) -> Optional[int]:
        """The framework's step. It differs from `step` only if `step` is the number of a decorated function's call."""
        return self.step

    @property
    def scene_is_beside(self) -> bool:
        """True if the scene (such as "overflow") is in `Record.attrs`, because this format has no overflow files."""
        return False

    @property
    def is_api_call(self) -> bool:
        """True for a file of an API call on an NPU (`aclnnAdd`). Its kernels have files of their own."""
        return False

    @property
    def path_text(self) -> str:
        """The path as text, for sorting. Subclasses that create `path` on access return it without a Path object."""
        return str(self.path)

    @property
    def tensors_below(self) -> Optional[Path]:
        """The directory of the files with the tensors; None if the tensors are in the file `path` itself."""
        return None

    def records(self) -> Iterable[Record]:
        raise NotImplementedError("a dialect's entry defines how it is read")

    def frames(self) -> Optional[Iterable[polars.DataFrame]]:
        """Return the records as columns of a catalog, if that is faster than through `records()`; else None."""
        return None

    def frames_after(self, shared: dict[str, Any]) -> Optional[Iterable[polars.DataFrame]]:
        """Return the same as `frames`, for a large dump whose entries may resemble each other.

        shared: what entries keep for later ones of the dump, by the name of their dialect
        """
        return self.frames()

    def records_at(self, positions: Collection[int]) -> Iterable[Record]:
        """Yield the records at these positions, in the order of `records()`.

        Negative numbers count the records of `records()`: -1 is the first one, -2 the second. Other numbers are those
        that `frames` of the same class returned in its column PLACE.
        """
        for number, record in enumerate(self.records(), 1):
            if -number in positions:
                yield record

    @property
    def work(self) -> int:
        """The approximate cost of reading the records; the unit is the cost of one line of an index. Opens no file."""
        return _LINES_OF_A_FILE

    def batches(self) -> Optional[Iterable[Batch]]:
        """Return the records in batches that create them on access; None if that has no advantage."""
        return None


class WrappedEntry(Entry):
    """An entry with the fields and records of another entry. Subclasses replace some of its properties or methods."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Entry) -> None:
        super().__init__(
            inner.path,
            op_type=inner.op_type,
            op_name=inner.op_name,
            step=inner.step,
            rank=inner.rank,
            device=inner.device,
            model=inner.model,
            run=inner.run,
            order=inner.order,
        )
        self._inner = inner

    @property
    def framework_step(self) -> Optional[int]:
        return self._inner.framework_step

    @property
    def written_name(self) -> Optional[str]:
        return self._inner.written_name

    @property
    def scene_is_beside(self) -> bool:
        return self._inner.scene_is_beside

    @property
    def is_api_call(self) -> bool:
        return self._inner.is_api_call

    @property
    def path_text(self) -> str:
        return self._inner.path_text

    @property
    def tensors_below(self) -> Optional[Path]:
        return self._inner.tensors_below

    def records(self) -> Iterable[Record]:
        return self._inner.records()


class Dialect(Protocol):
    """A format of dumps on disk.

    Other packages register objects with this interface under the entry point group `ascend_dump.dialects`. Those are
    used after the dialects of this package, in order of their names. `ascend_dump.reading` exports all names that they
    need.
    """

    #: Its name in messages.
    name: str

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        """Return the entries of this directory, and the names in it that the dialect claims. Opens no file.

        Claimed names are not passed to later dialects. A dialect may also claim files without records, such as a log.
        """


def rank_of(parts: Sequence[str]) -> Optional[int]:
    """Return the global rank from the level `worldsizeN_global_rankR` of a path; None if there is none."""
    for part in parts:
        match = _RANK_LEVEL.fullmatch(part)
        if match:
            return int(match[2])
    return None


def world_size_of(parts: Sequence[str]) -> Optional[int]:
    """Return the number of ranks from the level `worldsizeN_global_rankR` of a path; None if there is none."""
    sizes = (_RANK_LEVEL.fullmatch(part) for part in parts)
    return next((int(match[1]) for match in sizes if match), None)
