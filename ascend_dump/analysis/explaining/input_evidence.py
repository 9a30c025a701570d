"""Describe what the inputs of an operator prove about an output that differs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import InputNoise
from ascend_dump.analysis.operators.arguments import tensors_among
from ascend_dump.analysis.operators.properties import NO_INPUTS
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["InputEvidence", "inputs_of", "is_compared"]


class InputEvidence(NamedTuple):
    """The inputs of an operator whose output differs.

    recorded     number of inputs, as far as the dumps record them
    compared     number of inputs that were compared
    unread       number of inputs that could not be read
    is_complete  all inputs were compared
    has_hidden   the operator may have inputs that the dump records neither as tensors nor as arguments
    noise        the differences of the inputs that are within rounding
    """

    recorded: int
    compared: int
    unread: int
    is_complete: bool
    has_hidden: bool
    noise: list[InputNoise]

    @property
    def may_differ(self) -> bool:
        """True if the inputs may differ already."""
        return self.has_hidden or self.unread > 0 or (self.recorded > 0 and not self.compared and not self.noise)

    @property
    def evidence(self) -> list[str]:
        if self.compared == self.recorded and not self.noise:
            if self.recorded == 1:
                return ["its recorded input is equal"]
            return [f"all {self.recorded} recorded inputs are equal" if self.recorded else "no inputs are recorded"]
        lines = []
        if not self.compared:
            none = f"none of its {self.recorded} inputs could be compared"
            lines.append("its only input could not be compared" if self.recorded == 1 else none)
        elif self.compared < self.recorded:
            equal = "" if self.noise else ", and these are equal"
            lines.append(f"{self.compared} of its {self.recorded} inputs could be compared{equal}")
        if self.statistics_agree:
            lines.append("statistics of its inputs agree")
        elif self.noise:
            most = f" (at most {self.largest_error:.2g})" if self.largest_error else ""
            lines.append(f"its inputs differ by rounding only{most}")
        return lines

    @property
    def unread_evidence(self) -> list[str]:
        return [f"{self.unread} of its inputs could not be read"] if self.unread else []

    @property
    def statistics_agree(self) -> bool:
        """True if the noise is known from statistics only."""
        return bool(self.noise) and all(noise.bounds for noise in self.noise)

    @property
    def largest_error(self) -> float:
        return max(noise.error for noise in self.noise)


def inputs_of(match: Match, pairs: Sequence[Pair], written: Collection[int], noise: list[InputNoise]) -> InputEvidence:
    """Return the evidence of the inputs.

    pairs    the pairs of the inputs
    written  indices of inputs that are only overwritten
    noise    differences of the inputs within rounding
    """
    records = (*match.actual.broken, *match.reference.broken)
    candidates = (*records, *(pair.record for pair in pairs))
    ignored = {*written, *(record.index for record in candidates if is_unread(record))}
    broken = {record.index for record in records if record.io == "input"} - ignored
    indices = set(broken)
    arguments = [tensors_among(operator) for operator in (match.actual, match.reference)]
    if match.tensors is None:
        indices.update(record.index for sides in match.inputs for record in sides if record is not None)
        indices.update(*(tensors for tensors in arguments if tensors is not None))
    else:
        # Between frameworks the indices of inputs differ, so only the number of inputs counts.
        indices.update(range(len(match.inputs) + max(map(len, match.unpaired_inputs))))
    compared = sum(map(is_compared, pairs))
    unread = sum(pair.verdict == "unreadable" and pair.record.index not in ignored for pair in pairs) + len(broken)
    recorded = max(len(indices - ignored), compared)
    is_complete = compared == recorded and (recorded > 0 or None not in arguments)
    has_hidden = recorded == 0 and None in arguments and match.reference.function not in NO_INPUTS
    return InputEvidence(recorded, compared, unread, is_complete, has_hidden, noise)


def is_compared(pair: Pair) -> bool:
    return pair.verdict not in ("unmatched", "unreadable")
