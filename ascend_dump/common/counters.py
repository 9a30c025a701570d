"""The counters that a capture reports when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

__all__ = ["Tally"]


class Tally(NamedTuple):
    """The counters of a capture.

    steps, operators, records  numbers on disk; only steps with records are counted
    seen       bytes of the tensors of all records, including records that `keep=` removed. Fewer bytes are on disk,
               because each distinct tensor is stored once
    begun      number of recorded steps, including removed steps and steps without records
    took       duration of these steps in seconds, including the recording; None: not measured
    cost       seconds of recording in these steps; None: not measured
    limit      the default limit of bytes on disk; None: the user has set a limit, or bytes are not counted
    cut        True if the capture stopped before an optimizer ended the last step (`options={"step": "optimizer"}`)
    in_memory  the most records in memory at a time, of steps that were not written yet (`keep=` without tensors)
    """

    steps: int
    operators: int
    records: int
    seen: int
    begun: int
    took: Optional[float] = None
    cost: Optional[float] = None
    limit: Optional[int] = None
    cut: bool = False
    in_memory: int = 0

    @classmethod
    def of_all(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the sums of several counters. A sum of seconds is None if one of its terms is None.

        `limit` is taken from the first counter.

        >>> Tally.of_all([Tally(1, 4, 9, 100, 1), Tally(2, 5, 12, 50, 2)])[:5]
        (3, 9, 21, 150, 3)
        """
        each = list(tallies)
        return cls(
            steps=sum(tally.steps for tally in each),
            operators=sum(tally.operators for tally in each),
            records=sum(tally.records for tally in each),
            seen=sum(tally.seen for tally in each),
            begun=sum(tally.begun for tally in each),
            took=_sum([tally.took for tally in each]),
            cost=_sum([tally.cost for tally in each]),
            limit=each[0].limit if each else None,
            cut=any(tally.cut for tally in each),
            in_memory=sum(tally.in_memory for tally in each),
        )


def _sum(seconds: list[Optional[float]]) -> Optional[float]:
    measured = [value for value in seconds if value is not None]
    return sum(measured) if len(measured) == len(seconds) else None
