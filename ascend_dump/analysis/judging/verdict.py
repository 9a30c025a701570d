"""From the numbers of a pair to its verdict: may rounding have made this difference?

The rounding envelope: every |d| is at most 2u|reference| + (8 sqrt(K) a + i u) rms(reference), where u is the unit of
rounding of the type, a that of the accumulator (float32, or float64 for float64), K the number of terms summed for an
element, and i what kernels round in between (1.5 for types of 16 bits and fewer, whose kernels may keep intermediate
results in them; 0 else). And where more than 1 % of the elements differ, one side is not larger than the other: the
signs of d lean by at most 6 standard deviations, or the bias is below what approximations of functions and long sums
have. `tests/benchmarks/bench_calibration.py` says what these numbers were measured on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["ORDER", "Rules", "judge", "worst"]

#: The verdicts from the best to the worst.
ORDER = ("equal", "noise", "undecided", "unmatched", "structure", "different", "unreadable")


class Rules(NamedTuple):
    """The thresholds of a comparison.

    envelope    how many standard deviations of a sum's rounding error an element may differ
    terms       K, if neither type nor shapes of an operator determine it
    steps       how many units of rounding kernels of narrow types lose in intermediate results
    drift       how far the signs of the differences may lean to one side, in standard deviations
    bias        relative bias, in units of rounding, that implementations of one function may have: for types of at most
                16 bits (which round similar values alike), and for others
    gain        by how much an operator may amplify the relative error of its inputs
    flips       the share of indices and flags that noise in the inputs may change
    undefined   indices of outputs that carry no defined value, besides the known ones; only per glob
    special     globs of operator names or types, each with rules of its own
    ceiling     the relative error (Euclidean) above which a difference is never noise, in units of sqrt(u)
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
        """The rules of an operator by its name and type: those of the last glob that matches, else the general ones."""
        for glob, rules in reversed(self.special):
            if any(fnmatchcase(name, glob) for name in names):
                return rules
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the general rules, and for each glob those that differ."""
        general = self._asdict()
        del general["special"]
        for glob, rules in self.special:
            general[glob] = {name: value for name, value in rules._asdict().items() if value != getattr(self, name)}
            general[glob].pop("special", None)
        return general


class Noise(NamedTuple):
    """The effect that noise in the inputs of an operator may have on its output.

    size    absolute, as a root mean square
    unit    the coarsest unit of rounding that it may come from
    most    absolute, of one element
    each    relative to the size of each element
    """

    size: float = 0.0
    unit: float = 0.0
    most: float = 0.0
    each: float = 0.0


_NO_NOISE = Noise()
#: How many units of rounding each element may be off by, of its own size, where the inputs have noise.
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
    """The verdict on two tensors of one dtype and shape, and the reason in words.

    terms       how many terms are summed for an element (at least 64 is assumed)
    own_type    the kernel may accumulate term by term in the type of the tensor
    between     how many times as many intermediate roundings as usual the kernel has, if its type is narrow
    noise       that of the operator's inputs
    scale       the rms that the output would have if its terms did not cancel
    cast        one side has a finer type: equal values are rounded alike, so signs of the differences may lean
    constant    elements are computed with a number that kernels may round to the type of the tensor
    """
    if measure.nonfinite:
        return "different", f"{measure.nonfinite} of {measure.count} elements are NaN or Inf on one side only"
    if not measure.unequal:
        return "noise", "equal values in other bits (another type, signs of zeros, bits of NaN)"
    kind = float_kind(dtype)
    if kind is None:
        if noise.size and measure.share <= rules.flips:
            return "noise", f"{measure.unequal} of {measure.count} exact elements flip with the noise in the inputs"
        return "different", f"{measure.unequal} of {measure.count} exact elements differ"
    accumulator = math.ldexp(0.5, -52 if kind.mantissa == 52 else -23)
    length = max(terms if terms is not None else rules.terms, 64)
    roundings = rules.envelope * math.sqrt(length)
    # One after the other, sums of alike terms are rounded to one side.
    summed = (max(roundings, length) if own_type else roundings) * accumulator
    floor = summed
    narrow = kind.mantissa <= 10
    if narrow:
        floor += kind.unit * (roundings if own_type else rules.steps * between)
    size = max(measure.rms, scale)
    # Numbers below the smallest normal one are all noise to each other.
    tiny = math.ldexp(1.0, kind.lowest - kind.mantissa)
    lost = tiny * ((4 * math.sqrt(length) if own_type else 4) if narrow else 1)
    over, apart = measure.excess - lost, max(measure.rmse - lost, 0.0)
    if noise.size:
        allowed = floor * size + rules.gain * noise.size
        ceiling = max(rules.ceiling * math.sqrt(max(kind.unit, noise.unit)) * size, floor * size, 4 * noise.size)
        # Where a few elements are much larger than the others, each is held against its own size.
        follows = over <= max(16 * allowed, 4 * noise.most) or measure.max_rel <= max(
            _LAST_PLACES * kind.unit, 4 * noise.each
        )
        if apart <= min(allowed + 2 * kind.unit * size, ceiling) and follows:
            return "noise", f"within what rounding in its inputs makes (relative error {measure.rel_l2:.2g})"
        expected = f"{allowed / size:.2g} expected of" if size else "more than"
        return "different", f"relative error {measure.rel_l2:.2g}, {expected} the noise in its inputs"
    # Of an element that is much larger than the others, roundings in between are relative to its own size.
    each = between > 1 and narrow and measure.max_rel <= (2 + between * rules.steps) * kind.unit
    if over > floor * size and not each:
        times = f"{over / (floor * size):.3g} times" if size else "not at all in"
        return "different", f"an element is {times} the rounding envelope (relative error {measure.rel_l2:.2g})"
    bias = measure.bias * measure.rms / size if size else 0.0
    limit = kind.unit * ((1.0 if cast and narrow else rules.bias[0 if narrow else 1]) + constant)
    # Below the smallest normal number the unit is larger, relative to the numbers; a quarter of it is lost on average.
    limit = max(limit, 0.25 * tiny / size) if size else limit
    # Errors of long sums of alike terms lean the same way.
    biased = bias > max(limit, summed) and not (own_type and narrow)
    if measure.drift > rules.drift and measure.share > 0.01 and biased:
        where = f"{measure.share:.0%} of the elements differ"
        return "different", f"{where} and lean to one side (bias {measure.bias:.2g}, drift {measure.drift:.3g})"
    return "noise", f"within rounding (relative error {measure.rel_l2:.2g})"


def worst(verdicts: Sequence[str]) -> str:
    """The worst of some verdicts; "unmatched" for none, because nothing was compared."""
    return max(verdicts, key=ORDER.index) if verdicts else "unmatched"
