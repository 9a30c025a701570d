"""Compare the weights of two checkpoints or dumps, whatever their names and their layout."""

from __future__ import annotations

from ascend_dump.analysis.weights._compare import compare_weights
from ascend_dump.analysis.weights.comparison import WeightComparison, WeightFinding, WeightPart

__all__ = ["WeightComparison", "WeightFinding", "WeightPart", "compare_weights"]
