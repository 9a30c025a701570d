"""End a recording before the capture ends: at NaN or Inf (`until=`), or on request of the program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Optional

from ascend_dump.dump_format import NO_VALUES
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import Judge, Slot
from ascend_dump.writing.payload import CHANGED, Item

__all__ = ["Ended", "NonfiniteWatch"]

#: Used for every tensor without NaN and Inf.
_FINITE = Statistics(1, nan=0, posinf=0, neginf=0)
_NO_VALUES = frozenset((*NO_VALUES, CHANGED))


class Ended(NamedTuple):
    """Why the recording ended.

    reason    a sentence, or the reason that the program gave
    step      the last recorded step; None if none had begun
    operator  the tensor with NaN or Inf, such as "fc/addmm_0.output.0"; "" for another reason
    """

    reason: str
    step: Optional[int]
    operator: str = ""


class NonfiniteWatch:
    """Checks records for NaN and Inf as they are written.

    unknown  number of floating-point tensors that could not be checked
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._judge = Judge()

    def look_at(self, items: Sequence[Item]) -> Optional[Ended]:
        """Check the records of one or more operators; those of an operator must be passed together.

        Returns why the recording must end with their step; None if it goes on.
        """
        wrong = False
        for item in items:
            payload = item.payload
            if payload is None:
                skipped = item.line.skipped
                self.unknown += bool(skipped) and skipped not in _NO_VALUES
            else:
                wrong = wrong or (payload.measured is not None and payload.measured.nonfinite is not None)
                self.unknown += bool(payload.unmeasured)
        if not wrong:
            return None
        for _, group in groupby(items, lambda item: (item.line.seq, item.line.op_name)):
            ended = self._of_operator(list(group))
            if ended is not None:
                return ended
        return None

    def _of_operator(self, items: list[Item]) -> Optional[Ended]:
        outputs = [item for item in items if item.line.io == "output"]
        inputs = [item for item in items if item.line.io == "input"]
        line = items[0].line
        wrong = self._judge.look_at(line.op_type, [_slot(item) for item in inputs], [_slot(item) for item in outputs])
        if wrong is None:
            return None
        record = (outputs or inputs)[wrong.output].line
        name = f"{record.op_name}.{record.io}.{record.index}"
        return Ended(f"{wrong.what} in {name}", None, name)


def _slot(item: Item) -> Slot:
    payload = item.payload
    if payload is None or payload.changed or payload.measured is None:
        return Slot(None)
    return Slot(payload.measured.nonfinite or _FINITE, payload.digest)
