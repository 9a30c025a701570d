"""One run of an operator, with the facts about its records that many rules read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.unread_inputs import has_unread_inputs, is_unread
from ascend_dump.reading import Record

__all__ = ["OperatorRun", "RunTensor"]


class RunTensor(NamedTuple):
    """An input or output of a run.

    storage  the number of its memory in its step; -1 if it is not recorded
    name     `Record.parameter`; "" for other tensors
    """

    record: Record
    storage: int
    name: str


class OperatorRun:
    """One run of an operator. All rules read the same object, so each fact is looked up once.

    records          all records of the run, in the order of the dump
    first            the first of them
    run              the run of its rank, as a key; a rank of None is -1
    tensors          its inputs and outputs; other records are left out, such as unreadable ones without an `io`
    inputs, outputs  the tensors by their `io`
    read_inputs      the inputs apart from those that the operator overwrites without reading
    read, made       the numbers of the memory that it reads, and of the memory that it writes without reading any of it
    written          the numbers of the memory of its outputs
    number           its number in the order of execution; 0 if it is not recorded
    is_named         a tensor has the name of a parameter
    is_skipped       the values of a tensor are not stored, for a reason that is recorded
    is_collective    it is a collective call or a message of PyTorch
    is_plain         it is none, and no tensor has a name of a parameter, a placement or needs a gradient
    """

    __slots__ = (
        "first",
        "inputs",
        "is_collective",
        "is_named",
        "is_plain",
        "is_skipped",
        "made",
        "number",
        "outputs",
        "read",
        "read_inputs",
        "records",
        "tensors",
        "written",
    )

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.first = first = records[0]
        self.is_collective = "c10d" in first.op_type
        self.is_named = self.is_skipped = False
        self.is_plain = not self.is_collective
        inputs: list[RunTensor] = []
        outputs: list[RunTensor] = []
        read: set[int] = set()
        written: set[int] = set()
        for record in records:
            attrs = record.attrs
            storage: Optional[int] = attrs.get("storage")
            if storage is None or storage < 0:
                storage = -1
            name: Optional[str] = attrs.get("parameter")
            if name:
                self.is_named = True
            if "skipped" in attrs:
                self.is_skipped = True
            if name or "requires_grad" in attrs or "placement" in attrs:
                self.is_plain = False
            if record.io == "input":
                inputs.append(RunTensor(record, storage, name or ""))
                read.add(storage)
            elif record.io == "output":
                outputs.append(RunTensor(record, storage, name or ""))
                written.add(storage)
        read.discard(-1)
        written.discard(-1)
        self.inputs, self.outputs, self.read, self.written = inputs, outputs, read, written
        self.made = written - read
        self.tensors = [*self.inputs, *self.outputs]
        self.read_inputs = self.inputs
        if has_unread_inputs(first.op_type):
            self.read_inputs = [tensor for tensor in self.inputs if not is_unread(tensor.record)]
        number: Any = first.attrs.get("seq")
        self.number: int = number or 0
