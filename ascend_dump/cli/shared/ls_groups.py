"""The lines of `ls`: a summary of the records of each run of an operator, and the label of its capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    from ascend_dump.reading import Record, Run
    from ascend_dump.report.tables import Column

__all__ = ["Group", "RunLabels", "groups_of", "operator_of"]


class Group(NamedTuple):
    """The records of one run of an operator.

    first       its first output, or its first record if it has no output
    types       the different dtypes of its tensors
    records     number of records
    unreadable  number of unreadable records
    """

    first: Record
    inputs: int
    outputs: int
    types: Sequence[str]
    bytes: int
    records: int
    unreadable: int


def groups_of(records: Iterable[Record]) -> Iterator[Group]:
    """Yield the operators in execution order."""
    return (_group(list(group)) for _, group in groupby(records, operator_of))


def operator_of(record: Record) -> tuple[Any, ...]:
    """Return a key that the records of one run of an operator have in common."""
    # An unreadable record without a name gets a group of its own, because its operator is not known.
    broken = id(record) if record.error is not None and not record.op_name else None
    return (*record.execution, broken)


def _group(records: list[Record]) -> Group:
    outputs = [record for record in records if record.io == "output"]
    return Group(
        (outputs or records)[0],
        sum(record.io == "input" for record in records),
        len(outputs),
        list(dict.fromkeys(record.dtype for record in records if record.dtype)),
        sum(record.nbytes or 0 for record in records),
        len(records),
        sum(record.error is not None for record in records),
    )


class RunLabels:
    """The labels of the captures of a dump, as in `capture(label=...)`."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = sorted(runs, key=lambda run: run.path.name)

    @cached_property
    def paths(self) -> dict[str, list[str]]:
        """The directories of the runs with each label; empty for a dump without labels."""
        paths: dict[str, list[str]] = {}
        for run in self._runs:
            if run.label:
                paths.setdefault(run.label, []).append(str(run.path))
        return paths

    @cached_property
    def _by_run(self) -> Mapping[str, str]:
        """The labels by the name of the run. Runs of several ranks that started at the same time share a name."""
        names: dict[str, dict[str, None]] = {}
        for run in self._runs:
            names.setdefault(run.path.name, {})[run.label] = None
        return {name: ", ".join(filter(None, labels)) for name, labels in names.items()}

    def label(self, record: Record) -> str:
        """Return the label of a record or operator; "" without one."""
        return self._by_run.get(record.run or "", "")

    def of_runs(self, runs: Iterable[Optional[str]]) -> list[str]:
        """Return a cell for each name of a run."""
        return [self._by_run.get(run or "", "") or "-" for run in runs]

    def columns(self) -> list[Column]:
        """Return a list with the column of labels, [] for a dump without labels."""
        from ascend_dump.report.tables import Column

        return [Column("label", elastic=True)] if self.paths else []

    def cells(self, record: Record) -> list[str]:
        return self.of_runs([record.run]) if self.paths else []

    def fields(self, record: Record) -> dict[str, str]:
        """Return the field `label` for a JSON document, {} for a dump without labels."""
        return {"label": self.label(record)} if self.paths else {}
