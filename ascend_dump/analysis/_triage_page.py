"""The report page of a triage, as values of `ascend_dump.report.page`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional, Protocol

from ascend_dump.analysis.explaining.page_facts import capture_command, run_facts, show_command
from ascend_dump.analysis.suspects import Suspect
from ascend_dump.analysis.trends import page_curves
from ascend_dump.reading import Dump, open_dump
from ascend_dump.report.findings import LABELS, nothing_wrong, sentence_case
from ascend_dump.report.page import PageContent, PageFinding, PageRow

if TYPE_CHECKING:
    from pathlib import Path

    from ascend_dump.report.findings import Finding
    from ascend_dump.request import DumpRequest

__all__ = ["of_triage"]


class HasPage(Protocol):
    def to_page(self) -> PageContent: ...


class ShownRound(Protocol):
    """The fields of a `TriageRound` that a page shows."""

    @property
    def number(self) -> int: ...
    @property
    def program(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def outcome(self) -> str: ...


class ShownTriage(Protocol):
    """The fields of a `Triage` that a page shows. A protocol, because `Triage.to_page` imports this module."""

    @property
    def dump(self) -> Path: ...
    @property
    def records(self) -> Optional[Dump]: ...
    @property
    def comparison(self) -> Optional[HasPage]: ...
    @property
    def suspects(self) -> Sequence[Suspect]: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def rounds(self) -> Sequence[ShownRound]: ...
    @property
    def confirmation(self) -> str: ...
    @property
    def next(self) -> Optional[DumpRequest]: ...
    def suspect_findings(self) -> Sequence[Finding]: ...


def of_triage(triage: ShownTriage) -> PageContent:
    """Return the page of a triage: its pairs if there is a reference, else the records that were checked."""
    rounds = [(f"round {run.number}", f"{run.program}: {run.purpose}; {run.outcome}") for run in triage.rounds]
    confirmed = ((LABELS["confirmation"], triage.confirmation),) if triage.confirmation else ()
    if triage.comparison is not None:
        content = triage.comparison.to_page()
        unchecked = (*content.unchecked, *(f"not checked: {text}" for text in triage.reasons))
        return replace(
            content, facts=content.facts + confirmed, unchecked=unchecked, provenance=(*content.provenance, *rounds)
        )
    dump = triage.records if triage.records is not None else open_dump(triage.dump)
    findings = triage.suspect_findings()
    nothing = sentence_case(nothing_wrong(is_complete=not triage.reasons))
    provenance = [("dump", str(triage.dump)), *run_facts(dump)]
    return PageContent(
        title=str(triage.dump),
        rows=(PageRow(record, None) for record in dump),
        verdict="suspect" if findings else "not all checked" if triage.reasons else "nothing found",
        sentence=findings[0].sentence if findings else nothing,
        facts=(*findings[0].headline(), *confirmed) if findings else (),
        command=_next_command(triage, dump),
        findings=tuple(PageFinding.of(finding, suspect.record) for finding, suspect in zip(findings, triage.suspects)),
        unchecked=tuple(f"not checked: {text}" for text in (*triage.reasons, *triage.notes)),
        provenance=(*provenance, *rounds),
        curves=page_curves(dump),
    )


def _next_command(triage: ShownTriage, dump: Dump) -> str:
    if triage.next is not None:
        return capture_command(triage.next, dump)
    return show_command(triage.dump, triage.suspects[0].record) if triage.suspects else ""
