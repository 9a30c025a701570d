"""Find a rank that takes a part of a tensor from another position than its number says.

If ranks take parts in turn, the numbers that they pass, such as the first index of the part, grow by one size from rank
to rank. So if these numbers are on a line for all ranks but one, this rank takes a wrong part. Numbers of data lie on a
line by chance only, and not in several calls. The first and the last rank may have parts of other sizes, and ranks with
tensors of other shapes are left out, because their numbers may be sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words, moment_of
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.errors import CorruptDump
from ascend_dump.reading import Record

__all__ = ["PartPositions"]

#: Minimum number of calls of each rank with the same number.
_FEWEST_CALLS = 2
#: Number of steps of each rank that are looked at: positions do not change.
_MOST_STEPS = 2


class _NumberSite(NamedTuple):
    """A number that a line of the program passes to an operator.

    name    of the argument, or the input with the offset
    shapes  those of all tensors
    """

    op_type: str
    source: str
    module: str
    phase: str
    name: str
    shapes: tuple[Hashable, ...]


class _SiteNumbers:
    """The numbers of one rank at a site. record: the first one with it"""

    __slots__ = ("count", "record", "values")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.values: set[int] = set()
        self.count = 0


class PartPositions:
    """Gathers the integers that all ranks pass to operators, in the order of the dump.

    fewest: minimum number of ranks; with fewer, numbers are on a line by chance
    """

    def __init__(self, fewest: float) -> None:
        self._fewest = fewest
        self._ranks: dict[RankRun, dict[_NumberSite, _SiteNumbers]] = {}
        self._steps: dict[RankRun, set[Optional[int]]] = {}
        self._with_messages: set[RankRun] = set()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None or not first.source:
            return
        rank = first.rank, first.run
        if run.is_collective:
            if first.op_type.startswith(("c10d::send", "c10d::recv")):
                self._with_messages.add(rank)
            return
        sites = self._ranks.get(rank)
        if sites is None:
            sites = self._ranks[rank] = {}
        steps = self._steps.setdefault(rank, set())
        if first.step not in steps and len(steps) == _MOST_STEPS:
            return
        steps.add(first.step)
        shapes = tuple([(record.io, record.shape) for record in run.records])
        for name, value in _numbers_of(run).items():
            site = _NumberSite(first.op_type, first.source, first.module or "", first.phase or "", name, shapes)
            numbers = sites.get(site)
            if numbers is None:
                numbers = sites[site] = _SiteNumbers(first)
            numbers.count += 1
            if len(numbers.values) < 2:
                numbers.values.add(value)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first wrong position, for each launch."""
        # The stages of a pipeline run layers of their own at one line.
        for run in self._with_messages:
            self._ranks.pop(run, None)
        for ranks in ranks_of_launches(self._ranks):
            if len(ranks) < self._fewest:
                continue
            findings = []
            for site in next(iter(ranks.values())):
                numbers = {rank: sites[site] for rank, sites in sorted(ranks.items()) if site in sites}
                if len(numbers) == len(ranks):
                    finding = _of_site(site, numbers)
                    findings += [] if finding is None else [finding]
            yield from sorted(findings, key=lambda finding: moment_of(finding.record))[:1]


def _of_site(site: _NumberSite, numbers: Mapping[int, _SiteNumbers]) -> Optional[RankFinding]:
    if any(len(of_rank.values) != 1 or of_rank.count < _FEWEST_CALLS for of_rank in numbers.values()):
        return None
    values = {rank: next(iter(of_rank.values)) for rank, of_rank in numbers.items()}
    first, *_, last = values
    size, rest = divmod(values[last] - values[first], last - first)
    if rest or not size:
        return None
    expected = {rank: values[first] + (rank - first) * size for rank in values}
    wrong = [rank for rank, value in values.items() if value != expected[rank]]
    if len(wrong) != 1:
        return None
    [rank] = wrong
    peers = [peer for peer in values if peer != rank]
    text = (
        f"{site.name} of {site.op_type} at {site.source} is {values[rank]} on rank {rank}, and not {expected[rank]}: "
        f"on {in_words(peers)} it grows by {size} from rank to rank"
    )
    return RankFinding(numbers[rank].record, text)


def _numbers_of(run: OperatorRun) -> dict[str, int]:
    """Return the integers of a call, and the offsets of the inputs in their memory, apart from parameters."""
    numbers = {}
    if not is_view(run.first.op_type):
        for record, _, name in run.inputs:
            offset = record.attrs.get("storage_offset", 0)
            if not name and type(offset) is int:
                numbers[f"the offset of input {record.index}"] = offset
    try:
        arguments = run.first.arguments
    except CorruptDump:
        return numbers
    if arguments is not None:
        numbers.update((name, value) for name, value in arguments.values.items() if type(value) is int)
    return numbers
