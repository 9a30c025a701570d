"""Find NaN and Inf in statistics, also in statistics that do not count them."""

from __future__ import annotations

import math

from ascend_dump.statistics import Statistics

__all__ = ["has_nan", "is_additive_mask", "is_nonfinite"]


def is_nonfinite(statistics: Statistics) -> bool:
    """Return True if the statistics show NaN or Inf."""
    nan, posinf, neginf = statistics.nan, statistics.posinf, statistics.neginf
    if nan is not None or posinf is not None or neginf is not None:
        return bool(nan or posinf or neginf)
    # Without counts, NaN and Inf show in the computed values.
    computed = (statistics.max, statistics.min, statistics.mean)
    return any(value is not None and not math.isfinite(value) for value in computed)


def has_nan(statistics: Statistics) -> bool:
    """Return True if the statistics show NaN."""
    if statistics.nan is not None:
        return statistics.nan > 0
    computed = (statistics.max, statistics.min, statistics.mean, statistics.l2norm)
    return any(value is not None and math.isnan(value) for value in computed)


def is_additive_mask(statistics: Statistics) -> bool:
    """Return True if all elements are 0 or -Inf, and both occur."""
    if statistics.nan or statistics.posinf or not statistics.neginf or not statistics.zero:
        return False
    return statistics.neginf + statistics.zero == statistics.count
