"""Many ranks on an executor: each rank gives a small table, and what is known of all of them is made of these."""

from ascend_dump.analysis.ranks._partials import Partials, RankTask, map_ranks
from ascend_dump.analysis.ranks._workers import RankWorkers

__all__ = ["Partials", "RankTask", "RankWorkers", "map_ranks"]
