"""Find the norms of sequence parallelism, by the data flow between collectives.

A reduce-scatter gives each rank some rows of one tensor, and an all-gather over the same ranks joins the rows again. A
norm between both normalises each row by itself, so its parameters are the same on all these ranks, and their gradients
have to be added up over them. A norm that each rank has for itself, such as that of a stage or of an expert, has no
such collectives around it.

A bias that is added to such rows belongs to all of them too. Without an all-gather after it, this is not certain: ranks
may scatter rows to layers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import COPIES, VIEWS, operator_class
from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.reading import Record

__all__ = ["SequenceNorms"]

#: Operators that normalise the last axes of their first input. A product with a parameter alone is none: it may be a
#: part of a norm over columns that are divided over ranks.
_NORMS = frozenset({"native_layer_norm", "rms_norm", "_fused_rms_norm", "npu_rms_norm"})
#: Operators that apply a parameter to each row by itself, if it has fewer axes than the rows.
_BY_ROW = frozenset({"add", "mul"})


class _NormResult(NamedTuple):
    """The output of a norm. ranks: the ranks that have the other rows."""

    parameters: tuple[str, ...]
    ranks: str


class _ScatteredRows:
    """The memory of one rank in one step that has rows of a tensor: the ranks with the other rows, by storage."""

    __slots__ = ("norms", "ranks", "step")

    def __init__(self, step: Optional[int]) -> None:
        self.step = step
        self.ranks: dict[int, str] = {}
        self.norms: dict[int, _NormResult] = {}


class SequenceNorms:
    """Gathers norms between a reduce-scatter and an all-gather, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        self._rows: dict[RankRun, _ScatteredRows] = {}
        #: By rank and parameter: the ranks of the group, as text.
        self._groups: dict[tuple[RankRun, str], str] = {}
        self._of_rows: set[tuple[RankRun, str]] = set()

    def are_of_rows(self, runs: Sequence[RankRun], parameter: str) -> bool:
        """Return True if all these ranks normalise scattered rows by a parameter, or add it to them."""
        return all((run, parameter) in self._of_rows for run in runs)

    def groups_of(self, runs: Sequence[RankRun], parameter: str) -> Iterator[list[int]]:
        """Yield the groups of ranks that normalise the rows of one tensor by a parameter."""
        groups: dict[str, list[int]] = {}
        for run in runs:
            group = self._groups.get((run, parameter))
            if group is not None:
                groups.setdefault(group, []).append(run[0])
        yield from groups.values()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator of the forward pass."""
        first = run.first
        if first.rank is None:
            return
        rank = (first.rank, first.run)
        rows = self._rows.get(rank)
        if rows is None or rows.step != first.step:
            # Before the first reduce-scatter of a step there is nothing to follow.
            if not run.is_collective:
                return
            rows = self._rows[rank] = _ScatteredRows(first.step)
        if run.is_collective:
            self._look_at_call(rank, rows, run.records)
        elif rows.ranks:
            self._of_rows.update((rank, name) for name in _parameters_of_rows(rows, run.records))
            _follow(rows, run.records)

    def _look_at_call(self, run: RankRun, rows: _ScatteredRows, members: Sequence[Record]) -> None:
        found = collective_of(members[0])
        if found is None:
            return
        call, _ = found
        for record in members:
            storage = _storage(record)
            if record.io == "output":
                rows.norms.pop(storage, None)
                rows.ranks.pop(storage, None)
                if call.kind == "reduce_scatter":
                    rows.ranks[storage] = call.ranks
            elif call.kind == "all_gather" and storage in rows.norms and is_contribution_to(record, call):
                norm = rows.norms[storage]
                if norm.ranks == call.ranks:
                    self._groups.update(((run, name), call.ranks) for name in norm.parameters)


def _parameters_of_rows(rows: _ScatteredRows, members: Sequence[Record]) -> Iterator[str]:
    """Yield the parameters that an operator applies to each scattered row by itself."""
    name = operator_class(members[0].op_type)
    inputs = [record for record in members if record.io == "input"]
    whole = next((record for record in inputs if _storage(record) in rows.ranks), None)
    if whole is not None and (name in _NORMS or name in _BY_ROW):
        for record in inputs:
            is_smaller = len(record.shape or ()) < len(whole.shape or ())
            if record.parameter and is_smaller and record.attrs.get("requires_grad"):
                yield record.parameter


def _follow(rows: _ScatteredRows, members: Sequence[Record]) -> None:
    """Pass the rows that an operator reads on to its outputs."""
    inputs = [record for record in members if record.io == "input"]
    ranks = next((rows.ranks[_storage(record)] for record in inputs if _storage(record) in rows.ranks), None)
    name = operator_class(members[0].op_type)
    norm = rows.norms.get(_storage(inputs[0])) if inputs and (name in COPIES or name in VIEWS) else None
    if name in _NORMS and inputs and ranks is not None and rows.ranks.get(_storage(inputs[0])) == ranks:
        parameters = (record.parameter for record in inputs[1:] if record.attrs.get("requires_grad"))
        norm = _NormResult(tuple(filter(None, parameters)), ranks)
    for record in members:
        if record.io == "output":
            storage = _storage(record)
            if ranks is None:
                rows.ranks.pop(storage, None)
            else:
                rows.ranks[storage] = ranks
            if norm is None or record.index:
                rows.norms.pop(storage, None)
            else:
                rows.norms[storage] = norm


def _storage(record: Record) -> int:
    return int(record.attrs.get("storage", -1))
