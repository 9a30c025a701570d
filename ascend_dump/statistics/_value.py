"""The value type of the statistics of a tensor."""

from __future__ import annotations

from typing import NamedTuple, Optional

__all__ = ["Statistics"]


class Statistics(NamedTuple):
    """Statistics of a tensor. A value that was not recorded is None.

    count       number of elements
    max, min    maximum and minimum of the elements that are not NaN; None if all are NaN; int for integers
    mean, l2norm  mean and Euclidean norm by IEEE rules: NaN or Inf elements make them NaN or Inf
    nan, posinf, neginf   number of NaN, +Inf and -Inf
    zero, poszero, negzero   number of zeros, of +0.0 and of -0.0 (integers have only +0)
    variance, skewness, kurtosis   computed only if requested: the second central moment, and the third and fourth in
                units of the standard deviation (kurtosis is 3 for a normal distribution). All three are NaN if an
                element is NaN or Inf; skewness and kurtosis are NaN if all elements are equal

    >>> Statistics(2, max=3.0, min=1.0).mean is None
    True
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
    variance: Optional[float] = None
    skewness: Optional[float] = None
    kurtosis: Optional[float] = None
