"""Check ranks that compute the parts of a tensor one after the other, as in ring attention, against one rank.

In each round such a rank receives the next part, and runs the same lines of the program. The single rank runs them
once, on the whole tensor. So the results of the rounds are the parts of its result, each once. This holds for what is
received, and for masks and products of it. Other results, such as sums over rounds, are no parts on any rank: nothing
is known about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.ranks.against_one.lines_of_some_ranks import FIRST_SEEN, is_after, time_of
from ascend_dump.analysis.ranks.against_one.whole_tensors import is_near
from ascend_dump.analysis.ranks.collective_calls import operator_key
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["with_parts_in_turn"]


class _Site(NamedTuple):
    """A line of the program in a step of the forward pass that runs an operator."""

    step: Optional[int]
    op_type: str
    source: str
    module: str


class _Rounds(NamedTuple):
    """The results of a rank for the parts of one tensor.

    results  for each round, the number of the first part of these values; None if it is no part
    parts    the same of all parts in their order
    """

    outputs: list[Record]
    results: list[Optional[int]]
    parts: list[int]

    @property
    def are_complete(self) -> bool:
        return Counter(self.results) == Counter(self.parts)

    @property
    def repeat(self) -> bool:
        """True if all results are parts, but some of them are repeated."""
        return None not in self.results and not self.are_complete and len({*self.parts}) == len(self.parts)

    @property
    def missing(self) -> int:
        """The number of parts that are no result."""
        results = Counter(number for number in self.results if number is not None)
        return sum((count for count in (Counter(self.parts) - results).values()), 0)

    @property
    def wrong(self) -> tuple[int, Record]:
        """The number and the result of the first round that has no part, or a part that was there before."""
        missing = Counter(self.parts)
        for number, part in enumerate(self.results):
            if part is None or not missing[part]:
                return number, self.outputs[number]
            missing[part] -= 1
        return 0, self.outputs[0]


def with_parts_in_turn(origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair]) -> list[Origin]:
    """Add the first operator that does not run for all parts, and remove the differences first seen after it.

    records  the records of actual, which has several ranks, in the order of the dump
    pairs    the pairs of all ranks
    """
    seen = [origin for origin in origins if origin.kind in FIRST_SEEN]
    if not seen:
        return list(origins)
    last = max(-1 if origin.step is None else origin.step for origin in seen)
    results: dict[_Site, dict[Optional[int], list[Record]]] = {}
    ranks: set[Optional[int]] = set()
    exchanges = False
    for members in executions(records):
        ranks.add(members[0].rank)
        call = collective_of(members[0])
        exchanges |= call is not None and call[0].kind in ("send", "recv")
        site, output = _site(members[0]), next((record for record in members if record.io == "output"), None)
        if site is not None and output is not None and (site.step or 0) <= last:
            results.setdefault(site, {}).setdefault(members[0].rank, []).append(output)
    if not exchanges or len(ranks) < 2:
        return list(origins)
    wholes: dict[_Site, dict[Hashable, Record]] = {}
    for pair in pairs:
        record = pair.reference
        site = None if record is None else _site(record)
        if record is not None and site is not None and record.io == "output":
            wholes.setdefault(site, {}).setdefault(operator_key(record), record)
    for site, of_ranks in sorted(results.items(), key=lambda item: _moment(item[1])):
        whole = sorted(wholes.get(site, {}).values(), key=lambda record: record.attrs.get("seq", 0))
        if (
            not whole
            or of_ranks.keys() != ranks
            or any(len(made) != len(whole) * len(ranks) for made in of_ranks.values())
        ):
            continue
        wrong = _wrong_rounds(of_ranks, whole)
        changed = None if wrong is None else _with_origin(*wrong, origins)
        if changed is not None:
            return changed
    return list(origins)


def _site(record: Record) -> Optional[_Site]:
    if record.phase != "forward" or not record.source or record.error is not None or "c10d" in record.op_type:
        return None
    return _Site(record.step, record.op_type, record.source, record.module or "")


def _moment(of_ranks: dict[Optional[int], list[Record]]) -> tuple[int, int]:
    record = next(iter(of_ranks.values()))[0]
    return record.step or 0, record.attrs.get("seq", 0)


def _wrong_rounds(
    of_ranks: dict[Optional[int], list[Record]], whole: Sequence[Record]
) -> Optional[tuple[dict[Optional[int], _Rounds], Record]]:
    """Return the rounds of the ranks that do not have all parts of a tensor, and the whole tensor; None if all have."""
    order = sorted(of_ranks, key=lambda rank: -1 if rank is None else rank)
    for number, record in enumerate(whole):
        outputs = [of_ranks[rank][number :: len(whole)] for rank in order]
        try:
            ways = [[_rounds(of_rank, parts) for of_rank, parts in zip(outputs, way)] for way in _ways(outputs, record)]
        except AscendDumpError:
            continue
        ranks = max(ways, key=lambda way: sum(rounds.are_complete for rounds in way), default=[])
        wrong = {rank: rounds for rank, rounds in zip(order, ranks) if not rounds.are_complete}
        # Either most ranks show that the results are parts, or all results are parts, and all ranks repeat some.
        if wrong and (2 * len(wrong) < len(order) or all(rounds.repeat for rounds in ranks)):
            return wrong, record
    return None


def _rounds(outputs: list[Record], parts: Sequence[np.ndarray]) -> _Rounds:
    arrays = [output.numpy() for output in outputs]
    numbers = [next(n for n, earlier in enumerate(parts) if is_near(part, earlier)) for part in parts]
    results = [next((n for n, part in enumerate(parts) if is_near(array, part)), None) for array in arrays]
    return _Rounds(outputs, results, numbers)


def _ways(outputs: Sequence[Sequence[Record]], whole: Record) -> Iterator[list[list[np.ndarray]]]:
    """Yield the parts of a tensor along one axis, for each rank. Along a second axis, each rank has its own part.

    Yield nothing if the shapes do not show that the results may be parts.

    outputs: the results of all ranks
    """
    import numpy as np

    count = len(outputs)
    shape, size = outputs[0][0].shape or (), whole.shape or ()
    axes = [axis for axis, (a, b) in enumerate(zip(shape, size)) if a != b]
    if len(shape) != len(size) or not 1 <= len(axes) <= 2 or any(shape[axis] * count != size[axis] for axis in axes):
        return
    if any(output.shape != shape or output.dtype != whole.dtype for of_rank in outputs for output in of_rank):
        return
    values = whole.numpy()
    for axis in axes:
        own = [values] * count
        for own_axis in (number for number in axes if number != axis):
            own = np.split(values, count, own_axis)
        yield [np.split(array, count, axis) for array in own]


def _with_origin(
    wrong: dict[Optional[int], _Rounds], whole: Record, origins: Sequence[Origin]
) -> Optional[list[Origin]]:
    """Return the origins with one at a round without a part of its own; None if all of them are earlier."""
    rank, rounds = next(iter(wrong.items()))
    number, record = rounds.wrong
    time = time_of(record)
    follow = [origin for origin in origins if time is not None and origin.kind in FIRST_SEEN and is_after(origin, time)]
    if not follow:
        return None
    others = in_words(sorted(member for member in wrong if member is not None and member != rank))
    evidence = [
        f"rank {rank} runs it for one part of {whole.label} after the other, but not for {rounds.missing} of "
        f"{len(rounds.parts)}",
        f"round {number + 1} gives {'no part' if rounds.results[number] is None else 'the part of an earlier round'}",
        *([f"the same on {others}"] if len(wrong) > 1 else []),
        f"{counted(len(follow), 'difference')} first seen later may follow from it",
    ]
    layer = {} if record.module is None else {"layers": record.module}
    first = Origin(
        "structure",
        Pair(record, None, "", 0.0, "unmatched", evidence[0]),
        tuple(evidence),
        max(origin.explains for origin in follow),
        next={**layer, "data": "tensor", "steps": str(record.step), "ranks": str(rank)},
    )
    place = next(index for index, origin in enumerate(origins) if origin is follow[0])
    added = [*origins[:place], first, *origins[place:]]
    return [origin for origin in added if not any(origin is later for later in follow)]
