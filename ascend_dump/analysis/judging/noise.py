"""Judge an output that differs: is the difference its own rounding, or the effect of noise in its inputs?

Cheap tests come first. Tests that read inputs, or run the operator again, are for differences that the others reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Optional

from ascend_dump.analysis.judging.discrete_operators import why_both_are_right
from ascend_dump.analysis.judging.elementwise import follows_inputs, measure_without_outliers
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

__all__ = ["NoiseJudge"]

#: Larger tensors are not judged element by element: copies of them in float64 would take gigabytes.
_MOST_ELEMENTS = 1 << 26
#: Returns why both outputs of a pair are right for their inputs; None if they are not.
Settle = Callable[[Match, Record, Record], Optional[str]]


class NoiseJudge:
    """Judges inputs and outputs by the rules, a second run of the reference, and runs of the operators on this host."""

    def __init__(self, rules: Rules, settle: Optional[Settle] = None) -> None:
        self._rules = rules
        self._settle = settle
        #: A second run of the reference, for the current step.
        self.spread: Optional[Spread] = None
        #: Ranks have different parts of the current inputs on each side, so elements have no partner at their index.
        self.of_parts = False

    def of_input(self, match: Match, a: Record, b: Record, difference: Difference) -> tuple[str, str]:
        """Return the verdict on an input that no recorded operator produced, and the reason."""
        assert difference.measure is not None
        rules = self._rules.of(match.reference.op_name, match.reference.op_type)
        return self._adjusted(difference, judge(difference.measure, type_of(a, b), rules, cast=difference.cast), b)

    def of_output(
        self,
        match: Match,
        a: Record,
        b: Record,
        difference: Difference,
        input_noise: Sequence[InputNoise],
        *,
        clean: bool,
    ) -> tuple[str, str]:
        """Return the verdict on an output, and the reason. clean: no input differs by more than noise."""
        operator = match.reference
        assert difference.measure is not None
        dtype = rounding_type(operator, b) if rounds_as_inputs(operator.op_type) else type_of(a, b)

        def judged(measured: Measure, scale: float = 0.0, scores: float = 1.0) -> tuple[str, str]:
            noise = _noise_in(operator, input_noise, measured, scale, exact=float_kind(dtype) is None)
            judge_measure = partial(judge_output, operator, b, measured, dtype, self._rules, cast=difference.cast)
            return self._adjusted(difference, judge_measure(noise=noise, scale=scale, scores=scores), b)

        verdict, reason = judged(difference.measure)
        if verdict == "different" and not difference.measure.nonfinite:
            # The tests below read tensors, so they are for differences only.
            scale, scores = natural_scale(operator, b), score_size(operator)
            if scale > difference.measure.rms or scores > 1:
                verdict, reason = judged(difference.measure, scale, scores)
        # In another layout, or on another rank, an element has its partner at another index.
        elements = clean and not difference.bounds and not self.of_parts and difference.layout == IDENTITY
        if verdict == "different" and elements:
            settled = self._settled(match, a, b, dtype, input_noise)
            if settled is not None:
                verdict, reason = "noise", settled
        # An input with larger differences than rounding is no noise, even if some of its elements are outliers.
        if verdict == "different" and input_noise and elements:
            unit = max(noise.unit for noise in input_noise)
            remainder = measure_without_outliers(a, b, _input_pairs(match, b), unit)
            if remainder is not None:
                measured, count = remainder
                verdict, reason = judged(measured)
                if verdict == "noise":
                    reason = f"{count} elements are rounding alone in its inputs already, the others {reason}"
        if verdict == "different" and self._settle is not None and clean and not input_noise and not difference.bounds:
            settled = self._settle(match, a, b)
            if settled is not None:
                verdict, reason = "noise", settled
        return verdict, reason

    def _settled(
        self, match: Match, a: Record, b: Record, dtype: str, input_noise: Sequence[InputNoise]
    ) -> Optional[str]:
        """Return why a difference is rounding, decided element by element; None if it is not."""
        if math.prod(b.shape or ()) > _MOST_ELEMENTS:
            return None
        kind = float_kind(dtype)
        both_right = why_both_are_right(match, a, b) if kind is None or not input_noise else None
        if kind is None or both_right is not None:
            return both_right
        if input_noise and keeps_relative_errors(match.reference.op_type):
            unit = max(kind.unit, *(noise.unit for noise in input_noise))
            if follows_inputs(a, b, _input_pairs(match, b), self._rules.gain, unit):
                return "each element is as far off, relative to its size, as its inputs are"
        if not input_noise:
            measured = measure_terms(match.reference, a, b, dtype)
            if measured is not None:
                rules = self._rules
                verdict, reason = judge_output(match.reference, b, measured, dtype, rules, scale=1.0)
                return f"{reason}, of the terms of each element" if verdict == "noise" else None
        return None

    def _adjusted(self, difference: Difference, verdict: tuple[str, str], reference: Record) -> tuple[str, str]:
        """Adjust the verdict for lower bounds and for a second run of the reference."""
        measured = difference.measure
        if verdict[0] == "different" and measured is not None and self.spread is not None:
            reason = self.spread.covers(measured, reference)
            if reason is not None:
                verdict = ("noise", reason)
        if not difference.bounds or measured is None:
            return verdict
        if verdict[0] == "different":
            if measured.nonfinite:
                return verdict
            return "different", f"statistics prove that elements differ by {measured.max_abs:.2g} at least"
        return "undecided", "statistics agree, which cannot prove that the tensors do"


def _input_pairs(match: Match, output: Record) -> list[tuple[Record, Record]]:
    """Return the inputs that an output is computed from element by element; for operators on lists at its own index."""
    pairs = [(a, b) for a, b in match.inputs if a is not None and b is not None and not is_unread(b)]
    if operator_class(match.reference.op_type).startswith("_foreach_"):
        count = max(len(match.reference.outputs), 1)
        pairs = [(a, b) for a, b in pairs if b.index % count == output.index % count]
    return pairs


def _noise_in(operator: Operator, noise: Sequence[InputNoise], output: Measure, scale: float, *, exact: bool) -> Noise:
    """Return the effect that the noise of the inputs may have on the output. exact: its type is integer or bool."""
    size = most = each = 0.0
    for source in noise:
        natural = max(output.rms, scale)
        # If a few elements are much larger than the others, so are their errors, in inputs and outputs.
        most += source.measure.max_abs * (max(1.0, natural / source.measure.rms) if source.measure.rms else 1.0)
        if operator_class(operator.op_type) in EXPONENTIALS:
            each += source.measure.max_abs
        if input_scale_matters(operator.op_type):
            # A sum of signed terms: the error stays, the result shrinks.
            share = max(1.0, source.measure.count / max(output.count, 1))
            natural = max(natural, source.measure.rms * math.sqrt(share))
        if exact:
            # Elements that flip in the inputs may flip in the output.
            size += source.measure.share
        # The error of a reference that is all zero has no relative size.
        size += source.error * natural if math.isfinite(source.error) else source.measure.rmse
    return Noise(size, max((source.unit for source in noise), default=0.0), most, each)
