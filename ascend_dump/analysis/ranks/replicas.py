"""Tensors that have to be equal on several ranks: parameters of data parallelism, and replicated placements."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.judging.verdict import Rules, judge
from ascend_dump.analysis.numerics.measure import measure
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words, minority
from ascend_dump.analysis.ranks.launches import launches
from ascend_dump.dump_format import Placement
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["Replicas"]


class _Copy(NamedTuple):
    """The copy of one rank, with its content; is_placed: a placement, and not only a parameter, makes it a replica."""

    record: Record
    content: Any
    is_placed: bool


def _is_parameter(name: str) -> bool:
    """Return True if `Record.parameter` is a parameter itself, not its gradient or the state of an optimizer."""
    return bool(name) and " of " not in name and "grad" not in name.split(".")


class Replicas:
    """Gathers tensors that may be replicas, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        #: By run, tensor and part, of each rank.
        self._copies: dict[tuple[Any, ...], dict[int, _Copy]] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """Add the records of one run of an operator."""
        for record in members:
            if record.error is None and record.rank is not None and record.io in ("input", "output"):
                placed = Placement.of(record.attrs)
                of_parameter = record.attrs.get("requires_grad") or (
                    record.io == "output" and _is_parameter(record.parameter or "")
                )
                if placed is None and not of_parameter:
                    continue
                part = () if placed is None else _replicated(placed, record.rank)
                content = None if part is None else content_of_record(record)
                if content is not None:
                    tensor = (record.run, record.model, record.step, record.op_name, record.io, record.index)
                    copies = self._copies.setdefault((*tensor, record.shape, part), {})
                    copies.setdefault(record.rank, _Copy(record, content, placed is not None))

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first tensor of each rank that differs from the others; later ones follow from it."""
        reported: set[int] = set()
        equal: set[Hashable] = set()
        for key, copies in sorted(self._of_launches().items(), key=lambda item: _moment(item[1])):
            contents = {rank: copy.content for rank, copy in copies.items()}
            same_in_each_step = key[:2] + key[3:]
            if len(set(contents.values())) < 2:
                if len(copies) > 1:
                    equal.add(same_in_each_step)
                continue
            is_placed = any(copy.is_placed for copy in copies.values())
            wrong = [rank for rank in minority(contents) if rank not in reported]
            if not wrong or not (is_placed or self._are_replicas(copies, wrong, same_in_each_step in equal)):
                continue
            right = [rank for rank in copies if contents[rank] != contents[wrong[0]]]
            for rank in wrong:
                numbers = _difference(copies[rank].record, copies[right[0]].record)
                if numbers is None:
                    continue  # rounding
                reported.add(rank)
                record = copies[rank].record
                doubt = " (of two ranks either may be wrong)" if len(copies) == 2 else ""
                kind = "replicated by its placement" if is_placed else "a parameter that ranks have in common"
                yield RankFinding(
                    record,
                    f"{record.label} of rank {rank} differs from that of {in_words(right)}, {kind}: {numbers}{doubt}",
                )

    def _of_launches(self) -> dict[tuple[Hashable, ...], dict[int, _Copy]]:
        """Return the copies by launch of the program: its ranks may begin in different seconds."""
        launch = launches((rank, key[0]) for key, copies in self._copies.items() for rank in copies)
        by_launch: dict[tuple[Hashable, ...], dict[int, _Copy]] = {}
        for key, copies in self._copies.items():
            for rank, copy in copies.items():
                by_launch.setdefault((launch[rank, key[0]], *key[1:]), {}).setdefault(rank, copy)
        return by_launch

    def _are_replicas(self, copies: dict[int, _Copy], wrong: Sequence[int], were_equal: bool) -> bool:
        """Return True if a parameter is replicated: it was equal before, or most ranks have the same values.

        A constant of an initialisation proves nothing.
        """
        if were_equal:
            return True
        majority = [copy for rank, copy in copies.items() if rank not in wrong]
        return len(majority) > 1 and not _is_constant(majority[0].record)


def _replicated(placement: Placement, rank: int) -> Optional[tuple[Any, ...]]:
    """Return the key of the ranks with the same part as this one; None if no other rank has it."""
    if not any(axis == "replicate" and size > 1 for axis, size in zip(placement.axes, placement.mesh)):
        return None
    coordinates = placement.coordinates(rank)
    if coordinates is None:
        return None
    part = tuple(-1 if axis == "replicate" else coordinate for axis, coordinate in zip(placement.axes, coordinates))
    return placement.ranks, placement.mesh, placement.axes, part


def _moment(copies: dict[int, _Copy]) -> tuple[int, int]:
    record = next(iter(copies.values())).record
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))


def _is_constant(record: Record) -> bool:
    try:
        statistics = record.statistics()
    except AscendDumpError:
        return True
    return statistics.max is None or statistics.max == statistics.min


def _difference(record: Record, second: Record) -> Optional[str]:
    """Return the difference of two tensors in words; None for rounding."""
    try:
        a, b = record.numpy(), second.numpy()
    except AscendDumpError:
        return "their statistics differ"
    numbers = measure(a, b)
    verdict, _ = judge(numbers, record.dtype or "", Rules())
    if verdict == "noise" and not record.attrs.get("requires_grad"):
        return None
    index = () if numbers.at is None else numbers.at
    return f"{numbers.unequal} of {numbers.count} elements, most at {list(index)}: {a[index]!s} and {b[index]!s}"
