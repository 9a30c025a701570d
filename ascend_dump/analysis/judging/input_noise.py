"""The noise in an input: a difference between both sides that rounding explains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["FOLLOWS_FLIPS", "NO_ORIGINS", "InputNoise", "OriginNumber", "flips_in"]

#: The reason of the verdict on a tensor that differs because rounding changed indices or flags before it.
FOLLOWS_FLIPS = "it follows from indices or flags that rounding changed"

#: Number of an origin, unique within the walk over a rank.
OriginNumber = int
NO_ORIGINS: frozenset[OriginNumber] = frozenset()


class InputNoise(NamedTuple):
    """A difference of an input that is within rounding.

    measure  the numbers of the difference
    error    norm of the difference, relative to the norm of the tensor
    unit     the coarsest unit of rounding among the possible sources of the difference
    causes   the origins from which the difference may follow
    bounds   the measure has lower bounds, and the error is an upper bound of the noise
    flips    number of indices and flags that rounding changed, in this tensor or in one that it was computed from
    """

    measure: Measure
    error: float
    unit: float
    causes: frozenset[OriginNumber]
    bounds: bool = False
    flips: int = 0


def flips_in(input_noise: Iterable[InputNoise]) -> int:
    """Return the largest number of indices and flags that rounding changed in or before an input of an operator."""
    return max((noise.flips for noise in input_noise), default=0)
