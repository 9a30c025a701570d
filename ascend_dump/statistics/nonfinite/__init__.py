"""NaN and Inf: what counts as wrong, told from statistics; masks of -Inf, which programs make on purpose, do not."""

from __future__ import annotations

from ascend_dump.statistics.nonfinite._judge import Judge, Slot, Wrong
from ascend_dump.statistics.nonfinite._values import has_nan, is_additive_mask, is_nonfinite

__all__ = ["Judge", "Slot", "Wrong", "has_nan", "is_additive_mask", "is_nonfinite"]
