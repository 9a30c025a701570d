"""The value type of the statistics of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

__all__ = ["COUNTS", "STATISTIC_NAMES", "Statistics", "merged"]


class Statistics(NamedTuple):
    """Statistics of a tensor. A value that the source did not record is None.

    count       number of elements
    max, min    over the elements that are not NaN (None if there are none); int for integers
    mean, l2norm  by IEEE rules: NaN or Inf elements make them NaN or Inf
    nan, posinf, neginf   number of NaN, +Inf, -Inf elements
    zero, poszero, negzero   number of zeros, of +0.0 and of -0.0 (integers have only +0)

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


#: Its fields that are counts of elements.
COUNTS = ("count", "nan", "posinf", "neginf", "zero", "poszero", "negzero")
#: Its fields that can be requested separately.
STATISTIC_NAMES: tuple[str, ...] = Statistics._fields[1:]


def merged(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of a tensor from those of its parts: counts and extremes exactly, mean and norm up to
    rounding.

    A field that is None in one part is None.

    >>> merged([Statistics(2, max=3.0, nan=0), Statistics(4, max=1.0, nan=1)])[:2]
    (6, 3.0)
    """

    def every(name: str) -> Optional[list[Any]]:
        values = [getattr(part, name) for part in parts if part.count]
        return None if None in values or not values else values

    count = sum(part.count for part in parts)
    fields: dict[str, Any] = {}
    for name in ("nan", "posinf", "neginf", "zero", "poszero", "negzero"):
        numbers = every(name)
        fields[name] = None if numbers is None else sum(numbers)
    for name, worst in (("max", max), ("min", min)):
        # A part with NaN only has no extremes.
        numbers = [getattr(part, name) for part in parts if part.count and part.nan != part.count]
        fields[name] = None if None in numbers or not numbers else worst(numbers)
    means, norms = every("mean"), every("l2norm")
    sizes = [part.count for part in parts if part.count]
    # NaN and Inf propagate as in a sum; math.fsum and math.hypot treat them differently.
    add = math.fsum if all(map(math.isfinite, [*(means or ()), *(norms or ())])) else sum
    fields["mean"] = None if means is None else add(m * n for m, n in zip(means, sizes)) / count
    fields["l2norm"] = None if norms is None else math.hypot(*norms) if add is math.fsum else sum(norms)
    return Statistics(count, **fields)
