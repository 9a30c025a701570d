"""Find the runs of several ranks that belong to one launch of the program.

Each rank names the directory of a run by the second in which it began. So the names of one launch may differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Optional, TypeVar

__all__ = ["RankRun", "launches", "ranks_of_launches"]

_OfRun = TypeVar("_OfRun")

#: A rank, and its `Record.run`.
RankRun = tuple[int, Optional[str]]

_TIME = re.compile(r"\d{14}", re.ASCII)


def launches(runs: Iterable[RankRun]) -> Mapping[RankRun, Hashable]:
    """Return the launch of the program that each run belongs to.

    If all ranks have equally many runs, the first runs of all ranks belong together, then the second ones, and so on.
    Else a launch ends before the first run, in the order of time, of a rank that already has a run in this launch. Runs
    that are not named by a time belong together if they have the same name.

    >>> launch = launches([(0, "20260101120000"), (1, "20260101120001"), (0, "20260101130000"), (1, "20260101130000")])
    >>> launch[0, "20260101120000"] == launch[1, "20260101120001"] != launch[1, "20260101130000"]
    True
    """
    launch: dict[RankRun, Hashable] = {}
    of_rank: dict[int, list[str]] = defaultdict(list)
    for rank, run in set(runs):
        if run is not None and _TIME.fullmatch(run):
            of_rank[rank].append(run)
        else:
            launch[rank, run] = run
    if len({len(names) for names in of_rank.values()}) == 1:
        for rank, names in of_rank.items():
            launch.update(((rank, run), number) for number, run in enumerate(sorted(names)))
        return launch
    number, ranks = 0, set[int]()
    for run, rank in sorted((run, rank) for rank, names in of_rank.items() for run in names):
        if rank in ranks:
            number, ranks = number + 1, set()
        ranks.add(rank)
        launch[rank, run] = number
    return launch


def ranks_of_launches(runs: Mapping[RankRun, _OfRun]) -> list[dict[int, _OfRun]]:
    """Return for each launch: by rank, the value of its run."""
    launch = launches(runs)
    by_launch: dict[Hashable, dict[int, _OfRun]] = {}
    for (rank, run), of_run in runs.items():
        by_launch.setdefault(launch[rank, run], {})[rank] = of_run
    return [*by_launch.values()]
