"""Differences of inputs that are within rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["FOLLOWS_FLIPS", "NO_ORIGINS", "InputNoise", "OriginNumber", "flips_in"]

#: The reason why a tensor is not judged.
FOLLOWS_FLIPS = "it follows from indices or flags that rounding changed"

#: Number of an origin, unique within the walk over a rank.
OriginNumber = int
NO_ORIGINS: frozenset[OriginNumber] = frozenset()


class InputNoise(NamedTuple):
    """A difference within rounding.

    error   relative to the norm
    unit    the coarsest unit of rounding among its possible sources
    causes  the origins that it may be a consequence of
    bounds  the measure has lower bounds, and the error is an upper bound of the noise
    flips   the number of indices and flags that rounding changed, here or in a tensor that this one follows from
    """

    measure: Measure
    error: float
    unit: float
    causes: frozenset[OriginNumber]
    bounds: bool = False
    flips: int = 0


def flips_in(input_noise: Iterable[InputNoise]) -> int:
    """Return the number of indices and flags that rounding changed before an operator."""
    return max((noise.flips for noise in input_noise), default=0)
