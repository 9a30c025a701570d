"""Check that all ranks update their parts of one tensor with the same numbers, such as a learning rate.

A part has no copy on another rank to compare it with. So if one rank has a wrong learning rate, or clips by the norm of
its own part, no tensors differ that have to be equal. Parts are known by their placement. Without one, flat tensors of
one size are parts if they are the results of a reduce-scatter outside of the passes, or if an all-gather joins them in
the same step: so ranks divide the gradients and the states of all parameters. Tensors with more axes may be whole
parameters, which an optimizer may scale by a number of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments
from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.operator import operators
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record
from ascend_dump.analysis.ranks.groups_of_ranks import by_launch, disagreement, first_of_each_rank
from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.dump_format import Placement
from ascend_dump.reading import Record

__all__ = ["ShardUpdates", "differing_number"]


class _ShardUpdate(NamedTuple):
    """The first record of an operator that updates a part. numbers: the contents of its scalar inputs."""

    record: Record
    numbers: tuple[Hashable, ...]


class _FlatParts:
    """The flat tensors of one rank in a step.

    parts    by storage: the ranks that have the other parts, and the shape
    updates  by storage: the operators that write into it
    """

    def __init__(self, step: Optional[int]) -> None:
        self.step = step
        self.parts: dict[int, Hashable] = {}
        self.updates: dict[int, list[_ShardUpdate]] = {}


class ShardUpdates:
    """Gathers the operators outside of the passes that write into a part of a tensor, in the order of the dump.

    most: the largest relative difference of two numbers that may be rounding
    """

    def __init__(self, most: float) -> None:
        self._most = most
        #: By run, operator, tensor and number of the call, and then by rank.
        self._updates: dict[tuple[Any, ...], dict[int, _ShardUpdate]] = {}
        self._calls: Counter[Hashable] = Counter()
        #: By run of a rank: the flat tensors of its current step.
        self._flat: dict[RankRun, _FlatParts] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.phase != "other" or first.error is not None or first.rank is None:
            return
        if run.is_collective:
            self._look_at_call(run)
            return
        if first.io != "input" or not writes(first.op_type):
            return
        if "placement" in first.attrs:
            placement = Placement.of(first.attrs)
            if placement is not None and any(axis.startswith("shard") for axis in placement.axes):
                tensor = (placement.ranks, placement.mesh, placement.axes, placement.shape)
                self._add(_update_of(run), tensor)
        elif len(first.shape or ()) == 1:
            self._flat_parts(first).updates.setdefault(run.inputs[0].storage, []).append(_update_of(run))

    def _add(self, update: _ShardUpdate, tensor: Hashable) -> None:
        record = update.record
        call = (record.run, record.model, record.step, record.op_type, record.source, tensor)
        self._calls[record.rank, call] += 1
        self._updates.setdefault((*call, self._calls[record.rank, call]), {})[record.rank or 0] = update

    def _look_at_call(self, run: OperatorRun) -> None:
        found = collective_of(run.first)
        if found is None or found[0].kind not in ("reduce_scatter", "all_gather"):
            return
        is_scatter = found[0].kind == "reduce_scatter"
        for record, storage, _ in run.outputs if is_scatter else run.inputs:
            if is_scatter or is_contribution_to(record, found[0]):
                self._flat_parts(record).parts[storage] = (*found, record.shape)[1:]

    def _flat_parts(self, record: Record) -> _FlatParts:
        """Return the flat tensors of the step of a record."""
        run = (record.rank or 0, record.run)
        flat = self._flat.get(run)
        if flat is None or flat.step != record.step:
            self._end_step(run)
            flat = self._flat[run] = _FlatParts(record.step)
        return flat

    def _end_step(self, run: RankRun) -> None:
        flat = self._flat.pop(run, None)
        if flat is not None:
            for storage, part in flat.parts.items():
                for update in flat.updates.get(storage, ()):
                    self._add(update, part)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first update of each rank that differs from those of other ranks."""
        for run in [*self._flat]:
            self._end_step(run)
        yield from first_of_each_rank(map(self._finding, by_launch(self._updates).values()))

    def _finding(self, updates: dict[int, _ShardUpdate]) -> Optional[RankFinding]:
        differing = disagreement(updates, lambda a, b: self._difference(updates[a], updates[b]) is None)
        if differing is None:
            return None
        update, against = updates[differing.ranks[0]], updates[differing.largest[0]]
        record = update.record
        text = f"{record.op_type} at {record.source} updates the parts of one tensor by other numbers"
        return differing.finding(record, text, self._difference(update, against))

    def _difference(self, update: _ShardUpdate, against: _ShardUpdate) -> Optional[str]:
        """Return the difference of the numbers of two updates in words; None if there is none."""
        number = differing_number(update.record, against.record, self._most)
        if number is not None:
            return number
        return None if update.numbers == against.numbers else "an input with one element differs"


def _update_of(run: OperatorRun) -> _ShardUpdate:
    scalars = [record for record, _, _ in run.inputs if record.shape == ()]
    return _ShardUpdate(run.first, tuple(map(content_of_record, scalars)))


def differing_number(record: Record, against: Record, most: float) -> Optional[str]:
    """Return the first number argument that differs between two calls, in words; None if all are the same.

    most: the largest relative difference of two numbers that may be rounding
    """
    if record.has_call_of(against):
        return None
    calls = [operator for side in (record, against) for operator in operators([side])]
    if len(calls) != 2:
        return None
    for argument in differing_arguments(*calls):
        if _differs(argument, most):
            return f"{argument.name} is {argument.actual}, not {argument.reference}"
    return None


def _differs(argument: DifferingArgument, most: float) -> bool:
    numbers = argument.numbers
    if numbers is None:
        return False
    return abs(numbers[0] - numbers[1]) > most * max(map(abs, numbers))
