"""What a page shows, as values: rows in the order they ran, findings, and what is said of how it was made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding

__all__ = ["STATES", "PageContent", "PageError", "PageFinding", "PageRow", "PageState"]


class PageState(NamedTuple):
    """What a row can be: its name, the sign that stands for it beside its colour, and what it means."""

    name: str
    sign: str
    meaning: str


#: Every state of a row, the best first: those of pairs, and those of records without a partner to compare with.
STATES = (
    PageState("nothing found", "·", "no rule of triage names it, and all its values are finite"),
    PageState("equal", "=", "bit for bit the same"),
    PageState("noise", "≈", "the difference is rounding"),
    PageState("no values", "–", "neither values nor statistics are in the dump"),
    PageState("undecided", "?", "statistics agree, which proves nothing"),
    PageState("unmatched", "○", "the other dump has no such tensor"),
    PageState("structure", "▤", "type or shape differ"),
    PageState("non-finite", "∞", "holds NaN or Inf"),
    PageState("suspect", "▲", "a rule of triage names it"),
    PageState("different", "≠", "differs by more than rounding"),
    PageState("unreadable", "✕", "the file cannot be read"),
)


class PageError(NamedTuple):
    """How far the two sides of a row are apart; the fields are those of a comparison's `Measure`."""

    rel_l2: float
    max_abs: float
    max_rel: float
    rmse: float
    cosine: Optional[float]
    unequal: int
    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    nonfinite: int
    at: Optional[tuple[int, ...]]
    ulp: tuple[int, ...]


class PageRow(NamedTuple):
    """One record, or one of each side that are compared.

    state      one of STATES; "" for a record alone: its values say it
    how        how the two were paired, and how sure that is in percent
    """

    actual: Optional[Record]
    reference: Optional[Record]
    state: str = ""
    reason: str = ""
    how: str = ""
    transformation: str = ""
    explained: bool = False
    error: Optional[PageError] = None

    @property
    def record(self) -> Record:
        found = self.actual if self.actual is not None else self.reference
        assert found is not None, "a row has at least one side"
        return found


@dataclass(frozen=True)
class PageFinding:
    """A suspect or an origin: a heading, and labelled lines.

    record  the first record that shows it
    lines   label and text: kind, source, evidence …
    """

    title: str
    record: Record
    lines: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, finding: Finding, record: Record) -> PageFinding:
        """Return a finding as it is shown on the page: the texts of one label stand below each other."""
        texts: dict[str, list[str]] = {}
        for label, text in finding.lines():
            texts.setdefault(label, []).append(text)
        return cls(finding.title, record, tuple((label, "\n".join(lines)) for label, lines in texts.items()))


@dataclass(frozen=True)
class PageContent:
    """All that a page says.

    rows       in the order they ran; gone through once
    verdict    of STATES, of a comparison, or "not all checked"
    sentence   what is wrong, in one sentence
    facts      what belongs to it: kind, source line
    command    the one command to run next
    compared   whether rows have two sides
    changed    operators that are called differently behind a finding
    unmade     what was not looked at and why
    made       how it was made: name and text
    """

    title: str
    rows: Iterable[PageRow]
    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    command: str = ""
    compared: bool = False
    findings: tuple[PageFinding, ...] = ()
    unmade: tuple[str, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    changed: tuple[PageFinding, ...] = ()

    @property
    def named(self) -> tuple[PageFinding, ...]:
        """All that is named with its place."""
        return (*self.findings, *self.changed)
