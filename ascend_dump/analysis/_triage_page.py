"""The report page of a triage, as values of `ascend_dump.report.page`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional, Protocol

from ascend_dump.analysis.explaining.page_facts import (
    capture_command,
    location_facts,
    run_facts,
    show_command,
    step_text,
)
from ascend_dump.analysis.suspects import RULES, Suspect
from ascend_dump.common.units import named
from ascend_dump.reading import Dump, open_dump
from ascend_dump.report.page import PageContent, PageFinding, PageRow

if TYPE_CHECKING:
    from pathlib import Path

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


def of_triage(found: ShownTriage) -> PageContent:
    """The page of a triage: its pairs if there is a reference, else the records that were checked."""
    rounds = [(f"round {one.number}", f"{one.program}: {one.purpose}; {one.outcome}") for one in found.rounds]
    confirmed = (("confirmed", found.confirmation),) if found.confirmation else ()
    if found.comparison is not None:
        content = found.comparison.to_page()
        unmade = (*content.unmade, *(f"not checked: {text}" for text in found.reasons))
        return replace(content, facts=content.facts + confirmed, unmade=unmade, made=(*content.made, *rounds))
    dump = found.records if found.records is not None else open_dump(found.dump)
    first = found.suspects[0] if found.suspects else None
    if first is not None:
        step = "" if first.step is None else f"Step {first.step}: "
        sentence = f"{step}{named(first.op_name, first.op_type)} is the first suspect: {_bare(first)}."
    elif found.reasons:
        sentence = "Nothing looks wrong in what could be checked."
    else:
        sentence = "Nothing looks wrong by itself."
    made = [("dump", str(found.dump)), *run_facts(dump)]
    return PageContent(
        title=str(found.dump),
        rows=(PageRow(record, None) for record in dump),
        verdict="suspect" if first is not None else "not all checked" if found.reasons else "nothing found",
        sentence=sentence,
        facts=() if first is None else (*_suspect_facts(first), *confirmed),
        command=_command_of(found, first, dump),
        findings=tuple(_suspect(one) for one in found.suspects),
        unmade=tuple(f"not checked: {text}" for text in (*found.reasons, *found.notes)),
        made=(*made, *rounds),
    )


def _suspect_facts(suspect: Suspect) -> Iterator[tuple[str, str]]:
    yield "rule", f"{suspect.rule}: {RULES[suspect.rule].meaning}"
    yield from location_facts(suspect.module, suspect.source)
    if suspect.record.parameter:
        yield "parameter", suspect.record.parameter


def _suspect(suspect: Suspect) -> PageFinding:
    lines = [*_suspect_facts(suspect), ("seen", suspect.reason)]
    if suspect.producers:
        lines.append(("reads from", ", ".join(suspect.producers)))
    if suspect.again:
        lines.append(("again", f"in {suspect.again} later runs of the operator"))
    return PageFinding(f"{step_text(suspect.step)}{suspect.op_name or suspect.op_type}", suspect.record, tuple(lines))


def _bare(suspect: Suspect) -> str:
    """The reason without the leading name of the record, which the page shows already."""
    return suspect.reason.replace(f"{suspect.record.label}: ", "", 1)


def _command_of(found: ShownTriage, first: Optional[Suspect], dump: Dump) -> str:
    if found.next is not None:
        return capture_command(found.next, dump)
    return "" if first is None else show_command(found.dump, first.record)
