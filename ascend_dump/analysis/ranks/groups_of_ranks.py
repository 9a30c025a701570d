"""Divide ranks into groups that agree, and report the ranks that are not of the largest group."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words
from ascend_dump.analysis.ranks.launches import launches
from ascend_dump.reading import Record

__all__ = ["Disagreement", "by_launch", "disagreement", "first_of_each_rank"]

_T = TypeVar("_T")


class Disagreement(NamedTuple):
    """Ranks that do not agree with the largest group of ranks.

    ranks    the ranks of another group
    largest  the ranks of the largest group
    doubt    why the largest group may be the wrong one; "" if it has most of the ranks
    """

    ranks: list[int]
    largest: list[int]
    doubt: str

    def finding(self, record: Record, action: str, difference: Optional[str]) -> RankFinding:
        """Return the finding at a record of one of the ranks. action: a clause with the operator and its update"""
        text = f"{action} on {in_words(self.ranks)} than on {in_words(self.largest)}: {difference}"
        return RankFinding(record, f"{self.doubt}: {text}" if self.doubt else text)


def disagreement(ranks: Iterable[int], agree: Callable[[int, int], bool]) -> Optional[Disagreement]:
    """Return the ranks that do not agree with most others; None if all agree.

    agree: returns True if two ranks agree
    """
    groups: list[list[int]] = []
    for rank in sorted(ranks):
        group = next((group for group in groups if agree(rank, group[0])), None)
        if group is None:
            groups.append([rank])
        else:
            group.append(rank)
    if len(groups) < 2:
        return None
    largest, *others = sorted(groups, key=len, reverse=True)
    count = sum(map(len, groups))
    doubt = "two ranks cannot tell which one is wrong" if count == 2 else "no numbers are those of most ranks"
    return Disagreement(others[0], largest, "" if 2 * len(largest) > count else doubt)


def by_launch(updates: Mapping[tuple[Any, ...], Mapping[int, _T]]) -> dict[tuple[Hashable, ...], dict[int, _T]]:
    """Return values by the launch of their rank in place of its run.

    updates: by a key that begins with the run, and then by rank
    """
    launch = launches((rank, key[0]) for key, of_ranks in updates.items() for rank in of_ranks)
    result: dict[tuple[Hashable, ...], dict[int, _T]] = {}
    for key, of_ranks in updates.items():
        for rank, update in of_ranks.items():
            result.setdefault((launch[rank, key[0]], *key[1:]), {})[rank] = update
    return result


def first_of_each_rank(findings: Iterable[Optional[RankFinding]]) -> Iterator[RankFinding]:
    """Yield the first finding of each rank."""
    reported: set[Optional[int]] = set()
    for finding in findings:
        if finding is not None and finding.record.rank not in reported:
            reported.add(finding.record.rank)
            yield finding
