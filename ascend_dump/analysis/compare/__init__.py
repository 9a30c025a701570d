"""Compare two dumps: find the first operator that went wrong."""

from ascend_dump.analysis.compare._compare import compare
from ascend_dump.analysis.compare._comparison import SUFFIXES, Comparison
from ascend_dump.analysis.compare._surroundings import Surrounding
from ascend_dump.analysis.explaining.results import KINDS, ChangedCall, Crossing, Origin, Pair
from ascend_dump.analysis.judging.rules import rules_of
from ascend_dump.analysis.judging.verdict import Rules, judge, worst
from ascend_dump.analysis.numerics.measure import Measure, measure

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
    "Surrounding",
    "compare",
    "judge",
    "measure",
    "rules_of",
    "worst",
]
