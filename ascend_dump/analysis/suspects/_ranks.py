"""Suspects among ranks: results of a collective operator that are to be the same on every rank, and are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import Finder, OperatorRun, SuspectRule
from ascend_dump.reading import Record

__all__ = ["DISAGREEMENT"]

#: Collectives that leave the same on every rank of their group, as parts of the names of their operators.
_SAME = ("allreduce", "all_reduce", "allgather", "all_gather", "broadcast")


class _DisagreementFinder(Finder):
    """Ranks are read one after the other, so results are held against each other at the end."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._results: dict[Any, dict[int, Record]] = {}

    def look_at(self, run: OperatorRun) -> Iterator[tuple[Record, str]]:
        first = run.first
        if first.rank is not None and any(name in first.op_type.lower() for name in _SAME):
            for record in run.records:
                if record.io == "output" and record.attrs.get("hash"):
                    key = (first.run, first.model, first.step, first.op_type, first.op_name, record.index, record.shape)
                    self._results.setdefault(key, {})[first.rank] = record
        return iter(())

    def end(self) -> Iterator[tuple[Record, str]]:
        for ranks in self._results.values():
            contents = Counter(record.attrs["hash"] for record in ranks.values())
            agree = contents.most_common(1)[0][1] if contents else 0
            for rank, record in sorted(ranks.items()):
                # Where every rank stands alone, only two ranks can be no groups of their own.
                if contents[record.attrs["hash"]] == 1 and len(contents) > 1 and (agree > 1 or len(ranks) == 2):
                    others = ", ".join(str(other) for other in sorted(ranks) if other != rank)
                    yield record, f"{record.label} of rank {rank} differs from that of rank {others}"
                    break


def _on_ranks(alike: int) -> tuple[Row, ...]:
    """The result of four ranks, of which the last ones have another content: two and two are two groups."""
    return tuple(
        Row("c10d::allreduce_", "allreduce__0", "output", values(1), rank=rank, hash=f"{rank >= 4 - alike}")
        for rank in range(4)
    )


DISAGREEMENT = SuspectRule(
    "disagreement",
    "a collective operator left something else on one rank than on the others of its group",
    0,
    "no threshold: contents are the same or not",
    _DisagreementFinder,
    trips=_on_ranks(1),
    passes=_on_ranks(2),
)
