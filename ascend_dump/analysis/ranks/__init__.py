"""Many ranks: work on each of them on any executor, and what they did together.

Which event came before which, and what has to be the same on ranks and is not, is read from what host dumps tell of
collectives and of placements (`ascend_dump.host.CollectiveCall`, `Placement`).
"""

from ascend_dump.analysis.ranks._calls import CallBook, CallPart
from ascend_dump.analysis.ranks._check import RankFinding, check_call
from ascend_dump.analysis.ranks._index import IndexComparison, RankOrigin, compare_indexes
from ascend_dump.analysis.ranks._launches import RankRun, launches
from ascend_dump.analysis.ranks._measured import measured
from ascend_dump.analysis.ranks._order import Clock, Join, Point, clocks, happens_before
from ascend_dump.analysis.ranks._partials import Partials, RankTask, map_ranks
from ascend_dump.analysis.ranks._replicas import Replicas
from ascend_dump.analysis.ranks._workers import RankWorkers

__all__ = [
    "CallBook",
    "CallPart",
    "Clock",
    "IndexComparison",
    "Join",
    "Partials",
    "Point",
    "RankFinding",
    "RankOrigin",
    "RankRun",
    "RankTask",
    "RankWorkers",
    "Replicas",
    "check_call",
    "clocks",
    "compare_indexes",
    "happens_before",
    "launches",
    "map_ranks",
    "measured",
]
