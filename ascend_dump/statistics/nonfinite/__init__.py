"""Judge from statistics whether NaN and Inf are errors. Masks of -Inf, which programs create on purpose, are none."""

from __future__ import annotations

from ascend_dump.statistics.nonfinite._flow import Flow, FlowTensor
from ascend_dump.statistics.nonfinite._judge import Judge, Slot, Wrong
from ascend_dump.statistics.nonfinite._values import has_nan, is_additive_mask, is_nonfinite

__all__ = ["Flow", "FlowTensor", "Judge", "Slot", "Wrong", "has_nan", "is_additive_mask", "is_nonfinite"]
