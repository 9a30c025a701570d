"""Which runs of several ranks belong together: each rank names its directory by the second in which it began."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Optional

__all__ = ["RankRun", "launches"]

#: A rank, and what `Record.run` says of it.
RankRun = tuple[int, Optional[str]]

_TIME = re.compile(r"\d{14}", re.ASCII)


def launches(runs: Iterable[RankRun]) -> Mapping[RankRun, Hashable]:
    """Of each run what those of one launch of the program have in common.

    Where all ranks have equally many, the first ones belong together, and so on; else a launch begins where a rank
    comes again in the order of time. Runs that are not named by a time belong together by their name.

    >>> found = launches([(0, "20260101120000"), (1, "20260101120001"), (0, "20260101130000"), (1, "20260101130000")])
    >>> found[0, "20260101120000"] == found[1, "20260101120001"] != found[1, "20260101130000"]
    True
    """
    found: dict[RankRun, Hashable] = {}
    of_rank: dict[int, list[str]] = defaultdict(list)
    for rank, run in set(runs):
        if run is not None and _TIME.fullmatch(run):
            of_rank[rank].append(run)
        else:
            found[rank, run] = run
    if len({len(listed) for listed in of_rank.values()}) == 1:
        for rank, listed in of_rank.items():
            found.update(((rank, run), number) for number, run in enumerate(sorted(listed)))
        return found
    number, seen = 0, set[int]()
    for run, rank in sorted((run, rank) for rank, listed in of_rank.items() for run in listed):
        if rank in seen:
            number, seen = number + 1, set()
        seen.add(rank)
        found[rank, run] = number
    return found
