"""Judge a tensor that differs: is it explained by the rounding of its operator, or by noise in the inputs?

Cheap tests come first. Tests that read inputs, or run the operator again, are made only if a cheap test says
"different".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import NO_ROUNDING, token_part
from ascend_dump.analysis.judging.discrete_operators import is_wrong, why_both_are_right
from ascend_dump.analysis.judging.elementwise import (
    ElementErrors,
    element_errors,
    measure_without_masks,
    measure_without_outliers,
    most_roundings,
)
from ascend_dump.analysis.judging.input_noise import FOLLOWS_FLIPS, InputNoise, flips_in
from ascend_dump.analysis.judging.moved_elements import why_not_moved, why_other_integers
from ascend_dump.analysis.judging.output_verdict import judge_output, measure_terms, rounding_type
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.term_magnitude import natural_scale, score_size, weight_error
from ascend_dump.analysis.judging.verdict import Noise, Rules, judge
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.narrowed import is_rounded
from ascend_dump.analysis.numerics.permutations import IDENTITY, find_layout
from ascend_dump.analysis.numerics.tensor_pair import Difference, type_of
from ascend_dump.analysis.operators.arguments import numbers_of, tensors_among
from ascend_dump.analysis.operators.names import element_rule, moves_elements, operation
from ascend_dump.analysis.operators.operator import Operator, is_read_for
from ascend_dump.analysis.operators.properties import (
    EXPONENTIALS,
    input_scale_matters,
    rounds_as_inputs,
)
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["NoiseJudge"]

#: Tensors with more elements are not judged element by element: their copies in float64 would take gigabytes.
_MOST_ELEMENTS = 1 << 26
#: The largest noise of an element, if only the root mean square of the noise is known, as a multiple of it.
_MOST_OF_NOISE = 8.0
#: Returns why both outputs of a pair are right for their inputs; None if they are not.
Settle = Callable[[Match, Record, Record], Optional[str]]


class NoiseJudge:
    """Judges inputs and outputs by the rules, by a second run of the reference, and by running operators again."""

    def __init__(self, rules: Rules, settle: Optional[Settle] = None) -> None:
        self._rules = rules
        self._settle = settle
        #: A second run of the reference, for the current step.
        self.spread: Optional[Spread] = None
        #: True if ranks hold other parts of the current inputs in actual than in the reference. Then elements at equal
        #: indices do not correspond.
        self.of_parts = False

    def of_input(
        self,
        a: Record,
        b: Record,
        difference: Difference,
        earlier: Optional[InputNoise] = None,
        rounded_to: Optional[str] = None,
    ) -> tuple[str, str]:
        """Return the verdict on an input that no recorded operator produced, and the reason.

        earlier     the noise of a tensor that it may be computed from by functions that are not recorded
        rounded_to  the type to which one program rounded it, if it was cast back since
        """
        assert difference.measure is not None
        if rounded_to is not None and is_rounded(a, b, rounded_to):
            return "noise", f"equal after rounding to {rounded_to}"
        rules = self._rules.of(b.op_name, b.op_type)
        wrong = why_other_integers(a, b, difference)
        if wrong is not None:
            return self._unless_runs_differ(difference, ("different", wrong), b)
        part = token_part(a)
        rounding = NO_ROUNDING if part is None else part.rounding
        size = rounding.error * difference.measure.rms
        noise = Noise(size, rounding.unit, _MOST_OF_NOISE * size)
        if earlier is not None and not size:
            noise = _added([earlier], difference.measure.rms)
        # The rounding of a score, relative to the score, is the rounding of its weight, relative to 1.
        between = math.sqrt(max(rounding.operators, 1)) * max(map(weight_error, rounding.attending), default=1.0)
        dtype, is_cast = rounded_to or type_of(a, b), difference.cast or rounded_to is not None
        verdict = judge(difference.measure, dtype, rules, cast=is_cast, noise=noise, between=between)
        return self._adjusted(difference, verdict, b)

    def of_border(
        self,
        a: Record,
        b: Record,
        difference: Difference,
        input_noise: Sequence[InputNoise],
        inputs: Sequence[tuple[Optional[Record], ...]],
        makers: Sequence[tuple[Operator, Record]],
        length: int,
        rounded_to: Sequence[str] = (),
    ) -> tuple[str, str]:
        """Return the verdict on a tensor that different operators made on the two sides, and the reason.

        input_noise  the noise of the tensors that these operators read
        inputs       pairs of these tensors: of actual and of the reference, None on a side that does not read it
        makers       the operators whose output is the tensor, with that output
        length       the number of operators in a row, each of which rounds its result
        rounded_to   narrow types in which one program has the values, and that it casts from
        """
        assert difference.measure is not None

        def judged(measured: Measure, scale: float = 0.0) -> tuple[str, str]:
            noise = _added(input_noise, max(measured.rms, scale))
            between = math.sqrt(length)
            rules, dtype = self._rules.of(b.op_name, b.op_type), type_of(a, b)
            verdict = judge(measured, dtype, rules, cast=difference.cast, noise=noise, between=between, scale=scale)
            return self._adjusted(difference, verdict, b)

        wrong = None if input_noise else why_other_integers(a, b, difference)
        if wrong is not None:
            return self._unless_runs_differ(difference, ("different", wrong), b)
        verdict, scale = judged(difference.measure), 0.0
        is_settled = difference.measure.nonfinite or difference.bounds
        # The tests below read tensors, but for the scale, for which statistics of most inputs are enough.
        if verdict[0] == "different" and not is_settled:
            narrow = next((name for name in rounded_to if is_rounded(a, b, name)), None)
            if narrow is not None:
                return "noise", f"equal after rounding to {narrow}"
        if verdict[0] == "different" and not difference.measure.nonfinite:
            scale = max((natural_scale(*maker) for maker in makers), default=0.0)
            if scale > difference.measure.rms:
                verdict = judged(difference.measure, scale)
        kind = float_kind(type_of(a, b))
        if verdict[0] == "noise" and kind is not None and difference.measure.max_rel > most_roundings(kind):
            unmasked = measure_without_masks(a, b)
            verdict, scale = (verdict, scale) if unmasked is None else (judged(unmasked), 0.0)
        if verdict[0] != "different" or is_settled:
            return verdict
        pairs = [(x, y) for x, y in inputs if x is not None and y is not None and x.shape == b.shape]
        if pairs and difference.layout == IDENTITY:
            remainder = measure_without_outliers(a, b, pairs, max(noise.unit for noise in input_noise))
            # If most elements are outliers, the inputs have other elements at these indices.
            if remainder is not None and 2 * remainder[1] <= math.prod(b.shape or ()):
                verdict = judged(remainder[0], scale)
        return verdict

    def of_output(
        self,
        match: Match,
        a: Record,
        b: Record,
        difference: Difference,
        input_noise: Sequence[InputNoise],
        *,
        clean: bool,
        equal: bool,
        rebuilt: bool = False,
    ) -> tuple[str, str]:
        """Return the verdict on an output, and the reason.

        clean    no input differs by more than noise
        equal    all inputs that were compared are equal
        rebuilt  the output is computed from other inputs on both sides, and agrees much better than they do
        """
        operator = match.reference
        assert difference.measure is not None
        dtype = rounding_type(operator, b) if rounds_as_inputs(operator.function) else type_of(a, b)

        def judged(measured: Measure, scale: float = 0.0, scores: float = 1.0) -> tuple[str, str]:
            noise = _noise_in(operator, input_noise, measured, scale, exact=float_kind(dtype) is None)
            judge_measure = partial(judge_output, operator, b, measured, dtype, self._rules, cast=difference.cast)
            return self._adjusted(difference, judge_measure(noise=noise, scale=scale, scores=scores), b)

        is_exact = not input_noise and not self.of_parts and _has_all_inputs(match)
        wrong = why_other_integers(a, b, difference) if is_exact else None
        if wrong is None and is_exact and equal and clean:
            wrong = why_not_moved(operator, a, b, difference)
        if wrong is not None:
            return self._unless_runs_differ(difference, ("different", wrong), b)
        verdict, reason = judged(difference.measure)
        if verdict == "different" and not difference.measure.nonfinite:
            # The tests below read tensors, so they are for differences only.
            scale, scores = natural_scale(operator, b), score_size(operator)
            if scale > difference.measure.rms or scores > 1:
                verdict, reason = judged(difference.measure, scale, scores)
        # In another layout, or on another rank, elements at equal indices do not correspond.
        elements = clean and not difference.bounds and not self.of_parts and difference.layout == IDENTITY
        if elements and math.prod(b.shape or ()) <= _MOST_ELEMENTS:
            verdict, reason = self._by_element(match, a, b, difference, dtype, input_noise, (verdict, reason))
        kind = float_kind(dtype)
        if verdict == "noise" and difference.layout == IDENTITY and not difference.bounds:
            if not clean and not rebuilt:
                verdict, reason = self._unless_elements_differ(match, a, b, difference, dtype, input_noise, reason)
            is_apart = verdict == "noise" and kind is not None and difference.measure.max_rel > most_roundings(kind)
            # Elements that cannot be compared with those that they are computed from are judged without masks.
            is_compared = not rebuilt and _has_all_inputs(match) and not _has_moved_input(match, b)
            if is_apart and not (is_compared and _errors(match, a, b) is not None):
                unmasked = measure_without_masks(a, b)
                verdict, reason = (verdict, reason) if unmasked is None else judged(unmasked)
        # Leaving out outliers is right only if all inputs differ by no more than noise (`elements` includes `clean`).
        if verdict == "different" and input_noise and elements and not _has_moved_input(match, b):
            # Where each element follows from those at its index, outliers are few: their inputs differ by more than the
            # rounding of most inputs. A softmax follows from all scores of a token, of which masks hide the size.
            is_by_element = element_rule(operator.function) is not None
            unit = _unit_of(input_noise) if is_by_element else max(noise.unit for noise in input_noise)
            remainder = measure_without_outliers(a, b, _input_pairs(match, b), unit)
            most = math.prod(b.shape or ()) / (2 if is_by_element else 1)
            if remainder is not None and remainder[1] <= most:
                measured, count = remainder
                verdict, reason = judged(measured)
                if verdict == "noise":
                    reason = f"{count} elements are rounding alone in its inputs already, the others {reason}"
        if verdict == "different" and self._settle is not None and clean and not input_noise and not difference.bounds:
            settled = self._settle(match, a, b)
            if settled is not None:
                verdict, reason = "noise", settled
        if not (clean and flips_in(input_noise)):
            return verdict, reason
        if verdict == "different" and not self._is_proven(match, a, b, difference):
            return "undecided" if difference.bounds else "noise", FOLLOWS_FLIPS
        # After flips, "noise" says little, because any difference may follow from them. So check each side alone.
        if verdict == "noise" and elements and _has_all_inputs(match) and is_wrong(match, a, b):
            return "different", "it is wrong for the inputs of its own side"
        return verdict, reason

    def _is_proven(self, match: Match, a: Record, b: Record, difference: Difference) -> bool:
        """Return True if an output is proven wrong, even if the differences of the inputs are taken into account."""
        if difference.bounds or self.of_parts or difference.layout != IDENTITY or not _has_all_inputs(match):
            return False
        return is_wrong(match, a, b) or self._wrong_elements(match, a, b, type_of(a, b)) is not None

    def _by_element(
        self,
        match: Match,
        a: Record,
        b: Record,
        difference: Difference,
        dtype: str,
        input_noise: Sequence[InputNoise],
        verdict: tuple[str, str],
    ) -> tuple[str, str]:
        """Return the verdict and the reason after comparing each element with the input elements it is computed from.

        verdict: the verdict and the reason so far
        """
        kind, measured = float_kind(dtype), difference.measure
        is_different = verdict[0] == "different"
        if is_different and (kind is None or not input_noise):
            both_right = why_both_are_right(match, a, b)
            if both_right is not None:
                return "noise", both_right
        if kind is None or measured is None or measured.nonfinite:
            return verdict
        rules = self._rules.of(match.reference.op_name, match.reference.op_type)
        if is_different:
            errors = _errors(match, a, b)
            if errors is not None and errors.are_right(rules.gain, max(kind.unit, _unit_of(input_noise))):
                return "noise", "each element is as far off as its inputs are"
        elif measured.max_rel > most_roundings(kind) and _has_all_inputs(match):
            wrong = self._wrong_elements(match, a, b, dtype)
            return verdict if wrong is None else self._unless_runs_differ(difference, ("different", wrong), b)
        if is_different and not input_noise:
            terms = measure_terms(match.reference, a, b, dtype)
            if terms is not None:
                by_terms, reason = judge_output(match.reference, b, terms, dtype, self._rules, scale=1.0)
                if by_terms == "noise":
                    return "noise", f"{reason}, of the terms of each element"
        return verdict

    def _unless_elements_differ(
        self,
        match: Match,
        a: Record,
        b: Record,
        difference: Difference,
        dtype: str,
        input_noise: Sequence[InputNoise],
        reason: str,
    ) -> tuple[str, str]:
        """Return "different" if an element differs by more than rounding and its inputs explain; else "noise".

        This is used for operators with an input that differs by more than noise. A mask that is equal on both sides is
        much larger than other elements, so it can hide their differences in the numbers of the whole tensor.

        reason: the reason of the verdict "noise"
        """
        kind, measured = float_kind(dtype), difference.measure
        if kind is None or measured is None or self.of_parts or math.prod(b.shape or ()) > _MOST_ELEMENTS:
            return "noise", reason
        rules = self._rules.of(match.reference.op_name, match.reference.op_type)
        most = max([most_roundings(kind), *(rules.gain * noise.error for noise in input_noise)])
        errors = _errors(match, a, b) if measured.max_rel > most else None
        why = None if errors is None else errors.why_wrong(most, most, kind)
        return ("noise", reason) if why is None else ("different", why)

    def _wrong_elements(self, match: Match, a: Record, b: Record, dtype: str) -> Optional[str]:
        """Return why elements are wrong, given the input elements that they are computed from; None if they are not."""
        kind = float_kind(dtype)
        errors = _errors(match, a, b)
        if errors is None:
            return None
        rules = self._rules.of(match.reference.op_name, match.reference.op_type)
        most = 0.0 if kind is None else most_roundings(kind) * rules.envelope / Rules().envelope
        return errors.why_wrong(most, rules.gain, kind)

    def _adjusted(self, difference: Difference, verdict: tuple[str, str], reference: Record) -> tuple[str, str]:
        """Return the verdict after a second run of the reference, and lower bounds of statistics, are considered."""
        measured = difference.measure
        verdict = self._unless_runs_differ(difference, verdict, reference)
        if not difference.bounds or measured is None:
            return verdict
        if verdict[0] == "different":
            if measured.nonfinite:
                return verdict
            return "different", f"statistics prove that elements differ by {measured.max_abs:.2g} at least"
        return "undecided", "statistics agree, which cannot prove that the tensors do"

    def _unless_runs_differ(
        self, difference: Difference, verdict: tuple[str, str], reference: Record
    ) -> tuple[str, str]:
        """Return the verdict, or "noise" if two runs of the reference differ as much."""
        if verdict[0] != "different" or difference.measure is None or self.spread is None:
            return verdict
        reason = self.spread.covers(difference.measure, reference)
        return verdict if reason is None else ("noise", reason)


def _errors(match: Match, a: Record, b: Record) -> Optional[ElementErrors]:
    rule = element_rule(match.reference.function)
    errors = None if rule is None else element_errors(a, b, _input_pairs(match, b), rule)
    return None if errors is None else errors._replace(spread=errors.spread * _exponent_of(match.reference))


def _has_moved_input(match: Match, output: Record) -> bool:
    """Return True if an input between two frameworks has its axes in another order, so that elements do not correspond.

    Then the distances of its elements explain nothing: query and key that are swapped change all scores.
    """
    if match.tensors is None:
        return False
    for x, y in match.inputs:
        if x is not None and y is not None and x.shape == y.shape == output.shape:
            try:
                layout = find_layout(x.numpy(), y.numpy())
            except AscendDumpError:  # only statistics are recorded
                continue
            if layout is not None and layout.name != IDENTITY:
                return True
    return False


def _has_all_inputs(match: Match) -> bool:
    """Return True if both operators do the same, and all their inputs are recorded and paired."""
    operators = match.actual, match.reference
    if operation(match.actual.function) != operation(match.reference.function) or any(match.unpaired_inputs):
        return False
    if not match.inputs or not all(a is not None and b is not None for a, b in match.inputs):
        return False
    if any(record.io == "input" for operator in operators for record in operator.broken):
        return False
    recorded = [{record.index for record in operator.inputs} for operator in operators]
    return all((tensors_among(operator) or set()) <= indices for operator, indices in zip(operators, recorded))


def _input_pairs(match: Match, output: Record) -> list[tuple[Record, Record]]:
    """Return the pairs of inputs that an output is computed from element by element."""
    return [
        (a, b)
        for a, b in match.inputs
        if a is not None and b is not None and not is_unread(b) and is_read_for(match.reference, b.index, output.index)
    ]


def _added(noise: Sequence[InputNoise], natural: float) -> Noise:
    """Return the noise in the result of several operators. natural: root mean square of the result's elements."""
    sizes = (source.error * natural if math.isfinite(source.error) else source.measure.rmse for source in noise)
    most = (
        source.measure.max_abs * max(1.0, natural / source.measure.rms if source.measure.rms else 1.0)
        for source in noise
    )
    return Noise(math.hypot(*sizes), max((source.unit for source in noise), default=0.0), sum(most))


def _noise_in(operator: Operator, noise: Sequence[InputNoise], output: Measure, scale: float, *, exact: bool) -> Noise:
    """Return the effect that the noise of the inputs may have on the output. exact: its type is integer or bool."""
    size = most = each = 0.0
    for source in noise:
        natural = max(output.rms, scale)
        # If a few elements are much larger than the others, so are their errors, in inputs and outputs.
        most += source.measure.max_abs * (max(1.0, natural / source.measure.rms) if source.measure.rms else 1.0)
        if operator.function in EXPONENTIALS:
            each += source.measure.max_abs
        if input_scale_matters(operator.function):
            # Terms with different signs cancel: the sum is smaller than its terms, but its error is not.
            share = max(1.0, source.measure.count / max(output.count, 1))
            natural = max(natural, source.measure.rms * math.sqrt(share))
        if source.bounds and moves_elements(operator.function):
            # Elements keep their errors, which may be much larger than the elements of a slice.
            natural = max(natural, source.measure.rms)
        if exact:
            # Elements that flip in the inputs may flip in the output.
            size += source.measure.share
        # The relative error of a reference that is all zero is infinite, so its absolute error is used.
        size += source.error * natural if math.isfinite(source.error) else source.measure.rmse
    size *= _exponent_of(operator)
    return Noise(size, max((source.unit for source in noise), default=0.0), most, each)


def _exponent_of(operator: Operator) -> float:
    """Return the exponent of a power, by which it enlarges relative errors; 1 for others, and for smaller exponents."""
    numbers = (numbers_of(operator) if operator.function == "pow" else None) or ()
    return max([1.0, *map(abs, numbers)])


def _unit_of(input_noise: Sequence[InputNoise]) -> float:
    """Return the unit of rounding of inputs. Tensors of a wide type may follow from the rounding of a narrow type."""
    return max((max(noise.unit, noise.error) for noise in input_noise), default=0.0)
