"""Judge operators in the order they ran: did they produce NaN or Inf? Masks do not count."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite._values import has_nan, is_additive_mask, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING, Part, is_mask, moves, plain_name, rule_of

__all__ = ["Judge", "Slot", "Wrong"]

#: They return -Inf for 0. Programs select it away later (relative positions), else it becomes NaN or +Inf.
_LOGARITHMS = frozenset(("log", "log2", "log10"))
#: Contents of masks that are remembered; beyond that they are forgotten together.
_MOST = 1 << 16


class Slot(NamedTuple):
    """One tensor of an operator: its statistics, and a key that is equal for equal bytes. Both are None if unknown."""

    statistics: Optional[Statistics]
    content: Optional[Hashable] = None


class Wrong(NamedTuple):
    """The fault in the outputs of an operator: "NaN", "Inf" or "-Inf", and the position of the first output with it."""

    what: str
    output: int


class Judge:
    """A judge of operators, called in the order they ran.

    NaN in an output is always wrong. Inf is right if a rule about masks applies, if the tensor has only 0 and -Inf, if
    it comes from inputs that are such masks, or if it is the logarithm of 0.
    """

    def __init__(self) -> None:
        #: Contents of masks that were seen.
        self._masks: set[Hashable] = set()

    def look_at(self, op_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Optional[Wrong]:
        """Return the fault of an operator; None if no fault is known.

        For an operator without recorded outputs the inputs are judged; Inf in a mask is no fault there.
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
        """Return True if outputs with Inf and without NaN are those of a mask. positive: +Inf is among them."""
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
            return False  # it returned more than its inputs have
        carried = [slot for slot in known_slots if slot.statistics is not None and is_nonfinite(slot.statistics)]
        if not carried or not all(self._is_known(slot) for slot in carried):
            return False
        # It may overflow by itself beside what it carries.
        return not positive or sum(slot.infinite for slot in parts) <= sum(_part(slot).infinite for slot in carried)

    def _is_known(self, slot: Slot) -> bool:
        """Return True if this is a mask by its look or its content."""
        if slot.statistics is not None and is_additive_mask(slot.statistics):
            return True
        return slot.content is not None and slot.content in self._masks


def _holds_inf(statistics: Statistics) -> bool:
    if statistics.posinf is not None:
        return statistics.posinf > 0
    return statistics.max == float("inf")


def _part(slot: Slot) -> Part:
    statistics = slot.statistics
    assert statistics is not None, "only what is known is asked for"
    if has_nan(statistics) or (None in (statistics.neginf, statistics.posinf) and is_nonfinite(statistics)):
        return Part(statistics.count, None)
    return Part(statistics.count, statistics.neginf or 0, statistics.posinf or 0)
