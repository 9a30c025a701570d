"""Leave out updates by the part of one rank that a later update of the same step replaces, as in DiLoCo.

The inner optimizer of each rank takes the gradients of its part of the batch; the outer one takes the mean of
all their changes. If a rank ends the step with the right parameters, the inner updates were right. Another rank may
still have a wrong outer update.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.rank_parts.relations import NOT_REDUCED
from ascend_dump.analysis.alignment.shards import is_over_ranks
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.ranks.collective_calls import record_key

__all__ = ["after_inner_updates"]


class _Updates:
    """The pairs of a step outside of the forward and the backward pass, on all ranks."""

    def __init__(self) -> None:
        self._ends: dict[tuple[Optional[int], str], bool] = {}
        self._agreeing: set[Hashable] = set()
        self._differing: dict[Optional[int], list[Pair]] = {}

    def add(self, pair: Pair) -> None:
        if pair.actual is None or pair.reference is None or is_over_ranks(pair.transformation):
            return
        agrees = pair.verdict in ("equal", "noise")
        name, rank = pair.reference.parameter, pair.actual.rank
        if name and pair.record.io == "output":
            self._ends[rank, name] = agrees
        if agrees:
            self._agreeing.add(record_key(pair.reference))
        elif pair.verdict == "different" and pair.record.io == "input":
            self._differing.setdefault(rank, []).append(pair)

    def ends(self, name: str) -> dict[Optional[int], bool]:
        """Return for each rank True if its last update of a parameter in the step agrees."""
        return {rank: agrees for (rank, parameter), agrees in self._ends.items() if parameter == name}

    def first_wrong(self, rank: Optional[int]) -> Optional[Pair]:
        """Return the first input of a rank that differs, and that agrees on another rank."""
        pairs = self._differing.get(rank, ())
        return next((pair for pair in pairs if record_key(pair.reference or pair.record) in self._agreeing), None)


def after_inner_updates(origins: Sequence[Origin], pairs: Iterable[Pair]) -> list[Origin]:
    """Return the origins without inner updates. A rank without another origin in the step has one after them.

    pairs: the pairs of all ranks. Actual has several ranks
    """
    steps = {origin.step: _Updates() for origin in origins if _is_inner(origin)}
    for pair in pairs if steps else ():
        if pair.record.phase == "other" and pair.record.step in steps:
            steps[pair.record.step].add(pair)
    remaining: list[Origin] = []
    certain = {(origin.step, origin.rank) for origin in origins if not _is_inner(origin)}
    for origin in origins:
        updates = steps.get(origin.step)
        name = (origin.pair.record.parameter or "").removesuffix(".grad")
        if updates is None or not _is_inner(origin) or True not in updates.ends(name).values():
            remaining.append(origin)
        elif not updates.ends(name).get(origin.rank) and (origin.step, origin.rank) not in certain:
            wrong = updates.first_wrong(origin.rank)
            remaining.append(origin if wrong is None else _at(origin, wrong))
    return remaining


def _is_inner(origin: Origin) -> bool:
    return origin.kind == "parameter" and any(text.endswith(NOT_REDUCED) for text in origin.evidence)


def _at(origin: Origin, pair: Pair) -> Origin:
    evidence = (f"{pair.record.label}: {pair.reason}", "the same tensor agrees on another rank")
    return replace(origin, kind="input", pair=pair, evidence=evidence)
