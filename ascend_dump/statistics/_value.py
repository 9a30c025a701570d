"""Statistics of a tensor as a value."""

from __future__ import annotations

from typing import NamedTuple, Optional

__all__ = ["STATISTIC_NAMES", "Statistics"]


class Statistics(NamedTuple):
    """What one pass over a tensor says. None where the source of the statistics did not say.

    count       number of elements
    max, min    over the elements that are not NaN (None when there is none); int for integers
    mean, l2norm  as IEEE gives them: a NaN or Inf element makes them NaN or Inf
    nan, posinf, neginf   number of NaN, +Inf, -Inf elements
    zero, poszero, negzero   number of zeros, of +0.0 and of -0.0 (integers have only +0)
    """

    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose
    max: Optional[float] = None
    min: Optional[float] = None
    mean: Optional[float] = None
    l2norm: Optional[float] = None
    nan: Optional[int] = None
    posinf: Optional[int] = None
    neginf: Optional[int] = None
    zero: Optional[int] = None
    poszero: Optional[int] = None
    negzero: Optional[int] = None


#: Its fields that can be asked for one by one.
STATISTIC_NAMES: tuple[str, ...] = Statistics._fields[1:]
