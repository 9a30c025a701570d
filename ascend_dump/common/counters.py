"""What a capture has recorded, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

__all__ = ["Tally"]


class Tally(NamedTuple):
    """What a capture has recorded.

    steps, operators, records  that are on disk; a step counts when it has records
    seen      bytes of the tensors of all records, those that were removed since (`keep=`) included. On disk are fewer,
              since each distinct tensor is stored once
    begun     steps that were recorded, whether or not anything of them is on disk
    took      seconds that these steps took, recording included, None: nobody has looked
    cost      seconds of them that recording took, None: nobody has looked
    limit     bytes that may be on disk, where the user has set no bound, None: he has, or nothing counts them
    cut       whether the capture stopped before an optimizer ended the last step (`options={"step": "optimizer"}`)
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

    @classmethod
    def of_all(cls, tallies: Iterable[Tally]) -> Tally:
        """All of them together; seconds are known where all are.

        >>> Tally.of_all([Tally(1, 4, 9, 100, 1), Tally(2, 5, 12, 50, 2)])
        Tally(steps=3, operators=9, records=21, seen=150, begun=3, took=None, cost=None, limit=None, cut=False)
        """
        each = list(tallies)
        return cls(
            steps=sum(one.steps for one in each),
            operators=sum(one.operators for one in each),
            records=sum(one.records for one in each),
            seen=sum(one.seen for one in each),
            begun=sum(one.begun for one in each),
            took=_sum([one.took for one in each]),
            cost=_sum([one.cost for one in each]),
            limit=each[0].limit if each else None,
            cut=any(one.cut for one in each),
        )


def _sum(seconds: list[Optional[float]]) -> Optional[float]:
    known = [one for one in seconds if one is not None]
    return sum(known) if len(known) == len(seconds) else None
