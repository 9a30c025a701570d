"""The interface of dialects, which recognise the files of a directory and return entries for them.

A dump is opened by one walk over the tree. Each directory is passed to the dialects in order; a
dialect claims the file names that it knows and returns an Entry for each, without opening a file.
An entry opens its file when its records are requested.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading._record import Record

__all__ = ["Batch", "Dialect", "Directory", "Entry", "WrappedEntry", "rank_of"]

#: The cost of opening a file and reading its header, in lines of an index.
_LINES_OF_A_FILE = 10
_RANK_LEVEL = re.compile(r"worldsize(\d+)_global_rank(\d+)")


class Directory(NamedTuple):
    """One directory of the walk: its path, and the part of it below the opened root."""

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
        """Return a value for each record that is equal in two dumps only for the same tensor of the same operator, with
        equal bytes or without a value for the same reason; None if it cannot be determined cheaply."""
        return [None] * len(self)


class Entry:
    """One file (or index) of a dump, with the fields in its name and directory.

    None means "not known before opening". `records()` reads the file; for a broken file it does
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
        """The op name as CANN writes it into file names, if `op_name` is not known before opening."""
        return None

    @property
    def framework_step(self) -> Optional[int]:
        """The step counted by the framework, if `step` is the number of a call of a decorated function."""
        return self.step

    @property
    def scene_is_beside(self) -> bool:
        """Return True if the scene is in `Record.attrs` only, because this format has no overflow files."""
        return False

    @property
    def is_api_call(self) -> bool:
        """Return True for an API call on an NPU that has its kernels in other files."""
        return False

    @property
    def path_text(self) -> str:
        """The path as text, for sorting."""
        return str(self.path)

    @property
    def tensors_below(self) -> Optional[Path]:
        """The directory with the tensors of its records, if these are in other files than `path`."""
        return None

    def records(self) -> Iterable[Record]:
        raise NotImplementedError("a dialect's entry defines how it is read")

    def frames(self) -> Optional[Iterable[polars.DataFrame]]:
        """Return the records as columns of a catalog, if that is faster than through `records()`; else None."""
        return None

    def records_at(self, positions: Collection[int]) -> Iterable[Record]:
        """Yield the records at these positions, in order: -1 is the first one of `records()`, -2 the second.

        Other numbers are positions returned by `frames` of the same class.
        """
        for number, record in enumerate(self.records(), 1):
            if -number in positions:
                yield record

    @property
    def work(self) -> int:
        """The approximate cost of reading its records, in lines of an index. Opens no file."""
        return _LINES_OF_A_FILE

    def batches(self) -> Optional[Iterable[Batch]]:
        """Return the records in batches that create them on access; None if that has no advantage."""
        return None


class WrappedEntry(Entry):
    """An entry that delegates to another one; a subclass changes some of it."""

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

    Other packages register objects with this interface under the entry point group `ascend_dump.dialects`. They are
    used after the dialects of this package, in order of their names. `ascend_dump.reading` exports all they need.
    """

    #: Its name in messages.
    name: str

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        """Return the entries of this directory, and the names in it that the dialect claims. Opens no file.

        Claimed names are not passed to other dialects; names without an entry, such as that of a log, may be claimed.
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
