"""Compare two dumps: which operator is the first that went wrong."""

from ascend_dump.analysis.compare._compare import compare
from ascend_dump.analysis.compare._comparison import SUFFIXES, Comparison
from ascend_dump.analysis.compare._measure import Measure, measure
from ascend_dump.analysis.compare._result import KINDS, ChangedCall, Crossing, Origin, Pair
from ascend_dump.analysis.compare._rules import rules_of
from ascend_dump.analysis.compare._verdict import Rules, judge, worst

__all__ = [
    "KINDS",
    "SUFFIXES",
    "ChangedCall",
    "Comparison",
    "Crossing",
    "Measure",
    "Origin",
    "Pair",
    "Rules",
    "compare",
    "judge",
    "measure",
    "rules_of",
    "worst",
]
