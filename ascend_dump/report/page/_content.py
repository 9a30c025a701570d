"""The content of a page as values: rows in execution order, findings, and facts about the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding

__all__ = ["STATES", "PageContent", "PageCurve", "PageError", "PageFinding", "PageRow", "PageState"]


class PageState(NamedTuple):
    """A state of a row: its name, the sign that is shown beside its colour, and its meaning."""

    name: str
    sign: str
    meaning: str


#: The states of a row, from best to worst. Pairs and single records each use some of them.
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
    count: int  # type: ignore[assignment]  # hides the method tuple.count on purpose, as in Statistics
    nonfinite: int
    position: Optional[tuple[int, ...]]
    ulp: tuple[int, ...]


class PageRow(NamedTuple):
    """A record, or a pair of records.

    state      the name of a state; "" for a single record, whose state depends on its values
    how        the evidence of the pairing, and its certainty in percent
    explained  True if an earlier difference explains the difference of this pair
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

    record  the first record with the problem
    lines   pairs of label and text, such as kind, source and evidence
    """

    title: str
    record: Record
    lines: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, finding: Finding, record: Record) -> PageFinding:
        """Convert a finding to the form of a page, in which all texts of one label are joined."""
        texts: dict[str, list[str]] = {}
        for label, text in finding.lines():
            texts.setdefault(label, []).append(text)
        return cls(finding.title, record, tuple((label, "\n".join(lines)) for label, lines in texts.items()))


class PageCurve(NamedTuple):
    """A quantity of a module or parameter over the steps, such as the norm of its gradient.

    place      run, rank and model in words, if the dump has several; else ""
    steps      the step numbers
    values     the value in each of these steps; it may be NaN or Inf if the program computed that
    spikes     steps with a value far above the values before
    parts      the first step with a value that differs from the reference by more than rounding, or None
    reference  the reference's value of each step; empty without a reference
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

    rows         the rows in execution order; iterated once
    verdict      the name of a state, a verdict of a comparison, or "not all checked"
    sentence     the result in one sentence
    facts        (name, text) pairs about the first finding: kind, source line, …
    command      the command to run next
    compared     True if the rows have two sides
    changed      operators that are called with other arguments than in the reference
    unchecked    sentences about what was not checked, with the reason
    provenance   (name, text) pairs about the dumps and the comparison
    curves       the curves, of each quantity the most interesting first; iterated once
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
