"""Find the operators that made the inputs of an operator, by the memory that they wrote to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Optional

from ascend_dump.analysis.operators.nonfinite import executions
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

    def look_at(self, records: Sequence[Record], storages: Optional[Sequence[Optional[int]]] = None) -> tuple[str, ...]:
        """Record an operator and return the names of the operators that made its inputs.

        storages: `storage_number` of each record, if it is known already
        """
        first = records[0]
        if storages is None:
            storages = [storage_number(record) for record in records]
        step = (first.run, first.rank, first.device, first.model, first.step)
        if step != self._step:
            self._step, self._writers = step, {}
        producers: dict[str, None] = {}
        for record, storage in zip(records, storages):
            name = self._writers.get(storage) if storage is not None and record.io == "input" else None
            if name and name != first.op_name:
                producers[name] = None
        if operator_class(first.op_type) not in VIEWS:
            for record, storage in zip(records, storages):
                if storage is not None and record.io == "output":
                    self._writers[storage] = first.op_name
        return tuple(producers)


def producers_of(dump: Dump, names: Collection[str]) -> list[str]:
    """Return the recorded operators that made the inputs of the named operators, in execution order."""
    writers = Writers()
    producers: dict[str, None] = {}
    for records in executions(dump):
        makers = writers.look_at(records)
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
