"""The operators of a dump as `ls` lists them: a summary of the records of one run, and the label of its capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol, Union

if TYPE_CHECKING:
    from ascend_dump.reading import Record, Run
    from ascend_dump.report.tables import Column

__all__ = ["Group", "Head", "RunLabels", "groups_of", "operator_of"]


class Head(NamedTuple):
    """The fields of a record in one line of the listing, named as in `Record`."""

    op_name: str
    op_type: str
    step: Optional[int]
    run: Optional[str]
    rank: Optional[int]
    model: Optional[str]
    shape: Optional[Sequence[int]]
    kernel: Optional[str]
    error: None = None


class Group(NamedTuple):
    """The records of one run of an operator.

    first       its first output, else its first record
    types       names of element types, each once
    records     number of records; unreadable: number of unreadable records
    """

    first: Union[Record, Head]
    inputs: int
    outputs: int
    types: Sequence[str]
    bytes: int
    records: int
    unreadable: int


def groups_of(records: Iterable[Record]) -> Iterator[Group]:
    """Yield the operators in the order of execution."""
    return (_group(list(group)) for _, group in groupby(records, operator_of))


def operator_of(record: Record) -> tuple[Any, ...]:
    """Return the key common to the records of one run of an operator."""
    # An unreadable file stands alone: its records are not known to be of one operator.
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


class _OfRun(Protocol):
    @property
    def run(self) -> Optional[str]: ...


class RunLabels:
    """The labels of the captures of a dump, as in `capture(label=...)`."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = sorted(runs, key=lambda run: run.path.name)

    @cached_property
    def paths(self) -> dict[str, list[str]]:
        """The directories of the runs with a label, by label; empty for a dump without labels."""
        paths: dict[str, list[str]] = {}
        for run in self._runs:
            if run.label:
                paths.setdefault(run.label, []).append(str(run.path))
        return paths

    @cached_property
    def _by_run(self) -> Mapping[str, str]:
        """The label by the name of a run; ranks that started at the same time share a name, and may have several."""
        names: dict[str, dict[str, None]] = {}
        for run in self._runs:
            names.setdefault(run.path.name, {})[run.label] = None
        return {name: ", ".join(filter(None, labels)) for name, labels in names.items()}

    def label(self, record: _OfRun) -> str:
        """Return the label of a record or operator; "" without one."""
        return self._by_run.get(record.run or "", "")

    def columns(self) -> list[Column]:
        """Return the column of labels; none for a dump without labels."""
        from ascend_dump.report.tables import Column

        return [Column("label", elastic=True)] if self.paths else []

    def cells(self, record: _OfRun) -> list[str]:
        return [self.label(record) or "-"] if self.paths else []

    def fields(self, record: _OfRun) -> dict[str, str]:
        """Return the field of a document; none for a dump without labels."""
        return {"label": self.label(record)} if self.paths else {}
