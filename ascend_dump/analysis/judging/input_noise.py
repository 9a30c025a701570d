"""Differences of inputs that are within rounding."""

from __future__ import annotations

from typing import NamedTuple

from ascend_dump.analysis.numerics.measure import Measure

__all__ = ["NO_ORIGINS", "InputNoise", "OriginNumber"]

#: Identifies an origin while its rank is walked.
OriginNumber = int
NO_ORIGINS: frozenset[OriginNumber] = frozenset()


class InputNoise(NamedTuple):
    """A difference within rounding.

    error   relative to the norm
    unit    the coarsest unit of rounding that it may come from
    causes  the origins whose consequence it may be
    bounds  the measure has lower bounds, and the error is what noise may be at most
    """

    measure: Measure
    error: float
    unit: float
    causes: frozenset[OriginNumber]
    bounds: bool = False
