"""Find parts that two ranks have in common, while all other ranks have parts of their own.

These are the rows of a batch, the parts of a split parameter, the parts of flat tensors that ranks update and gather,
and the tensors that one rank scatters. If all ranks have the same, or groups of one size do, the tensor is replicated.
But if only two ranks have the same, one of them has a part of the other one, and no rank has its own part.

Programs with collectives of some ranks are left out: with two replicas of each part, the two equal ones may be right,
and the others differ from each other. For the same reason, a parameter counts only if ranks do not reduce its gradient.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words, moment_of
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.analysis.ranks.synchronised_gradients import is_constant
from ascend_dump.reading import Record

__all__ = ["RepeatedParts"]

#: Minimum number of elements of a part: small tensors may be equal by chance.
_FEWEST_ELEMENTS = 8
#: Minimum number of steps in which two ranks read the same data. A sampler may repeat rows at the end of an epoch.
_FEWEST_STEPS = 2
#: Number of steps of each rank that are looked at.
_MOST_STEPS = 4


class _TensorPart(NamedTuple):
    record: Record
    content: Hashable


class _RankParts:
    """The parts of one rank.

    data        by step and call: tensors from outside of the recorded operators
    parameters  by name: those of the first step
    flat        by call: the flat tensors of the first step, before their first update
    scatters    the tensors of scatters of this rank
    group_sizes the numbers of ranks that take part in its collectives
    reduced     the parameters with a gradient that it sends to others
    """

    def __init__(self, step: Optional[int]) -> None:
        self.data: dict[Optional[int], dict[Hashable, _TensorPart]] = {}
        self.parameters: dict[str, _TensorPart] = {}
        self.scatters: list[list[_TensorPart]] = []
        self.steps: set[Optional[int]] = set()
        self.group_sizes: set[int] = set()
        self.reduced: set[str] = set()
        self._first = self._step = step
        self._written: set[int] = set()
        self._calls: Counter[Hashable] = Counter()
        self._updates: dict[int, tuple[Hashable, _TensorPart]] = {}
        self._gathered: set[int] = set()

    @property
    def flat(self) -> dict[Hashable, _TensorPart]:
        return {call: part for storage, (call, part) in self._updates.items() if storage in self._gathered}

    def look_at(self, run: OperatorRun) -> None:
        first = run.first
        if first.step != self._step:
            self._step, self._written, self._calls = first.step, set(), Counter()
        if run.is_collective:
            self._look_at_collective(run)
        elif first.source:
            site = (first.op_type, first.source, first.module, first.phase, *(record.shape for record in run.records))
            self._calls[site] += 1
            call = (*site, self._calls[site])
            for record, storage, name in run.read_inputs:
                self._look_at_input(record, storage, name, call)
            if first.step == self._first and first.phase == "other" and writes(first.op_type) and run.outputs:
                record, storage, name = run.inputs[0] if run.inputs else run.outputs[0]
                if not name and storage >= 0 and len(record.shape or ()) == 1 and _is_part(record):
                    self._updates.setdefault(storage, (call, _TensorPart(record, content_of_record(record))))
        self._written |= run.written

    def _look_at_input(self, record: Record, storage: int, name: str, call: tuple[Hashable, ...]) -> None:
        if name:
            is_parameter = " of " not in name and not name.endswith(".grad") and "placement" not in record.attrs
            if is_parameter and record.step == self._first and record.phase == "forward":
                self.parameters.setdefault(name, _TensorPart(record, content_of_record(record)))
            return
        is_activation = bool(record.attrs.get("requires_grad")) or "placement" in record.attrs
        if storage >= 0 and storage not in self._written and _is_part(record) and not is_activation:
            key = (*call, record.index)
            self.data.setdefault(self._step, {}).setdefault(key, _TensorPart(record, content_of_record(record)))

    def _look_at_collective(self, run: OperatorRun) -> None:
        found = collective_of(run.first)
        if found is None:
            return
        self.group_sizes.add(len(found[1]))
        self.reduced.update(name[: -len(".grad")] for _, _, name in run.inputs if name.endswith(".grad"))
        sent = [tensor for tensor in run.inputs if is_contribution_to(tensor.record, found[0])]
        if found[0].kind == "all_gather":
            self._gathered.update(storage for _, storage, _ in sent)
        elif found[0].kind == "scatter" and len(sent) == len(found[1]):
            self.scatters.append([_TensorPart(record, content_of_record(record)) for record, _, _ in sent])


class RepeatedParts:
    """Gathers the parts of all ranks, in the order of the dump.

    fewest: minimum number of ranks; of fewer ranks, the two that have the same may be right, and the others wrong
    """

    def __init__(self, fewest: float) -> None:
        self._fewest = fewest
        self._ranks: dict[RankRun, _RankParts] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        parts = self._ranks.get((first.rank, first.run))
        if parts is None:
            parts = self._ranks[first.rank, first.run] = _RankParts(first.step)
        if first.step in parts.steps or len(parts.steps) < _MOST_STEPS:
            parts.steps.add(first.step)
            parts.look_at(run)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first repeated part of each launch."""
        for ranks in ranks_of_launches(self._ranks):
            sizes = set[int]().union(*(of_rank.group_sizes for of_rank in ranks.values()))
            if any(1 < size < len(ranks) for size in sizes):
                continue
            # Ranks that get one part of a scatter twice read the same data, too.
            findings = [*self._scattered(ranks)] or [*self._data(ranks), *self._tensors(ranks)]
            yield from sorted(findings, key=lambda finding: moment_of(finding.record))[:1]

    def _scattered(self, ranks: Mapping[int, _RankParts]) -> Iterator[RankFinding]:
        for rank, of_rank in ranks.items():
            for scatter in of_rank.scatters:
                pair = self._pair(dict(enumerate(scatter)))
                if pair is not None:
                    record = scatter[pair[1]].record
                    text = f"rank {rank} scatters one tensor twice: inputs {scatter[pair[0]].record.index} and "
                    text += f"{record.index} of {record.op_name} are the same, and all others are not"
                    yield RankFinding(record, text)

    def _data(self, ranks: Mapping[int, _RankParts]) -> Iterator[RankFinding]:
        steps = [step for step in next(iter(ranks.values())).data if all(step in of.data for of in ranks.values())]
        if len(steps) < _FEWEST_STEPS:
            return
        for call in next(iter(ranks.values())).data[steps[0]]:
            if not all(call in of_rank.data[step] for of_rank in ranks.values() for step in steps):
                continue
            pairs = {self._pair({rank: of.data[step][call] for rank, of in ranks.items()}) for step in steps}
            # Tables such as those of positions are the same in all steps.
            contents = {(rank, of.data[step][call].content) for rank, of in ranks.items() for step in steps}
            [pair] = pairs if len(pairs) == 1 else [None]
            if pair is not None and len(contents) == len(ranks) * len(steps):
                record = ranks[pair[1]].data[steps[0]][call].record
                text = (
                    f"{record.label} is the same on {in_words(pair)} in all {len(steps)} steps, and other data on each "
                    f"other rank: {in_words(pair)} read the same rows"
                )
                yield RankFinding(record, text)

    def _tensors(self, ranks: Mapping[int, _RankParts]) -> Iterator[RankFinding]:
        for kind in ("parameters", "flat"):
            of_ranks: dict[int, dict[Hashable, _TensorPart]] = {
                rank: getattr(parts, kind) for rank, parts in ranks.items()
            }
            reduced = set[Hashable]().union(*(of_rank.reduced for of_rank in ranks.values()))
            for key in [key for key in next(iter(of_ranks.values())) if key not in reduced]:
                parts = {rank: of_rank[key] for rank, of_rank in of_ranks.items() if key in of_rank}
                pair = self._pair(parts) if len(parts) == len(ranks) else None
                if pair is not None:
                    record = parts[pair[1]].record
                    what = f"the part of {key}" if kind == "parameters" else f"{record.label}, a part of a flat tensor,"
                    text = f"{what} is the same on {in_words(pair)} in the first step, and another one on each other "
                    text += "rank: two ranks have one part, and no rank has another one"
                    yield RankFinding(record, text)

    def _pair(self, parts: Mapping[int, _TensorPart]) -> Optional[tuple[int, int]]:
        """Return the only two keys with the same content; None if there are others, or too few keys."""
        if len(parts) < self._fewest or not all(_is_part(part.record) for part in parts.values()):
            return None
        keys: dict[Hashable, list[int]] = {}
        for key, part in sorted(parts.items()):
            keys.setdefault(part.content, []).append(key)
        if len(keys) != len(parts) - 1 or None in keys:
            return None
        first, second = next(alike for alike in keys.values() if len(alike) == 2)
        return None if is_constant(parts[first].record) else (first, second)


def _is_part(record: Record) -> bool:
    return math.prod(record.shape or ()) >= _FEWEST_ELEMENTS and record.dtype != "bool"
