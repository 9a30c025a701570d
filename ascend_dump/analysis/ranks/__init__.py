"""Analyse many ranks: run a task per rank on any executor, order events in time, and compare tensors between ranks.

Collectives and placements are read from the dump format (`ascend_dump.dump_format.CollectiveCall`, `Placement`).
"""

from ascend_dump.analysis.ranks.collective_calls import CallBook, CallPart
from ascend_dump.analysis.ranks.collective_order import CollectiveOrder
from ascend_dump.analysis.ranks.collective_results import RankFinding, check_call
from ascend_dump.analysis.ranks.extra_operators import ExtraOperators
from ascend_dump.analysis.ranks.gradient_factors import GradientFactors
from ascend_dump.analysis.ranks.index_comparison import IndexComparison, RankOrigin, compare_indexes
from ascend_dump.analysis.ranks.launches import RankRun, launches
from ascend_dump.analysis.ranks.left_out_tensors import LeftOutTensors
from ascend_dump.analysis.ranks.parts import PartPositions, RepeatedParts
from ascend_dump.analysis.ranks.rank_statistics import measured
from ascend_dump.analysis.ranks.rank_tasks import Partials, RankTask, map_ranks
from ascend_dump.analysis.ranks.reductions import WrongReductions
from ascend_dump.analysis.ranks.replicas import Replicas
from ascend_dump.analysis.ranks.settings import (
    ChangedParameters,
    OtherArguments,
    OtherOperators,
    ShardUpdates,
    TensorUpdates,
)
from ascend_dump.analysis.ranks.unreduced_terms import UnreducedTerms
from ascend_dump.analysis.ranks.vector_clocks import Clock, Join, Point, clocks, happens_before
from ascend_dump.analysis.ranks.worker_pool import RankWorkers

__all__ = [
    "CallBook",
    "CallPart",
    "ChangedParameters",
    "Clock",
    "CollectiveOrder",
    "ExtraOperators",
    "GradientFactors",
    "IndexComparison",
    "Join",
    "LeftOutTensors",
    "OtherArguments",
    "OtherOperators",
    "PartPositions",
    "Partials",
    "Point",
    "RankFinding",
    "RankOrigin",
    "RankRun",
    "RankTask",
    "RankWorkers",
    "RepeatedParts",
    "Replicas",
    "ShardUpdates",
    "TensorUpdates",
    "UnreducedTerms",
    "WrongReductions",
    "check_call",
    "clocks",
    "compare_indexes",
    "happens_before",
    "launches",
    "map_ranks",
    "measured",
]
