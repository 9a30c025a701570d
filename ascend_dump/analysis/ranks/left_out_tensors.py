"""Find updates that one rank leaves out, at a line that updates parameters on all ranks.

Such lines are those of an optimizer, or of an average of weights. A rank leaves out some parameters in all steps, or
the whole line in a step. Changes of gradients are not compared: programs may clip only large ones.

Ranks may divide updates, so some rank has to update all parameters, and the others all but a few of these. A rank needs
no update of a parameter that its forward pass does not read, or that a call of several ranks writes.

Two changes of gradients are found nevertheless. A line that multiplies gradients by one number on all ranks depends on
no data, so no rank may leave out some of its gradients there. And a line that changes gradients on one rank changes
what ranks have in common, if other ranks update by the same gradient as it is.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Optional

from ascend_dump.analysis.operators.operator_run import OperatorRun, RunTensor
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.analysis.ranks.synchronised_gradients import FILLS, is_constant
from ascend_dump.common.units import counted
from ascend_dump.errors import CorruptDump
from ascend_dump.reading import Record

__all__ = ["LeftOutTensors"]

#: The largest share of parameters that a rank may lack, else it updates its own part of them.
_MOST_LACKING = 0.5
_GRADIENT = ".grad"
#: Number of steps in which changes of gradients are looked at.
_MOST_STEPS = 2
_SCALES = frozenset({"mul", "div"})
_NUMBERS = re.compile(r"\d+", re.ASCII)


class _RankUpdates:
    """The updates of one rank.

    read      parameters that the forward pass reads
    received  parameters that calls of several ranks write
    lines     by operator and line of the program: the first record of each parameter that is updated there
    steps     the steps in which each of these lines runs
    """

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.read: set[str] = set()
        self.received: set[str] = set()
        self.lines: dict[tuple[str, str], dict[str, Record]] = {}
        self.steps: dict[tuple[str, str], dict[int, Record]] = {}
        #: By storage, in the current step: the parameter in it.
        self._names: dict[int, str] = {}
        self._step: Optional[int] = None
        self.gradients = _RankGradients()

    def look_at(self, run: OperatorRun) -> None:
        first = run.first
        step = _step_of(first)
        if first.phase == "other" and step < self.first_step + _MOST_STEPS:
            self.gradients.look_at(run)
        if step != self._step:
            self._step, self._names = step, {}
        if first.phase == "forward":
            self.read.update(map(self._name, run.tensors))
        elif not run.is_collective and first.source and writes(first.op_type):
            names = [self._name(tensor) for tensor in run.tensors]
            is_of_gradient = any(name.endswith(_GRADIENT) for _, _, name in run.outputs)
            is_update = any(names) or any("placement" in record.attrs for record in run.records)
            if is_update and not is_of_gradient:
                line = first.op_type, first.source
                self.steps.setdefault(line, {}).setdefault(step, first)
                for name, (record, _, _) in zip(names, run.tensors):
                    if name:
                        self.lines.setdefault(line, {}).setdefault(name, record)
        elif run.is_named:
            for tensor in run.tensors:
                self._name(tensor)
            if run.is_collective:
                self.received.update(name for _, _, name in run.outputs)

    def _name(self, tensor: RunTensor) -> str:
        """Return the parameter that a tensor is, or to which a gradient or a state of an optimizer belongs."""
        _, storage, name = tensor
        if not name:
            return self._names.get(storage, "")
        if " of " not in name and not name.endswith(_GRADIENT):
            self._names[storage] = name
        return name.rpartition(" of ")[2].removesuffix(_GRADIENT)


class _RankGradients:
    """The gradients of one rank outside of the passes.

    names    those that an operator reads
    scaled   by line: the gradients that it multiplies or divides in place, and the numbers
    changed  by line: the gradients that it changes in place, each with its first record and its content before
    updates  by gradient and content: the lines that update another tensor by it
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.scaled: dict[tuple[str, str], tuple[set[str], set[Hashable]]] = {}
        self.changed: dict[tuple[str, str], dict[str, tuple[Record, Hashable]]] = {}
        self.updates: dict[tuple[str, Hashable], set[tuple[str, str]]] = {}

    def look_at(self, run: OperatorRun) -> None:
        first = run.first
        if not run.is_named or not first.source or run.is_collective:
            return
        line = first.op_type, first.source
        written = {name for _, _, name in run.outputs}
        for record, _, name in run.read_inputs:
            if not name.endswith(_GRADIENT):
                continue
            self.names.add(name)
            if not writes(first.op_type) or first.op_type in FILLS:
                continue
            if name not in written:
                self.updates.setdefault((name, content_of_record(record)), set()).add(line)
                continue
            self.changed.setdefault(line, {}).setdefault(name, (record, content_of_record(record)))
            if operator_class(first.op_type) in _SCALES:
                names, numbers = self.scaled.setdefault(line, (set(), set()))
                names.add(name)
                numbers.add(_number(run))


class LeftOutTensors:
    """Gathers updates of all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._ranks: dict[RankRun, _RankUpdates] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is not None:
            key = first.rank, first.run
            updates = self._ranks.get(key)
            if updates is None:
                updates = self._ranks[key] = _RankUpdates(_step_of(first))
            updates.look_at(run)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first line at which each rank leaves out an update."""
        for ranks in ranks_of_launches(self._ranks):
            reported: set[int] = set()
            for line in next(iter(ranks.values())).steps if len(ranks) > 1 else ():
                if all(line in updates.steps for updates in ranks.values()):
                    for rank, finding in (*_without_parameters(line, ranks), *_without_steps(line, ranks)):
                        if rank not in reported:
                            reported.add(rank)
                            yield finding
            if len(ranks) > 1:
                of_ranks = {rank: updates.gradients for rank, updates in ranks.items()}
                for rank, finding in (*_unscaled(of_ranks), *_changed_in_common(of_ranks)):
                    if rank not in reported:
                        reported.add(rank)
                        yield finding


def _unscaled(ranks: dict[int, _RankGradients]) -> Iterator[tuple[int, RankFinding]]:
    """Yield the rank that alone leaves out gradients at a line which multiplies gradients by one number on all ranks.

    Gradients are identified by their names without numbers: ranks have other experts or other layers.
    """
    for line in next(iter(ranks.values())).scaled:
        scales = {rank: gradients.scaled[line] for rank, gradients in ranks.items() if line in gradients.scaled}
        numbers = set[Hashable]().union(*(numbers for _, numbers in scales.values()))
        if len(scales) < len(ranks) or len(numbers) != 1 or None in numbers:
            continue
        lacking: dict[int, str] = {}
        for rank, (scaled, _) in scales.items():
            peers = [peer for peer in ranks if peer != rank]
            for name in sorted(ranks[rank].names - scaled):
                kind = _without_numbers(name)
                alike = {peer: {key for key in ranks[peer].names if _without_numbers(key) == kind} for peer in peers}
                if any(alike.values()) and all(keys <= scales[peer][0] for peer, keys in alike.items()):
                    lacking.setdefault(rank, name)
        if len(lacking) == 1:
            [(rank, name)] = lacking.items()
            record = next(iter(ranks[rank].changed[line].values()))[0]
            yield rank, _finding(line, rank, f"for {name}", [peer for peer in ranks if peer != rank], record)


def _changed_in_common(ranks: dict[int, _RankGradients]) -> Iterator[tuple[int, RankFinding]]:
    """Yield the ranks that alone change a gradient, by which another rank updates as it was before."""
    for rank, gradients in ranks.items():
        update_lines = set[tuple[str, str]]().union(*gradients.updates.values())
        peers = {peer: peer_gradients for peer, peer_gradients in ranks.items() if peer != rank}
        for line, changes in gradients.changed.items():
            if any(line in peer.changed for peer in peers.values()):
                continue
            for name, (record, content) in changes.items():
                users = [
                    peer
                    for peer, peer_gradients in peers.items()
                    if not update_lines.isdisjoint(peer_gradients.updates.get((name, content), ()))
                ]
                if content is not None and users and not is_constant(record):
                    text = (
                        f"only rank {rank} runs {line[0]} at {line[1]} on {name}, which it has in common with "
                        f"{in_words(users)}; {in_words(users)} update{'s' * (len(users) == 1)} by it as it is"
                    )
                    yield rank, RankFinding(record, text)
                    break


def _without_numbers(name: str) -> str:
    """Return a name with a mark in place of each number."""
    return _NUMBERS.sub("#", name)


def _number(run: OperatorRun) -> Hashable:
    """Return the number by which an operator multiplies or divides, or the content of the tensor with it."""
    scalars = [record for record, _, _ in run.inputs if record.shape == ()]
    if scalars:
        content: Hashable = content_of_record(scalars[0])
        return content
    try:
        arguments = run.first.arguments
    except CorruptDump:
        return None
    values = arguments.values.values() if arguments is not None else ()
    number: Optional[float] = next((float(value) for value in values if type(value) in (int, float)), None)
    return number


def _step_of(record: Record) -> int:
    return -1 if record.step is None else record.step


def _without_parameters(line: tuple[str, str], ranks: dict[int, _RankUpdates]) -> Iterator[tuple[int, RankFinding]]:
    """Yield the ranks that leave out some parameters at a line."""
    names = {rank: set(updates.lines.get(line, ())) for rank, updates in ranks.items()}
    every = set[str]().union(*names.values())
    complete = [rank for rank, of_rank in names.items() if of_rank == every]
    lacking = {rank: every - of_rank for rank, of_rank in names.items() if of_rank != every}
    if len(complete) < len(lacking) or any(len(lack) > _MOST_LACKING * len(every) for lack in lacking.values()):
        return
    for rank, lack in lacking.items():
        updates = ranks[rank]
        if lack <= updates.read and lack.isdisjoint(updates.received):
            first = next(name for name in ranks[complete[0]].lines[line] if name in lack)
            more = f" and {counted(len(lack) - 1, 'other parameter')}" if len(lack) > 1 else ""
            yield rank, _finding(line, rank, f"for {first}{more}", complete, next(iter(updates.lines[line].values())))


def _without_steps(line: tuple[str, str], ranks: dict[int, _RankUpdates]) -> Iterator[tuple[int, RankFinding]]:
    """Yield the ranks that leave out a line in a step, and run it in a later one.

    A rank that also runs it in a step in which others do not counts its steps in another way.
    """
    begin = max(updates.first_step for updates in ranks.values())
    steps = {rank: set(updates.steps[line]) for rank, updates in ranks.items()}
    for step in sorted(set[int]().union(*steps.values())):
        running = [rank for rank, of_rank in steps.items() if step in of_rank]
        lacking = [rank for rank in ranks if rank not in running]
        is_counted_alike = all(steps[rank] <= steps[other] for rank in lacking for other in running)
        if step >= begin and is_counted_alike and len(running) >= len(lacking):
            for rank in lacking:
                if step < max(steps[rank]):
                    yield rank, _finding(line, rank, f"in step {step}", running, ranks[running[0]].steps[line][step])


def _finding(line: tuple[str, str], rank: int, what: str, others: Sequence[int], record: Record) -> RankFinding:
    op_type, source = line
    run = "runs" if len(others) == 1 else "run"
    return RankFinding(record, f"rank {rank} runs no {op_type} {what} at {source}; {in_words(others)} {run} it")
