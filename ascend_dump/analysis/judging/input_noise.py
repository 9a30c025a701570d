"""Differences of inputs that are within rounding."""

from __future__ import annotations

from typing import NamedTuple

from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["NO_ORIGINS", "InputNoise", "OriginNumber"]

#: Number of an origin, unique within the walk over a rank.
OriginNumber = int
NO_ORIGINS: frozenset[OriginNumber] = frozenset()


class InputNoise(NamedTuple):
    """A difference within rounding.

    error   relative to the norm
    unit    the coarsest unit of rounding among its possible sources
    causes  the origins that it may be a consequence of
    bounds  the measure has lower bounds, and the error is an upper bound of the noise
    """

    measure: Measure
    error: float
    unit: float
    causes: frozenset[OriginNumber]
    bounds: bool = False
