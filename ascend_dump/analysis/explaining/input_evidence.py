"""What the inputs of an operator prove of an output that differs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import InputNoise
from ascend_dump.analysis.operators.arguments import tensors_among
from ascend_dump.analysis.operators.properties import NO_INPUTS, operator_class
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.same_framework import Match

__all__ = ["KnownInputs", "inputs_of", "is_compared"]


class KnownInputs(NamedTuple):
    """What is known of the inputs of an operator whose output differs.

    known     how many it has, as far as the dumps tell
    compared  how many of these could be compared
    unread    how many could not be read
    whole     whether there are no others
    hidden    whether it has inputs of which no record and no argument tells
    noise     those that differ by rounding
    """

    known: int
    compared: int
    unread: int
    whole: bool
    hidden: bool
    noise: list[InputNoise]

    @property
    def may_differ(self) -> bool:
        """Whether nothing speaks against it that the difference came in by them."""
        return self.hidden or self.unread > 0 or (self.known > 0 and not self.compared and not self.noise)

    @property
    def evidence(self) -> list[str]:
        if self.compared == self.known and not self.noise:
            if self.known == 1:
                return ["its recorded input is equal"]
            return [f"all {self.known} recorded inputs are equal" if self.known else "no inputs are recorded"]
        found = []
        if not self.compared:
            none = f"none of its {self.known} inputs could be compared"
            found.append("its only input could not be compared" if self.known == 1 else none)
        elif self.compared < self.known:
            equal = "" if self.noise else ", and these are equal"
            found.append(f"{self.compared} of its {self.known} inputs could be compared{equal}")
        if self.statistics_agree:
            found.append("statistics of its inputs agree")
        elif self.noise:
            found.append(f"its inputs differ by rounding only (at most {self.largest_error:.2g})")
        return found

    @property
    def unread_evidence(self) -> list[str]:
        return [f"{self.unread} of its inputs could not be read"] if self.unread else []

    @property
    def statistics_agree(self) -> bool:
        """Whether nothing else is known of what differs by rounding."""
        return bool(self.noise) and all(one.bounds for one in self.noise)

    @property
    def largest_error(self) -> float:
        return max(one.error for one in self.noise)


def inputs_of(match: Match, given: Sequence[Pair], written: Collection[int], noise: list[InputNoise]) -> KnownInputs:
    """given: the pairs of inputs; written: the places of inputs whose values do not matter."""
    records = (*match.actual.broken, *match.reference.broken)
    ignored = {*written, *(one.index for one in (*records, *(pair.record for pair in given)) if is_unread(one))}
    broken = {one.index for one in records if one.io == "input"} - ignored
    places = set(broken)
    called = [tensors_among(one) for one in (match.actual, match.reference)]
    if match.tensors is None:
        places.update(one.index for sides in match.inputs for one in sides if one is not None)
        places.update(*(one for one in called if one is not None))
    else:
        # Between frameworks, places say nothing.
        places.update(range(len(match.inputs) + max(map(len, match.unpaired_inputs))))
    compared = sum(map(is_compared, given))
    unread = sum(one.verdict == "unreadable" and one.record.index not in ignored for one in given) + len(broken)
    known = max(len(places - ignored), compared)
    whole = compared == known and (known > 0 or None not in called)
    hidden = known == 0 and None in called and operator_class(match.reference.op_type) not in NO_INPUTS
    return KnownInputs(known, compared, unread, whole, hidden, noise)


def is_compared(pair: Pair) -> bool:
    return pair.verdict not in ("unmatched", "unreadable")
