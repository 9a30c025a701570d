"""Totals of a dump by module, and a table with one line per module and its worst tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    from ascend_dump.reading import Dump, Record
    from ascend_dump.report.tables import Column
    from ascend_dump.statistics import Statistics

__all__ = ["Measured", "ModuleSums", "by_module", "write_modules"]

#: The fields that identify a module. The name alone may occur in several runs, ranks, models and steps.
_IDENTITY = ("run", "rank", "model", "step", "module")


class ModuleSums:
    """Totals over the tensors of one module.

    first    its first record
    nan      number of NaN elements
    inf      number of Inf elements
    largest  the largest magnitude of a finite element
    worst    the tensor with the most NaN and Inf; if there are none, the tensor with the largest magnitude
    """

    def __init__(self, first: Record) -> None:
        self.first = first
        self.operators: set[Any] = set()
        self.tensors = self.bytes = self.nan = self.inf = 0
        self.largest: Optional[float] = None
        self.worst: Optional[Record] = None
        self._badness = (-1, -1.0)

    def add(self, record: Record, statistics: Optional[Statistics]) -> None:
        self.operators.add(record.execution)
        self.tensors += 1
        self.bytes += record.nbytes or 0
        if statistics is None:
            return
        nan, inf = statistics.nan or 0, (statistics.posinf or 0) + (statistics.neginf or 0)
        self.nan += nan
        self.inf += inf
        ends = [abs(value) for value in (statistics.max, statistics.min) if value is not None]
        finite = [value for value in ends if value < float("inf")]
        if finite:
            self.largest = max(*finite, self.largest or 0.0)
        badness = (nan + inf, max(ends, default=0.0))
        if badness > self._badness:
            self.worst, self._badness = record, badness

    def cells(self, lead: list[Column], *, measured: bool) -> list[str]:
        """Return the cells of a row of `write_modules`.

        lead: the first columns. measured: True if the table has columns for statistics.
        """
        from ascend_dump.cli.shared.reading import leading_cells
        from ascend_dump.report.tables import number

        counts = [len(self.operators), self.tensors, self.bytes]
        cells = [*leading_cells(self.first, lead), self.first.module or "-", *map(str, counts)]
        if measured:
            # In host dumps names of operators begin with the module, which has its own column.
            worst = "-" if self.worst is None else str(self.worst.label).removeprefix(f"{self.first.module}/")
            cells += [str(self.nan), str(self.inf), number(self.largest), worst]
        return cells

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for a JSON document."""
        return {
            **{name: getattr(self.first, name) for name in _IDENTITY},
            "operators": len(self.operators),
            "tensors": self.tensors,
            "bytes": self.bytes,
            "nan": self.nan,
            "inf": self.inf,
            "largest": self.largest,
            "worst": None if self.worst is None else str(self.worst.label),
        }


class Measured(NamedTuple):
    """A record with its statistics, if they are known."""

    record: Record
    statistics: Optional[Statistics]


def by_module(measured: Iterable[Measured]) -> list[ModuleSums]:
    """Return the modules in the order of first execution, separately for each step."""
    sums: dict[Any, ModuleSums] = {}
    for record, statistics in measured:
        key = tuple(getattr(record, name) for name in _IDENTITY)
        module = sums.get(key)
        if module is None:
            module = sums[key] = ModuleSums(record)
        module.add(record, statistics)
    return list(sums.values())


def write_modules(
    dump: Dump, path: str, modules: Sequence[ModuleSums], verb: str, *, as_json: bool, measured: bool = True
) -> None:
    """Write a table with a row per module to stdout, or a JSON document of this verb.

    measured: True if the table has columns for statistics
    """
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, verb, {"path": path, "modules": [module.to_dict() for module in modules]})
        return
    from ascend_dump.cli.shared.reading import leading_columns
    from ascend_dump.report.tables import Column, write_table

    lead = leading_columns(dump)
    spare = {"bytes": 3, "tensors": 2, "operators": 1}
    names = ["operators", "tensors", "bytes", *(["nan", "inf", "largest"] if measured else [])]
    numbers = [Column(name, right=True, spare=spare.get(name, 0)) for name in names]
    worst = [Column("worst", elastic=True)] if measured else []
    columns = [*lead, Column("module", elastic=True), *numbers, *worst]
    write_table(columns, (module.cells(lead, measured=measured) for module in modules), sys.stdout)
