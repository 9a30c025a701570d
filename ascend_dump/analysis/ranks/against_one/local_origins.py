"""Choose among origins at tensors that one rank of several has for itself.

Programs like DiLoCo update the parameters of a rank by its own part of the batch. The gradients and parameters of a
rank differ from those of the whole batch then, until their mean over ranks is taken: these are no origins.

A tensor without a counterpart on the other side is an origin if a parameter that is computed from it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.analysis.alignment.rank_parts.relations import NOT_REDUCED
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.explaining.tracking.missed_updates import MISSED
from ascend_dump.analysis.ranks.collective_calls import point_of

__all__ = ["first_of_local_results", "is_local", "without_local_updates", "without_updates_of_no_rank"]


def without_local_updates(origins: Sequence[Origin], pairs: Iterable[Pair]) -> Sequence[Origin]:
    """Return no origins if all are updates whose mean over ranks agrees, and later steps compute what one rank does.

    A missing reduction is no such update: the parameters that the next step reads differ then.

    pairs: the pairs of all ranks
    """
    are_local = all(
        origin.kind == "parameter" and any(text.endswith(NOT_REDUCED) for text in origin.evidence) for origin in origins
    )
    if not origins or not are_local:
        return origins
    first = min(-1 if origin.step is None else origin.step for origin in origins)
    has_later_step = False
    for pair in pairs:
        if pair.record.phase in ("forward", "backward"):
            if pair.differs:
                return origins
            has_later_step |= (pair.record.step or 0) > first
    return [] if has_later_step else origins


def without_updates_of_no_rank(origins: Sequence[Origin], count: int) -> list[Origin]:
    """Return the origins without updates that none of `count` ranks runs: they update in another way, all alike."""
    ranks: Counter[tuple[str, Optional[int]]] = Counter()
    for origin in origins:
        ranks[origin.op_name, origin.step] += _is_missed(origin)
    return [
        origin for origin in origins if not _is_missed(origin) or ranks[origin.op_name, origin.step] < max(count, 2)
    ]


def _is_missed(origin: Origin) -> bool:
    return any(text.endswith(MISSED) for text in origin.evidence)


def first_of_local_results(origins: Sequence[Origin]) -> Sequence[Origin]:
    """Return the origins with only the first one, over all ranks, of those at tensors without a counterpart.

    It is dropped too if the same or an earlier step has another origin, which is certain. Else differences that are
    first seen in later steps follow from it, and are dropped.
    """
    local = [origin for origin in origins if is_local(origin)]
    if not local:
        return origins
    others = [origin for origin in origins if not is_local(origin)]
    first = min(local, key=_time)
    if any(_time(origin)[0] <= _time(first)[0] for origin in others):
        return others
    of_operator = [
        origin
        for origin in local
        if origin is not first and (origin.op_name, origin.step) == (first.op_name, first.step)
    ]
    return [first, *of_operator, *(origin for origin in others if not origin.first_seen)]


def is_local(origin: Origin) -> bool:
    """Return True for an origin at a tensor of one rank without a counterpart, from which a parameter is computed."""
    pair = origin.pair
    return pair.verdict == "unmatched" and pair.actual is not None and pair.reference is not None


def _time(origin: Origin) -> tuple[int, int]:
    """Return step and position of the operator of an origin. All ranks run one program."""
    point = point_of(origin.pair.record)
    return -1 if origin.step is None else origin.step, -1 if point is None else point.position
