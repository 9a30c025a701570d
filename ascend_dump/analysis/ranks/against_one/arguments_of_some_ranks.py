"""Put an operator that few ranks call with another argument before the differences that follow from it.

If several ranks are compared with one, many results of a rank have no counterpart, such as a part of all gradients in
one flat buffer. There, a wrong argument is first seen where a parameter of the next step differs. But the single rank
runs the same operator, and most ranks call it with the same argument as the single rank.

Integers may be sizes and indices of the part that a rank has. They count only if all ranks pass the same tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments
from ascend_dump.analysis.operators.operator import operators
from ascend_dump.analysis.ranks.against_one.lines_of_some_ranks import FIRST_SEEN, is_after, time_of
from ascend_dump.analysis.ranks.collective_calls import operator_key
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.common.units import counted

__all__ = ["with_arguments_of_some_ranks"]


class _RankCall(NamedTuple):
    """The pairs of an operator on one rank."""

    pairs: list[Pair]

    @property
    def differing(self) -> list[DifferingArgument]:
        sides = [
            operators([record]) for record in (self.pairs[0].actual, self.pairs[0].reference) if record is not None
        ]
        [actual], [reference] = sides
        return differing_arguments(actual, reference)

    @property
    def input(self) -> Optional[Hashable]:
        """The content of the first input of actual; None if it is unknown."""
        inputs = (pair.actual for pair in self.pairs if pair.record.io == "input")
        return next((record.content for record in inputs if record is not None), None)

    @property
    def wrong_output(self) -> Optional[Pair]:
        """The first output that does not agree with the single rank; None if all agree."""
        outputs = (pair for pair in self.pairs if pair.record.io == "output")
        return next((pair for pair in outputs if pair.verdict not in ("equal", "noise")), None)


def with_arguments_of_some_ranks(origins: Sequence[Origin], pairs: Iterable[Pair]) -> list[Origin]:
    """Add operators that few ranks call with other arguments, and remove the differences first seen after them.

    Only origins that are first seen at a tensor, and so may have their cause earlier, are replaced.

    pairs: the pairs of all ranks. Actual has several ranks
    """
    remaining = list(origins)
    if not any(origin.kind in FIRST_SEEN for origin in remaining):
        return remaining
    last = max(-1 if origin.step is None else origin.step for origin in remaining)
    calls: dict[Hashable, dict[Optional[int], _RankCall]] = {}
    for pair in pairs:
        if pair.actual is None or pair.reference is None or (pair.actual.step or 0) > last:
            continue
        ranks = calls.setdefault(operator_key(pair.reference), {})
        ranks.setdefault(pair.actual.rank, _RankCall([])).pairs.append(pair)
    causes = filter(None, (_origin_of(ranks) for ranks in calls.values() if len(ranks) > 1))
    for cause, time in sorted(causes, key=itemgetter(1)):
        follow = [origin for origin in remaining if origin.kind in FIRST_SEEN and is_after(origin, time)]
        if follow:
            number = next(number for number, origin in enumerate(remaining) if origin is follow[0])
            effect = f"{counted(len(follow), 'difference')} first seen later may follow from it"
            explains = max(origin.explains for origin in follow)
            remaining.insert(number, replace(cause, evidence=(*cause.evidence, effect), explains=explains))
            remaining = [origin for origin in remaining if not any(origin is later for later in follow)]
    return remaining


def _origin_of(ranks: dict[Optional[int], _RankCall]) -> Optional[tuple[Origin, tuple[int, int]]]:
    """Return the origin, and its time, if few ranks call an operator with another argument; else None."""
    if all(call.wrong_output is None for call in ranks.values()):
        return None
    differing = {rank: arguments for rank, call in ranks.items() if (arguments := call.differing)}
    agreeing = [rank for rank in ranks if rank not in differing]
    if not differing or len(differing) > len(agreeing):
        return None
    rank, [argument, *_] = next(iter(differing.items()))
    pair = ranks[rank].wrong_output
    if argument.is_rounding or pair is None:
        return None
    inputs = {call.input for call in ranks.values()}
    if argument.is_integer and (len(differing) == len(agreeing) or len(inputs) > 1 or None in inputs):
        return None
    time = time_of(pair.record)
    if time is None:
        return None
    named = in_words(sorted(agreeing_rank for agreeing_rank in agreeing if agreeing_rank is not None))
    record = pair.record
    layer = {} if record.module is None else {"layers": record.module}
    settings = {**layer, "data": "tensor", "steps": str(record.step), "ranks": str(rank)}
    evidence = (f"rank {rank}: {argument.text}", f"{named} pass what the reference passes")
    return Origin("structure", pair, evidence, next=settings), time
