"""Tensors that several ranks hold alike: parameters of data parallelism, and what a placement says is replicated."""

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
    """What one rank holds of a tensor, by what it can be told apart; told: by a placement, not by being a parameter."""

    record: Record
    content: Any
    told: bool


def _is_parameter(name: str) -> bool:
    """Whether `Record.parameter` is a parameter itself, and not its gradient or what an optimizer keeps for it."""
    return bool(name) and " of " not in name and "grad" not in name.split(".")


class Replicas:
    """Gathers what several ranks may hold alike, operator by operator in the order that a dump has them."""

    def __init__(self) -> None:
        #: By run and place, of each rank.
        self._copies: dict[tuple[Any, ...], dict[int, _Copy]] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """The records of one run of an operator."""
        for record in members:
            if record.error is None and record.rank is not None and record.io in ("input", "output"):
                placed = Placement.of(record.attrs)
                of_parameter = record.attrs.get("requires_grad") or (
                    record.io == "output" and _is_parameter(record.parameter or "")
                )
                if placed is None and not of_parameter:
                    continue
                place = () if placed is None else _replicated(placed, record.rank)
                content = None if place is None else content_of_record(record)
                if content is not None:
                    where = (record.run, record.model, record.step, record.op_name, record.io, record.index)
                    copies = self._copies.setdefault((*where, record.shape, place), {})
                    copies.setdefault(record.rank, _Copy(record, content, placed is not None))

    def findings(self) -> Iterator[RankFinding]:
        """Of each rank the first tensor that it holds otherwise than the others; what comes later follows from it."""
        seen: set[int] = set()
        equal: set[Hashable] = set()
        for key, copies in sorted(self._of_launches().items(), key=lambda one: _moment(one[1])):
            contents = {rank: copy.content for rank, copy in copies.items()}
            same_in_each_step = key[:2] + key[3:]
            if len(set(contents.values())) < 2:
                if len(copies) > 1:
                    equal.add(same_in_each_step)
                continue
            told = any(copy.told for copy in copies.values())
            wrong = [rank for rank in minority(contents) if rank not in seen]
            if not wrong or not (told or self._are_replicas(copies, wrong, same_in_each_step in equal)):
                continue
            right = [rank for rank in copies if contents[rank] != contents[wrong[0]]]
            for rank in wrong:
                numbers = _difference(copies[rank].record, copies[right[0]].record)
                if numbers is None:
                    continue  # rounding
                seen.add(rank)
                record = copies[rank].record
                doubt = " (two ranks do not tell which of them is right)" if len(copies) == 2 else ""
                what = "replicated by its placement" if told else "a parameter that they hold alike"
                yield RankFinding(
                    record,
                    f"{record.label} of rank {rank} differs from that of {in_words(right)}, {what}: {numbers}{doubt}",
                )

    def _of_launches(self) -> dict[tuple[Hashable, ...], dict[int, _Copy]]:
        """The copies of one launch of the program together, whatever second its ranks began in."""
        launch = launches((rank, key[0]) for key, copies in self._copies.items() for rank in copies)
        found: dict[tuple[Hashable, ...], dict[int, _Copy]] = {}
        for key, copies in self._copies.items():
            for rank, copy in copies.items():
                found.setdefault((launch[rank, key[0]], *key[1:]), {}).setdefault(rank, copy)
        return found

    def _are_replicas(self, copies: dict[int, _Copy], wrong: Sequence[int], were_equal: bool) -> bool:
        """Whether a parameter is one that ranks hold alike: it was so before, or most of them have it, and not as any
        parameter is that was only initialised."""
        if were_equal:
            return True
        others = [copy for rank, copy in copies.items() if rank not in wrong]
        return len(others) > 1 and not _is_constant(others[0].record)


def _replicated(placement: Placement, rank: int) -> Optional[tuple[Any, ...]]:
    """What the ranks that hold the same part as this one have in common; None where no other holds it."""
    if not any(axis == "replicate" and size > 1 for axis, size in zip(placement.axes, placement.mesh)):
        return None
    found = placement.coordinates(rank)
    if found is None:
        return None
    part = tuple(-1 if axis == "replicate" else at for axis, at in zip(placement.axes, found))
    return placement.ranks, placement.mesh, placement.axes, part


def _moment(copies: dict[int, _Copy]) -> tuple[int, int]:
    record = next(iter(copies.values())).record
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))


def _is_constant(record: Record) -> bool:
    try:
        found = record.statistics()
    except AscendDumpError:
        return True
    return found.max is None or found.max == found.min


def _difference(record: Record, other: Record) -> Optional[str]:
    """By how much two differ, in words; None for rounding."""
    try:
        a, b = record.numpy(), other.numpy()
    except AscendDumpError:
        return "their statistics differ"
    found = measure(a, b)
    verdict, _ = judge(found, record.dtype or "", Rules())
    if verdict == "noise" and not record.attrs.get("requires_grad"):
        return None
    at = () if found.at is None else found.at
    return f"{found.unequal} of {found.count} elements, most at {list(at)}: {a[at]!s} and {b[at]!s}"
