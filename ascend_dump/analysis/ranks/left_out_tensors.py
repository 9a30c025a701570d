"""Find updates that one rank leaves out, at a line that updates parameters on all ranks.

Such lines are those of an optimizer, or of an average of weights. A rank leaves out some parameters in all steps, or
the whole line in a step. Changes of gradients are not compared: programs may clip only large ones.

Ranks may divide updates, so some rank has to update all parameters, and the others all but a few of these. A rank needs
no update of a parameter that its forward pass does not read, or that a call of several ranks writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["LeftOutTensors"]

#: The largest share of parameters that a rank may lack, else it updates its own part of them.
_MOST_LACKING = 0.5
_GRADIENT = ".grad"


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

    def look_at(self, members: Sequence[Record]) -> None:
        first = members[0]
        step = _step_of(first)
        if step != self._step:
            self._step, self._names = step, {}
        names = [self._name(record) for record in members]
        if first.phase == "forward":
            self.read.update(names)
        elif "c10d" in first.op_type:
            self.received.update(record.parameter or "" for record in members if record.io == "output")
        elif first.source and writes(first.op_type):
            written = [record.parameter or "" for record in members if record.io == "output"]
            is_placed = any("placement" in record.attrs for record in members)
            if (any(names) or is_placed) and not any(name.endswith(_GRADIENT) for name in written):
                line = first.op_type, first.source
                self.steps.setdefault(line, {}).setdefault(step, first)
                for name, record in zip(names, members):
                    if name:
                        self.lines.setdefault(line, {}).setdefault(name, record)

    def _name(self, record: Record) -> str:
        """Return the parameter that a record is, or to which a gradient or a state of an optimizer belongs."""
        name, storage = record.parameter or "", record.attrs.get("storage", -1)
        if not name:
            return self._names.get(storage, "")
        if " of " not in name and not name.endswith(_GRADIENT):
            self._names[storage] = name
        return name.rpartition(" of ")[2].removesuffix(_GRADIENT)


class LeftOutTensors:
    """Gathers updates of all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._ranks: dict[RankRun, _RankUpdates] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """Add the records of one run of an operator."""
        first = members[0]
        if first.rank is not None:
            key = first.rank, first.run
            if key not in self._ranks:
                self._ranks[key] = _RankUpdates(_step_of(first))
            self._ranks[key].look_at(members)

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
