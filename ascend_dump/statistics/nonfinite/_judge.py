"""Judge operators one after the other: an operator with NaN or Inf in its outputs is wrong, unless they are a mask."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite._values import has_nan, is_additive_mask, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING, Part, is_mask, moves, plain_name, rule_of

__all__ = ["Judge", "Slot", "Wrong"]

#: Logarithms return -Inf for 0, which is accepted: programs often replace it later (relative positions). If they do
#: not, a later operator produces NaN or +Inf.
_LOGARITHMS = frozenset(("log", "log2", "log10"))
#: Maximum number of contents of masks that are stored. If there are more, all of them are dropped.
_MOST = 1 << 16


class Slot(NamedTuple):
    """An input or output of an operator.

    statistics  None if they are unknown
    content     a key that is equal for equal bytes; None if it is unknown
    """

    statistics: Optional[Statistics]
    content: Optional[Hashable] = None


class Wrong(NamedTuple):
    """The fault of an operator. what: "NaN", "Inf" or "-Inf"; output: the position of the first output with it."""

    what: str
    output: int


class Judge:
    """A judge of operators. `look_at` has to be called in the order of running.

    NaN in an output is always a fault. Inf is no fault if a rule about masks applies (see `masks`), if the tensor has
    only 0 and -Inf, if the Inf comes from inputs that are masks, or if it is the logarithm of 0.
    """

    def __init__(self) -> None:
        #: Contents of masks that were seen.
        self._masks: set[Hashable] = set()

    def look_at(self, op_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Optional[Wrong]:
        """Return the fault of an operator; None if it has no known fault.

        If no outputs are recorded, the inputs are judged instead, and a fault is NaN, or +Inf outside of a mask.
        """
        looked = outputs or inputs
        nonfinite = [
            (number, slot)
            for number, slot in enumerate(looked)
            if slot.statistics is not None and is_nonfinite(slot.statistics)
        ]
        if not nonfinite:
            return None
        positive = None
        for number, slot in nonfinite:
            assert slot.statistics is not None, "it is not finite"
            if has_nan(slot.statistics):
                return Wrong("NaN", number)
            if positive is None and _holds_inf(slot.statistics):
                positive = number
        if outputs:
            if not self._is_mask(op_type, inputs, [slot for _, slot in nonfinite], positive is not None):
                return Wrong("-Inf", nonfinite[0][0]) if positive is None else Wrong("Inf", positive)
        elif any(_holds_inf(slot.statistics) and not self._is_known(slot) for _, slot in nonfinite if slot.statistics):
            return Wrong("Inf", positive or 0)
        if len(self._masks) > _MOST:
            self._masks.clear()
        self._masks.update(slot.content for _, slot in nonfinite if slot.content is not None)
        return None

    def _is_mask(self, op_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot], positive: bool) -> bool:
        """Return True if outputs with Inf and without NaN are masks, and no fault. positive: True if they have +Inf."""
        if plain_name(op_type) in FILLING or all(self._is_known(slot) for slot in outputs):
            return True
        known_slots = [slot for slot in inputs if slot.statistics is not None]
        if not known_slots:
            return moves(op_type) or (rule_of(op_type) is not None and not positive)
        if plain_name(op_type) in _LOGARITHMS and not positive:
            zeros = [slot.statistics.zero for slot in known_slots if slot.statistics is not None]
            return None in zeros or sum(zero or 0 for zero in zeros) >= sum(
                _part(slot).negative or 0 for slot in outputs
            )
        parts = [_part(slot) for slot in outputs]
        if is_mask(op_type, False, map(_part, known_slots), False, parts):
            return True
        if rule_of(op_type) is not None and len(known_slots) == len(inputs):
            return False  # it has more Inf in its outputs than in its inputs
        carried = [slot for slot in known_slots if slot.statistics is not None and is_nonfinite(slot.statistics)]
        if not carried or not all(self._is_known(slot) for slot in carried):
            return False
        # Inf comes from masks in the inputs. If there is +Inf, the outputs must not have more Inf than these inputs:
        # the operator itself may have overflowed too.
        return not positive or sum(slot.infinite for slot in parts) <= sum(_part(slot).infinite for slot in carried)

    def _is_known(self, slot: Slot) -> bool:
        """Return True if a tensor has only 0 and -Inf, or the same content as a mask that was seen before."""
        if slot.statistics is not None and is_additive_mask(slot.statistics):
            return True
        return slot.content is not None and slot.content in self._masks


def _holds_inf(statistics: Statistics) -> bool:
    if statistics.posinf is not None:
        return statistics.posinf > 0
    return statistics.max == float("inf")


def _part(slot: Slot) -> Part:
    statistics = slot.statistics
    assert statistics is not None, "callers leave out slots without statistics"
    if has_nan(statistics) or (None in (statistics.neginf, statistics.posinf) and is_nonfinite(statistics)):
        return Part(statistics.count, None)
    return Part(statistics.count, statistics.neginf or 0, statistics.posinf or 0)
