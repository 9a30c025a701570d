"""Judge the numbers of a pair: may rounding have made this difference?

Let d = actual - reference. In the rounding envelope every |d| is at most 2u|reference| + (8 sqrt(K) a + i u)
rms(reference). Here u is the unit of rounding of the type, and a the unit of rounding of the accumulator (float32, or
float64 for float64). K is the number of terms summed for an element, and i the number of roundings in between: 1.5 for
types of at most 16 bits, whose kernels may keep intermediate results in the type, else 0.

If more than 1 % of the elements differ, d must not be biased either. It is biased if differences of one sign exceed
those of the other sign by more than 6 standard deviations, and the mean of d is larger than approximated functions and
long sums explain. `tests/benchmarks/bench_calibration.py` contains the measurements behind these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind
from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["ORDER", "Rules", "judge", "worst"]

#: Verdicts from the best to the worst.
ORDER = ("equal", "noise", "undecided", "unmatched", "structure", "different", "unreadable")


class Rules(NamedTuple):
    """The thresholds of a comparison.

    envelope    largest difference of an element, in standard deviations of a sum's rounding error
    terms       K, if neither type nor shapes of an operator determine it
    drift       largest surplus of differences of one sign over differences of the other sign, in standard deviations
    steps       rounding error of intermediate results in types of at most 16 bits, in units of rounding (i above)
    bias        relative bias, in units of rounding, that implementations of one function may have: for types of at most
                16 bits (which round similar values alike), and for others
    gain        factor by which an operator may amplify the relative error of its inputs
    ceiling     the relative error (Euclidean) above which a difference is never noise, in units of sqrt(u)
    flips       the largest share of indices and flags that noise in the inputs may change
    undefined   indices of further outputs that the operator leaves unset, see `undefined_outputs`; only for a glob
    special     globs of operator names or types, each with rules of its own
    """

    envelope: float = 8.0
    terms: int = 1024
    drift: float = 6.0
    steps: float = 1.5
    bias: tuple[float, float] = (1.0, 4.0)
    gain: float = 16.0
    ceiling: float = 1.0
    flips: float = 0.01
    undefined: tuple[int, ...] = ()
    special: tuple[tuple[str, Rules], ...] = ()

    def of(self, *names: str) -> Rules:
        """Return the rules of the last glob that matches a name or type of an operator; else the general rules."""
        for glob, rules in reversed(self.special):
            if any(fnmatchcase(name, glob) for name in names):
                return rules
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the rules as plain values: the general rules, and for each glob the rules that differ from them."""
        general = self._asdict()
        del general["special"]
        for glob, rules in self.special:
            general[glob] = {name: value for name, value in rules._asdict().items() if value != getattr(self, name)}
            general[glob].pop("special", None)
        return general


class Noise(NamedTuple):
    """The effect that noise in the inputs of an operator may have on its output.

    size    root mean square of the noise in the output
    unit    coarsest unit of rounding among the possible sources of the noise
    most    largest noise of one element
    each    largest noise of one element, relative to the element
    """

    size: float = 0.0
    unit: float = 0.0
    most: float = 0.0
    each: float = 0.0


_NO_NOISE = Noise()
#: The largest relative error of a sum, however long it is.
_MOST_SUMMED = 0.25
#: Units of rounding, relative to each element, by which it may differ if the inputs have noise.
_LAST_PLACES = 32


def judge(
    measure: Measure,
    dtype: str,
    rules: Rules,
    *,
    terms: Optional[int] = None,
    own_type: bool = False,
    between: float = 1.0,
    noise: Noise = _NO_NOISE,
    scale: float = 0.0,
    cast: bool = False,
    constant: bool = False,
) -> tuple[str, str]:
    """Return the verdict on two tensors of one dtype and shape, and the reason.

    terms       number of terms summed for an element (at least 64 is assumed)
    own_type    the kernel may accumulate term by term in the type of the tensor
    between     factor on `rules.steps`, for types of at most 16 bits
    noise       the effect that noise in the inputs of the operator may have on the output
    scale       the rms that the output would have if its terms did not cancel
    cast        one side was computed in a finer type: equal values are rounded alike, so differences may be biased
    constant    elements are computed with a number that kernels may round to the type of the tensor
    """
    if measure.nonfinite:
        return "different", f"{measure.nonfinite} of {measure.count} elements are NaN or Inf on one side only"
    if not measure.unequal:
        return "noise", "equal values, different bits (another dtype, -0.0, bits of NaN)"
    kind = float_kind(dtype)
    if kind is None:
        return _judge_exact(measure, rules, noise)
    length = max(terms if terms is not None else rules.terms, 64)
    allowance = _allowance(measure, kind, rules, length, own_type=own_type, between=between, scale=scale)
    if noise.size:
        return _judge_with_noise(measure, rules, allowance, noise)
    is_narrow = kind.mantissa <= 10
    # For an element much larger than the others, intermediate roundings are relative to its own size.
    is_last_place = between > 1 and is_narrow and measure.max_rel <= (2 + between * rules.steps) * kind.unit
    size = allowance.size
    if allowance.excess > allowance.error * size and not is_last_place:
        times = allowance.excess / (allowance.error * size) if size else 0.0
        by = f" by {times:.3g} times the rounding envelope" if size else ", the reference is all zero"
        return "different", f"one element differs{by} (relative error {measure.rel_l2:.2g})"
    bias = measure.bias * measure.rms / size if size else 0.0
    limit = kind.unit * ((1.0 if cast and is_narrow else rules.bias[0 if is_narrow else 1]) + constant)
    # Subnormal numbers have a larger relative spacing; rounding loses a quarter of the spacing on average.
    limit = max(limit, 0.25 * allowance.smallest_subnormal / size) if size else limit
    # Long sums of similar terms have a bias of their own, so it is no evidence of a difference.
    is_biased = bias > max(limit, allowance.sum_error) and not (own_type and is_narrow)
    if measure.drift > rules.drift and measure.share > 0.01 and is_biased:
        share = f"{measure.share:.0%} of the elements differ"
        return (
            "different",
            f"{share}, mostly in the same direction (bias {measure.bias:.2g}, drift {measure.drift:.3g})",
        )
    return "noise", f"within rounding (relative error {measure.rel_l2:.2g})"


class _Allowance(NamedTuple):
    """The error that rounding alone may cause, and the measured error without the part lost in subnormal numbers.

    unit                unit of rounding of the type
    size                the rms of the output, to which errors are relative
    sum_error           error of sums, relative to `size`
    error               error of sums and of intermediate roundings, relative to `size`
    smallest_subnormal  the smallest subnormal number of the type
    excess, rmse        these numbers of the measure, minus the error that subnormal numbers may cause
    """

    unit: float
    size: float
    sum_error: float
    error: float
    smallest_subnormal: float
    excess: float
    rmse: float


def _allowance(
    measure: Measure, kind: FloatKind, rules: Rules, length: int, *, own_type: bool, between: float, scale: float
) -> _Allowance:
    accumulator = math.ldexp(0.5, -52 if kind.mantissa == 52 else -23)
    roundings = rules.envelope * math.sqrt(length)
    # If similar terms are added one by one, all roundings go the same way: the error grows with K, not with sqrt(K).
    sum_error = min((max(roundings, length) if own_type else roundings) * accumulator, _MOST_SUMMED)
    error = sum_error
    is_narrow = kind.mantissa <= 10
    if is_narrow:
        error += kind.unit * (roundings if own_type else rules.steps * between)
    # Differences below the smallest normal number count as noise.
    smallest = math.ldexp(1.0, kind.lowest - kind.mantissa)
    lost = smallest * ((4 * math.sqrt(length) if own_type else 4) if is_narrow else 1)
    excess, rmse = measure.excess - lost, max(measure.rmse - lost, 0.0)
    return _Allowance(kind.unit, max(measure.rms, scale), sum_error, error, smallest, excess, rmse)


def _judge_exact(measure: Measure, rules: Rules, noise: Noise) -> tuple[str, str]:
    if noise.size and measure.share <= rules.flips:
        return "noise", f"{measure.unequal} of {measure.count} exact elements flip with the noise in the inputs"
    return "different", f"{measure.unequal} of {measure.count} exact elements differ"


def _judge_with_noise(measure: Measure, rules: Rules, allowance: _Allowance, noise: Noise) -> tuple[str, str]:
    """Return the verdict on a difference that noise in the inputs may explain, and the reason."""
    unit, size, error = allowance.unit, allowance.size, allowance.error
    allowed = error * size + rules.gain * noise.size
    ceiling = max(rules.ceiling * math.sqrt(max(unit, noise.unit)) * size, error * size, 4 * noise.size)
    # If a few elements are much larger than the others, differences may be small relative to each element instead.
    most = max(16 * allowed, 4 * noise.most)
    is_within_noise = allowance.excess <= most or measure.max_rel <= max(_LAST_PLACES * unit, 4 * noise.each)
    if allowance.rmse <= min(allowed + 2 * unit * size, ceiling) and is_within_noise:
        return "noise", f"explained by the rounding of the inputs (relative error {measure.rel_l2:.2g})"
    if not is_within_noise and allowance.rmse <= allowed:
        return (
            "different",
            f"one element differs by {measure.max_abs:.2g}; the noise in the inputs explains at most {most:.2g}",
        )
    explained = f"explains at most {min(allowed, ceiling) / size:.2g}" if size else "is smaller"
    return "different", f"relative error {measure.rel_l2:.2g}; the noise in the inputs {explained}"


def worst(verdicts: Sequence[str]) -> str:
    """Return the worst of some verdicts; "unmatched" for none, because nothing was compared."""
    return max(verdicts, key=ORDER.index) if verdicts else "unmatched"
