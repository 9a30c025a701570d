"""Find an operator that one rank runs in place of the one that others run at the same line, such as an activation.

Both have tensors of the same shapes, so the data does not decide which one runs: with padding a line has a mask as
further input, and an expert without tokens has an empty tensor. Stages of pipelines have lines of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words
from ascend_dump.analysis.ranks.groups_of_ranks import disagreement
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.reading import Record

__all__ = ["OtherOperators"]


class _OperatorSite(NamedTuple):
    """A line of the forward pass in a module, with the shapes and types of the tensors of an operator there."""

    source: str
    module: str
    tensors: tuple[Hashable, ...]


class OtherOperators:
    """Gathers the operators of the forward pass on all ranks, in the order of the dump."""

    def __init__(self) -> None:
        #: By site and type of the operator: its first record.
        self._ranks: dict[RankRun, dict[_OperatorSite, dict[str, Record]]] = {}
        self._with_messages: set[RankRun] = set()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        rank = first.rank, first.run
        operators = self._ranks.get(rank)
        if operators is None:
            operators = self._ranks[rank] = {}
        if first.op_type.startswith("c10d::"):
            if first.op_type.startswith(("c10d::send", "c10d::recv")):
                self._with_messages.add(rank)
        elif first.source and first.phase == "forward" and not (is_view(first.op_type) or is_source(first.op_type)):
            tensors = tuple([(record.io, record.index, record.dtype, record.shape) for record, _, _ in run.tensors])
            site = _OperatorSite(first.source, first.module or "", tensors)
            types = operators.get(site)
            if types is None:
                types = operators[site] = {}
            types.setdefault(first.op_type, first)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first operator that a rank runs in place of another one, for each launch."""
        for run in self._with_messages:
            self._ranks.pop(run, None)
        for ranks in ranks_of_launches(self._ranks):
            sites = dict.fromkeys(site for of_rank in ranks.values() for site in of_rank)
            findings = (_of_site({rank: of_rank.get(site, {}) for rank, of_rank in ranks.items()}) for site in sites)
            yield from sorted(filter(None, findings), key=_moment)[:1]


def _of_site(ranks: dict[int, dict[str, Record]]) -> Optional[RankFinding]:
    if not all(ranks.values()):
        return None
    differing = disagreement(ranks, lambda rank, other: ranks[rank].keys() == ranks[other].keys())
    if differing is None:
        return None
    operators, usual_operators = ranks[differing.ranks[0]], ranks[differing.largest[0]]
    replacing = operators.keys() - usual_operators.keys()
    replaced = usual_operators.keys() - operators.keys()
    if len(replacing) != 1 or len(replaced) != 1:
        return None
    record = operators[replacing.pop()]
    text = f"{record.op_type} runs at {record.source} on {in_words(differing.ranks)}, {replaced.pop()} on "
    text += in_words(differing.largest)
    return RankFinding(record, f"{differing.doubt}: {text}" if differing.doubt else text)


def _moment(finding: RankFinding) -> tuple[int, int]:
    record = finding.record
    return -1 if record.step is None else record.step, record.attrs.get("seq", 0)
