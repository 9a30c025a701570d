"""What a dialect is: it recognises files of one directory and turns them into entries.

A dump is opened by one walk over the tree. Each directory is offered to the dialects in
order; a dialect claims the names it knows and returns an Entry for each of them, looking at
names only. An entry opens its file when its records are asked for, not before.
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

#: Opening a file and reading its header takes as long as so many lines of an index.
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
    """Some records of one step on one rank, as they follow each other in one file.

    A dialect whose records cost much more than what they are made of gives a subclass, which makes them when they are
    asked for.
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
        """Of each record what one of another dump shares only if it is the same tensor of the same operator, with the
        same bytes or without a value for the same reason; None where nothing tells without more work."""
        return [None] * len(self)


class Entry:
    """One file (or index) of a dump, with what its name and place already say.

    None means "not known before opening". `records()` reads it: it never raises for a broken
    file, it yields a Record with `error` set, so that the rest of the dump stays readable.
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
        """The op name as CANN writes it into file names, where `op_name` is not known before opening."""
        return None

    @property
    def framework_step(self) -> Optional[int]:
        """What the framework counted, where `step` is a call of a decorated function."""
        return self.step

    @property
    def scene_is_beside(self) -> bool:
        """Whether the scene stands in `Record.attrs` only, because this layout has no overflow files."""
        return False

    @property
    def path_text(self) -> str:
        """The path as text, to sort by."""
        return str(self.path)

    @property
    def tensors_below(self) -> Optional[Path]:
        """The directory that has the tensors of its records, where they are in other files than `path`."""
        return None

    def records(self) -> Iterable[Record]:
        raise NotImplementedError("a dialect's entry defines how it is read")

    def frames(self) -> Optional[Iterable[polars.DataFrame]]:
        """The same as columns of a catalog, where that is faster than through records; None where it is not."""
        return None

    def records_at(self, places: Collection[int]) -> Iterable[Record]:
        """The records at some places, in their order: -1 is the first one of `records()`, -2 the second.

        Other numbers are what `frames` of the same class gave as places.
        """
        for number, record in enumerate(self.records(), 1):
            if -number in places:
                yield record

    @property
    def work(self) -> int:
        """What reading its records takes, as a number of lines of an index, roughly. Opens nothing."""
        return _LINES_OF_A_FILE

    def batches(self) -> Optional[Iterable[Batch]]:
        """The same in batches that make a Record when it is asked for; None where that saves nothing."""
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
    def path_text(self) -> str:
        return self._inner.path_text

    @property
    def tensors_below(self) -> Optional[Path]:
        return self._inner.tensors_below

    def records(self) -> Iterable[Record]:
        return self._inner.records()


class Dialect(Protocol):
    """One way of laying a dump out on disk.

    Other packages register theirs under the entry point group `ascend_dump.dialects`, as objects of this form. They
    are asked after those of this package, in the order of their names. `ascend_dump.reading` has all that one needs.
    """

    #: As messages name it.
    name: str

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        """The entries of this directory, and the names in it that they cover. Opens no file.

        Names that are covered are shown to no other dialect; names of no entry may be among them, such as a log's.
        """


def rank_of(parts: Sequence[str]) -> Optional[int]:
    """The global rank from the `worldsizeN_global_rankR` level, None where there is none."""
    for part in parts:
        found = _RANK_LEVEL.fullmatch(part)
        if found:
            return int(found[2])
    return None
