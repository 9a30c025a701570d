"""Find the operators that made the inputs of an operator, by the memory that they wrote to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import VIEWS, operator_class
from ascend_dump.analysis.suspects._table import storage_number
from ascend_dump.reading import Dump, Record

__all__ = ["Writers", "gives_view", "producers_of"]


class Writers:
    """The last writer of each storage, updated operator by operator in execution order."""

    def __init__(self) -> None:
        self._step: Any = None
        #: By storage number: the name of the operator that wrote the storage last in this step.
        self._writers: dict[int, str] = {}

    def look_at(self, run: OperatorRun) -> tuple[str, ...]:
        """Record an operator and return the names of the operators that made its inputs."""
        first = run.first
        step = (first.run, first.rank, first.device, first.model, first.step)
        if step != self._step:
            self._step, self._writers = step, {}
        producers: dict[str, None] = {}
        for _, storage, _ in run.inputs:
            name = self._writers.get(storage)
            if name and name != first.op_name:
                producers[name] = None
        if operator_class(first.op_type) not in VIEWS:
            for storage in run.written:
                self._writers[storage] = first.op_name
        return tuple(producers)


def producers_of(dump: Dump, names: Collection[str]) -> list[str]:
    """Return the recorded operators that made the inputs of the named operators, in execution order."""
    writers = Writers()
    producers: dict[str, None] = {}
    for records in executions(dump):
        makers = writers.look_at(OperatorRun(records))
        if records[0].op_name in names:
            producers.update(dict.fromkeys(makers))
    return list(producers)


def gives_view(records: Sequence[Record]) -> bool:
    """Return True if the records of an operator show that its output is a view of its input, as for `t`."""
    if operator_class(records[0].op_type) not in VIEWS:
        return False
    read, written = (
        {storage_number(record) for record in records if record.io == io} - {None} for io in ("input", "output")
    )
    return not read.isdisjoint(written)
