"""The label of a capture beside each of its records, for `ls`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Optional, Protocol

if TYPE_CHECKING:
    from ascend_dump.reading import Run
    from ascend_dump.report.tables import Column

__all__ = ["RunLabels"]


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
