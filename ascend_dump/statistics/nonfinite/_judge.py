"""Whether a step produced NaN or Inf: operators in the order they ran; masks and what carries them do not count."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite._values import has_nan, is_additive_mask, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING, Part, is_mask, moves, plain_name, rule_of

__all__ = ["Judge", "Slot", "Wrong"]

#: They give -Inf of 0. Programs select it away behind them (relative positions), else NaN or +Inf comes of it.
_LOGARITHMS = frozenset(("log", "log2", "log10"))
#: Contents of masks that are remembered; beyond that they are forgotten together.
_MOST = 1 << 16


class Slot(NamedTuple):
    """One tensor of an operator: its statistics, None where nobody knows its values, and what equal bytes have in
    common, None where that is not known."""

    statistics: Optional[Statistics]
    content: Optional[Hashable] = None


class Wrong(NamedTuple):
    """What is wrong with the outputs of an operator: "NaN", "Inf" or "-Inf", and the position of the first such one."""

    what: str
    output: int


class Judge:
    """Looks at operators in the order they ran.

    NaN in an output is always wrong. Inf is not where a rule about masks holds, where the tensor holds nothing but 0
    and -Inf, where it came with inputs that are such masks, or where it is the logarithm of 0.
    """

    def __init__(self) -> None:
        #: Contents of masks that were seen.
        self._masks: set[Hashable] = set()

    def look_at(self, op_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Optional[Wrong]:
        """What is wrong with an operator, None where nothing is known to be.

        Of an operator without recorded outputs the inputs are looked at; there Inf says nothing where it is a mask's.
        """
        looked = outputs or inputs
        found = [
            (at, one) for at, one in enumerate(looked) if one.statistics is not None and is_nonfinite(one.statistics)
        ]
        if not found:
            return None
        positive = None
        for at, one in found:
            assert one.statistics is not None, "it is not finite"
            if has_nan(one.statistics):
                return Wrong("NaN", at)
            if positive is None and _holds_inf(one.statistics):
                positive = at
        if outputs:
            if not self._is_mask(op_type, inputs, [one for _, one in found], positive is not None):
                return Wrong("-Inf", found[0][0]) if positive is None else Wrong("Inf", positive)
        elif any(_holds_inf(one.statistics) and not self._is_known(one) for _, one in found if one.statistics):
            return Wrong("Inf", positive or 0)
        if len(self._masks) > _MOST:
            self._masks.clear()
        self._masks.update(one.content for _, one in found if one.content is not None)
        return None

    def _is_mask(self, op_type: str, inputs: Sequence[Slot], made: Sequence[Slot], positive: bool) -> bool:
        """Return True if outputs with Inf, without NaN, are those of a mask. positive: +Inf is among them."""
        if plain_name(op_type) in FILLING or all(self._is_known(one) for one in made):
            return True
        known = [one for one in inputs if one.statistics is not None]
        if not known:
            return moves(op_type) or (rule_of(op_type) is not None and not positive)
        if plain_name(op_type) in _LOGARITHMS and not positive:
            zeros = [one.statistics.zero for one in known if one.statistics is not None]
            return None in zeros or sum(zero or 0 for zero in zeros) >= sum(_part(one).negative or 0 for one in made)
        parts = [_part(one) for one in made]
        if is_mask(op_type, False, map(_part, known), False, parts):
            return True
        if rule_of(op_type) is not None and len(known) == len(inputs):
            return False  # it gave more than it was given
        carried = [one for one in known if one.statistics is not None and is_nonfinite(one.statistics)]
        if not carried or not all(self._is_known(one) for one in carried):
            return False
        # It may overflow by itself beside what it carries.
        return not positive or sum(one.infinite for one in parts) <= sum(_part(one).infinite for one in carried)

    def _is_known(self, one: Slot) -> bool:
        """Return True if this is a mask by its look or its content."""
        if one.statistics is not None and is_additive_mask(one.statistics):
            return True
        return one.content is not None and one.content in self._masks


def _holds_inf(found: Statistics) -> bool:
    if found.posinf is not None:
        return found.posinf > 0
    return found.max == float("inf")


def _part(one: Slot) -> Part:
    found = one.statistics
    assert found is not None, "only what is known is asked for"
    if has_nan(found) or (None in (found.neginf, found.posinf) and is_nonfinite(found)):
        return Part(found.count, None)
    return Part(found.count, found.neginf or 0, found.posinf or 0)
