"""The verdict on an output that differs: is it its own rounding, or the effect of noise in its inputs?

Cheap tests come first; those that read inputs, or run the operator again, are for what the others call different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Optional

from ascend_dump.analysis.judging.discrete_operators import why_both_are_right
from ascend_dump.analysis.judging.elementwise import follows_inputs, measure_others
from ascend_dump.analysis.judging.input_noise import InputNoise
from ascend_dump.analysis.judging.output_verdict import judge_output, measure_terms, rounding_type
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.term_magnitude import natural_scale, score_size
from ascend_dump.analysis.judging.verdict import Noise, Rules, judge
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.permutations import IDENTITY
from ascend_dump.analysis.numerics.tensor_pair import Difference, type_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import (
    EXPONENTIALS,
    input_scale_matters,
    keeps_relative_errors,
    operator_class,
    rounds_as_inputs,
)
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.reading import Record

__all__ = ["WithNoise"]

#: Larger tensors are not looked at element by element: copies of them in float64 would take gigabytes.
_MOST_ELEMENTS = 1 << 26


#: Returns why both outputs of a pair are right for their inputs; None where they are not.
Settle = Callable[[Match, Record, Record], Optional[str]]


class WithNoise:
    """Judges inputs and outputs by the rules, a second run of the reference, and runs of the operators on this host."""

    def __init__(self, rules: Rules, settle: Optional[Settle] = None) -> None:
        self._rules = rules
        self._settle = settle
        #: Another run of the reference, of the step at hand.
        self.spread: Optional[Spread] = None
        #: Whether ranks hold other parts of the inputs at hand on each side, so that no element has its partner there.
        self.of_parts = False

    def of_input(self, match: Match, a: Record, b: Record, found: Difference) -> tuple[str, str]:
        """The verdict on an input that no recorded operator produced, and the reason."""
        assert found.measure is not None
        rules = self._rules.of(match.reference.op_name, match.reference.op_type)
        return self._as_known(found, judge(found.measure, type_of(a, b), rules, cast=found.cast), b)

    def of_output(
        self, match: Match, a: Record, b: Record, found: Difference, input_noise: Sequence[InputNoise], *, clean: bool
    ) -> tuple[str, str]:
        """The verdict on an output. clean: no input differs by more than noise."""
        operator = match.reference
        assert found.measure is not None
        dtype = rounding_type(operator, b) if rounds_as_inputs(operator.op_type) else type_of(a, b)

        def said(measured: Measure, scale: float = 0.0, scores: float = 1.0) -> tuple[str, str]:
            noise = _made_of(operator, input_noise, measured, scale, exact=float_kind(dtype) is None)
            judged = partial(judge_output, operator, b, measured, dtype, self._rules)
            return self._as_known(found, judged(noise=noise, scale=scale, scores=scores, cast=found.cast), b)

        verdict, reason = said(found.measure)
        if verdict == "different" and not found.measure.nonfinite:
            # All that follows takes reading, so it is looked at where something differs only.
            scale, scores = natural_scale(operator, b), score_size(operator)
            if scale > found.measure.rms or scores > 1:
                verdict, reason = said(found.measure, scale, scores)
        # In another layout, or of another rank, an element of each side has its partner elsewhere.
        elements = clean and not found.bounds and not self.of_parts and found.layout == IDENTITY
        if verdict == "different" and elements:
            settled = self._settled(match, a, b, dtype, input_noise)
            if settled is not None:
                verdict, reason = "noise", settled
        # An input that differs by more than rounding is no noise, however wild its elements are.
        if verdict == "different" and input_noise and elements:
            unit = max(one.unit for one in input_noise)
            others = measure_others(a, b, _sides_of(match, b), unit)
            if others is not None:
                rest, count = others
                verdict, reason = said(rest)
                if verdict == "noise":
                    reason = f"{count} elements are rounding alone in its inputs already, the others {reason}"
        if verdict == "different" and self._settle is not None and clean and not input_noise and not found.bounds:
            settled = self._settle(match, a, b)
            if settled is not None:
                verdict, reason = "noise", settled
        return verdict, reason

    def _settled(
        self, match: Match, a: Record, b: Record, dtype: str, input_noise: Sequence[InputNoise]
    ) -> Optional[str]:
        """The reason why a difference is rounding, decided element by element; None if it is not."""
        if math.prod(b.shape or ()) > _MOST_ELEMENTS:
            return None
        kind = float_kind(dtype)
        both = why_both_are_right(match, a, b) if kind is None or not input_noise else None
        if kind is None or both is not None:
            return both
        if input_noise and keeps_relative_errors(match.reference.op_type):
            unit = max(kind.unit, *(one.unit for one in input_noise))
            if follows_inputs(a, b, _sides_of(match, b), self._rules.gain, unit):
                return "each element is as far off, relative to its size, as its inputs are"
        if not input_noise:
            apart = measure_terms(match.reference, a, b, dtype)
            if apart is not None:
                rules = self._rules
                verdict, reason = judge_output(match.reference, b, apart, dtype, rules, scale=1.0)
                return f"{reason}, of the terms of each element" if verdict == "noise" else None
        return None

    def _as_known(self, found: Difference, said: tuple[str, str], reference: Record) -> tuple[str, str]:
        """The verdict if the numbers are lower bounds, or if another run of the reference is known."""
        measured = found.measure
        if said[0] == "different" and measured is not None and self.spread is not None:
            reason = self.spread.covers(measured, reference)
            if reason is not None:
                said = ("noise", reason)
        if not found.bounds or measured is None:
            return said
        if said[0] == "different":
            if measured.nonfinite:
                return said
            return "different", f"statistics prove that elements differ by {measured.max_abs:.2g} at least"
        return "undecided", "statistics agree, which cannot prove that the tensors do"


def _sides_of(match: Match, output: Record) -> list[tuple[Record, Record]]:
    """The inputs that an output is computed from element by element; for operators on lists those at the same index."""
    sides = [(a, b) for a, b in match.inputs if a is not None and b is not None and not is_unread(b)]
    if operator_class(match.reference.op_type).startswith("_foreach_"):
        count = max(len(match.reference.outputs), 1)
        sides = [(a, b) for a, b in sides if b.index % count == output.index % count]
    return sides


def _made_of(operator: Operator, noise: Sequence[InputNoise], output: Measure, scale: float, *, exact: bool) -> Noise:
    """The effect that the noise of the inputs may have on the output. exact: its type is integer or bool."""
    size = most = each = 0.0
    for one in noise:
        natural = max(output.rms, scale)
        # Where a few elements are much larger than the others, so are their errors, here as there.
        most += one.measure.max_abs * (max(1.0, natural / one.measure.rms) if one.measure.rms else 1.0)
        if operator_class(operator.op_type) in EXPONENTIALS:
            each += one.measure.max_abs
        if input_scale_matters(operator.op_type):
            # A sum of signed terms: the error stays, the result shrinks.
            share = max(1.0, one.measure.count / max(output.count, 1))
            natural = max(natural, one.measure.rms * math.sqrt(share))
        if exact:
            # What flips in the inputs may flip here.
            size += one.measure.share
        # Of a reference that is all zero an error has no relative size.
        size += one.error * natural if math.isfinite(one.error) else one.measure.rmse
    return Noise(size, max((one.unit for one in noise), default=0.0), most, each)
