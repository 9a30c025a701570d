"""Follow a loss or a gradient back through the memory of recorded steps, to the operator that makes it zero or large.

A recording of `ascend-dump triage --run --symptom` has a record for each loss and gradient (`dump_format.SYMPTOM`).
The search goes from the memory of this record to the operator that wrote it last, then to the writers of the inputs of
this operator, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import statistics_of
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.nonfinite_flow import memory_of_record
from ascend_dump.dump_format import SYMPTOM
from ascend_dump.reading import Record

__all__ = ["GrowthSource", "LossFlow", "ZeroSource"]

#: Operators that provide memory, often filled with zeros, for other operators to write into.
_ALLOCATIONS = ("zeros", "zeros_like", "new_zeros", "zero_", "empty", "empty_like")

#: Minimum number of elements of a tensor whose largest magnitudes in two steps are compared.
_FEWEST = 4


class ZeroSource(NamedTuple):
    """The operator that makes zeros, and the loss or gradient that is zero because of it.

    records  the records of the operator
    path     the names of the operators between the loss or gradient and this operator, backwards
    zero     the record of the loss or gradient
    """

    records: Sequence[Record]
    path: tuple[str, ...]
    zero: Record


class GrowthSource(NamedTuple):
    """The first tensor on the way to a loss that is larger than the same tensor in the step before.

    record         the record of the larger tensor
    before, after  the largest magnitude in the step before, and in this step
    """

    record: Record
    before: float
    after: float


@dataclass(eq=False)
class _Operator:
    position: int
    records: Sequence[Record]
    inputs: list[Record] = field(default_factory=list)
    outputs: list[Record] = field(default_factory=list)


class LossFlow:
    """The operators of a dump by the memory that they write.

    watched  the records of losses and gradients
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.watched: list[Record] = []
        self._operators: list[_Operator] = []
        self._positions: dict[int, int] = {}
        #: By the step and the address of a storage: byte ranges, each with the number of the storage and the writer.
        self._written: dict[tuple[Optional[int], int], list[tuple[int, int, object, _Operator]]] = {}
        for position, members in enumerate(executions(records)):
            operator = _Operator(position, members)
            for record in members:
                (operator.inputs if record.io == "input" else operator.outputs).append(record)
            if members[0].op_type.startswith(SYMPTOM):
                self.watched += operator.inputs
                self._positions.update((id(record), position) for record in operator.inputs)
                continue
            self._operators.append(operator)
            self._note_writes(operator)

    def _note_writes(self, operator: _Operator) -> None:
        read = {memory[0] for memory in map(memory_of_record, operator.inputs) if memory}
        is_in_place = operator.records[0].op_type.partition(".")[0].endswith("_")
        for record in operator.outputs:
            memory = memory_of_record(record)
            # A view has the memory of its input, which it does not write.
            if memory is not None and (is_in_place or memory[0] not in read):
                entry = (memory[1], memory[2], record.attrs.get("storage"), operator)
                self._written.setdefault((record.step, memory[0]), []).append(entry)

    def losses(self, step: int) -> list[Record]:
        return [record for record in self.watched if record.op_type == f"{SYMPTOM}loss" and record.step == step]

    def zero_sources(self, kind: str) -> Iterator[ZeroSource]:
        """Yield the source of each zero loss or gradient that an operator makes. kind: "loss" or "gradient"."""
        for record in self.watched:
            source = self._zero_source(record) if record.op_type == f"{SYMPTOM}{kind}" else None
            if source is not None:
                yield source

    def _zero_source(self, zero: Record) -> Optional[ZeroSource]:
        path: list[str] = []
        operator = self._writer(zero, self._positions[id(zero)]) if _is_zero(zero) else None
        while operator is not None:
            path.append(operator.records[0].op_name)
            zeros = [record for record in operator.inputs if _is_zero(record)]
            writers = [self._writer(record, operator.position) for record in zeros]
            before = [writer for writer in writers if writer is not None and not _allocates(writer)]
            if not before:
                return None if _allocates(operator) else ZeroSource(operator.records, tuple(path[:-1]), zero)
            operator = before[0]
        return None

    def growth_source(self, step: int, factor: float) -> Optional[GrowthSource]:
        """Return the first tensor on the way to a loss of a step that has grown in this step or in the step before.

        factor: minimum ratio of the largest magnitude to the largest magnitude in the step before
        """
        ancestors = set()
        for loss in self.losses(step):
            ancestors |= self._ancestors(loss)
        by_name = {(one.records[0].step, one.records[0].op_name): one for one in self._operators}
        for operator in self._operators:
            first = operator.records[0]
            before = by_name.get(((first.step or 0) - 1, first.op_name))
            if operator not in ancestors or before is None or first.step not in (step - 1, step):
                continue
            for now, earlier in ((operator.inputs, before.inputs), (operator.outputs, before.outputs)):
                for record, old in zip(now, earlier):
                    if _growth(old, record) >= factor and not (record.parameter or record.attrs.get("requires_grad")):
                        return GrowthSource(record, _magnitude(old), _magnitude(record))
        return None

    def detached(self, step: int, parameters: Collection[str]) -> Optional[Record]:
        """Return the first `detach` outside of a backward pass on the way from one of these parameters to a loss."""
        ancestors = set()
        for loss in self.losses(step):
            ancestors |= self._ancestors(loss)
        for operator in self._operators:
            first = operator.records[0]
            is_cut = first.op_type == "aten::detach" and first.phase != "backward" and first.step == step
            writer = self._writer(operator.inputs[0], operator.position) if is_cut and operator.inputs else None
            if writer in ancestors and any(_reads(one, parameters) for one in self._before(writer)):
                return operator.outputs[0] if operator.outputs else first
        return None

    def _ancestors(self, record: Record) -> set[_Operator]:
        """Return the operators whose results a tensor comes from, also those of the step before."""
        return self._before(self._writer(record, self._positions[id(record)]))

    def _before(self, start: Optional[_Operator]) -> set[_Operator]:
        found: set[_Operator] = set()
        stack = [start]
        while stack:
            operator = stack.pop()
            if operator is None or operator in found:
                continue
            found.add(operator)
            stack += [self._writer(one, operator.position, earlier=True) for one in operator.inputs]
        return found

    def _writer(self, record: Record, position: int, *, earlier: bool = False) -> Optional[_Operator]:
        """Return the last operator before a position that wrote the memory of a tensor.

        earlier: search the step before too. Storage numbers are not compared there, because each step has its own.
        """
        memory = memory_of_record(record)
        if memory is None:
            return None
        address, begin, end = memory
        number = record.attrs.get("storage")
        for low, high, storage, operator in reversed(self._written.get((record.step, address), ())):
            if operator.position < position and storage == number and low < end and begin < high:
                return operator
        if earlier and record.step:
            for low, high, _, operator in reversed(self._written.get((record.step - 1, address), ())):
                if low < end and begin < high:
                    return operator
        return None


def _reads(operator: _Operator, parameters: Collection[str]) -> bool:
    return any(record.parameter in parameters for record in operator.inputs)


def _allocates(operator: _Operator) -> bool:
    return operator.records[0].op_type.rpartition("::")[2] in _ALLOCATIONS


def _is_zero(record: Record) -> bool:
    """Return True if all elements are known to be zero."""
    statistics = statistics_of(record)
    if statistics is None or not statistics.count:
        return False
    if statistics.zero is not None:
        return statistics.zero == statistics.count
    return statistics.min == 0 and statistics.max == 0


def _magnitude(record: Record) -> float:
    statistics = statistics_of(record)
    if statistics is None or statistics.min is None or statistics.max is None:
        return math.nan
    return max(abs(float(statistics.min)), abs(float(statistics.max)))


def _growth(before: Record, after: Record) -> float:
    """Return the ratio of the largest magnitudes of a tensor in two steps.

    0 if it is not known, if types or shapes differ, or for a tensor of few elements: a single sum may be close to 0 by
    chance, so that the next one is many times as large. The first dimension of the shapes may differ.
    """
    if not after.shape or math.prod(after.shape) < _FEWEST:
        return 0.0
    if before.dtype != after.dtype or (before.shape or ())[1:] != (after.shape or ())[1:]:
        return 0.0
    old, new = _magnitude(before), _magnitude(after)
    return new / old if old > 0 and math.isfinite(new) else 0.0
