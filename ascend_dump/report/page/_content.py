"""The content of a page as values: rows in the order of the run, findings, and facts about the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding

__all__ = ["STATES", "PageContent", "PageCurve", "PageError", "PageFinding", "PageRow", "PageState"]


class PageState(NamedTuple):
    """A state of a row: its name, its sign beside its colour, and its meaning."""

    name: str
    sign: str
    meaning: str


#: The states of a row, the best first: those of pairs, and those of records that are not compared.
STATES = (
    PageState("nothing found", "·", "no rule of triage names it, and all its values are finite"),
    PageState("equal", "=", "bit for bit the same"),
    PageState("noise", "≈", "the difference is rounding"),
    PageState("no values", "–", "neither values nor statistics are in the dump"),
    PageState("undecided", "?", "statistics agree, which proves nothing"),
    PageState("unmatched", "○", "the other dump has no such tensor"),
    PageState("structure", "▤", "type or shape differ"),
    PageState("non-finite", "∞", "contains NaN or Inf"),
    PageState("suspect", "▲", "a rule of triage names it"),
    PageState("different", "≠", "differs by more than rounding"),
    PageState("unreadable", "✕", "the file cannot be read"),
)


class PageError(NamedTuple):
    """The distance between the two sides of a row, with the fields of a comparison's `Measure`."""

    rel_l2: float
    max_abs: float
    max_rel: float
    rmse: float
    cosine: Optional[float]
    unequal: int
    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    nonfinite: int
    position: Optional[tuple[int, ...]]
    ulp: tuple[int, ...]


class PageRow(NamedTuple):
    """A record, or a pair of records.

    state      the name of a state; "" for a single record, whose values decide
    how        the evidence of the pairing, and its certainty in percent
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
        record = self.actual if self.actual is not None else self.reference
        assert record is not None, "a row has at least one side"
        return record


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
        """Return a finding as the page shows it: the texts of a label are joined."""
        texts: dict[str, list[str]] = {}
        for label, text in finding.lines():
            texts.setdefault(label, []).append(text)
        return cls(finding.title, record, tuple((label, "\n".join(lines)) for label, lines in texts.items()))


class PageCurve(NamedTuple):
    """A number of a module or parameter over the steps.

    place      run, rank and model in words, if the dump has several; else ""
    spikes     steps whose value is far above those before it
    parts      the first step that differs from the reference by more than rounding; None without one
    steps, values    one value for each step; NaN and Inf are those of the program
    reference  the values of the reference by step; empty without one
    """

    quantity: str
    name: str
    place: str
    steps: Sequence[int]
    values: Sequence[float]
    spikes: Sequence[int] = ()
    parts: Optional[int] = None
    reference: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class PageContent:
    """The content of a page.

    rows         in the order of the run; read once
    verdict      the name of a state, a verdict of a comparison, or "not all checked"
    sentence     the result in one sentence
    facts        facts about it: kind, source line
    command      the command to run next
    compared     rows have two sides
    changed      operators that are called with other arguments after a finding
    unchecked    what was not checked, with the reason
    provenance   facts about dumps and comparison: name and text
    curves       those to look at first of each quantity are first; read once
    """

    title: str
    rows: Iterable[PageRow]
    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    command: str = ""
    compared: bool = False
    findings: tuple[PageFinding, ...] = ()
    unchecked: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    changed: tuple[PageFinding, ...] = ()
    curves: Iterable[PageCurve] = ()

    @property
    def named(self) -> tuple[PageFinding, ...]:
        """The findings, then the changed calls."""
        return (*self.findings, *self.changed)
