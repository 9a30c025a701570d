"""Findings as text: origins, suspects, causes, changed calls, for terminals, pages, notebooks and the demo.

Analyses build a `Finding` of plain values. Labels, meanings, titles and sentences are defined in this file only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from ascend_dump.common.units import counted, named
from ascend_dump.report.tables import escape

__all__ = [
    "ANSWERS",
    "KINDS",
    "LABELS",
    "RULES",
    "CrossedPair",
    "Finding",
    "HasNotes",
    "agreement",
    "brief_lines",
    "comparison_notes",
    "nothing_wrong",
    "rank_text",
    "sentence_case",
    "text_lines",
]

#: Meanings of the kinds of origins; "made" and "given" are those of a comparison of indexes.
KINDS = {
    "structure": "an operator, an argument, a type or a shape differs between the programs",
    "input": "data from outside the recorded operators differ",
    "parameter": "a parameter or a buffer differs when it is first read",
    "compute": "the output differs although the inputs are equal, or equal up to rounding",
    "amplification": "the operator enlarged a difference that was within rounding",
    "unknown": "its inputs, or some of them, could not be compared, and its output differs",
    "collective": "all ranks put equal data into a collective operator, and its result differs",
    "random": "the operator draws random numbers",
    "uninitialised": "the operator read memory that was never written",
    "made": "an output differs although no input of its operator is known to differ",
    "given": "an input differs, and no earlier difference of its rank explains it",
}
#: Meanings of the rules that name suspects.
RULES = {
    "non-finite": "an operator made NaN or Inf, or received it from outside",
    "uninitialised": "an operator read memory that was never written",
    "disagreement": "the result of a collective operator differs between the ranks of its group, or from the result "
    "of their inputs",
    "replicas": "a parameter, or a tensor with a replicated placement, differs between ranks",
    "saturated": "an operator reached the largest value of its type, at which the device may clip larger values",
    "growth": "values are much larger than in all earlier steps, and nothing earlier in the step is",
    "layer-growth": "values are much larger than in the layer before, which has the same structure",
    "dead": "an output has the same value everywhere, and had different values in earlier steps",
    "zero-gradient": "the gradient of a parameter is zero everywhere, while others are not",
    "unmoved": "the optimizer writes a parameter and leaves it unchanged, while it changes others",
    "no-gradient": "a trainable parameter is read, and the optimizer never writes it",
    "underflow": "values became zero when they were cast to a narrower type",
}
#: Answers to the question for overflows, and their meanings.
ANSWERS = {
    "origin": "an operator made NaN or Inf of finite inputs, or the device reported it",
    "nan-made": "an operator made NaN of inputs without NaN: softmax of -Inf, 0*Inf, Inf-Inf",
    "outside": "it entered by an input, a parameter, a number of the program, another rank or an operator that is not "
    "recorded",
    "none": "everything was checked and nothing was found",
    "unchecked": 'nothing was found, but not everything could be checked; "reasons" say why',
}
#: Labels of the lines of a finding by their fields, in the order of the lines.
LABELS = {
    "kind": "kind",
    "rule": "rule",
    "phase": "phase",
    "module": "module",
    "source": "source",
    "stack": "called from",
    "parameter": "parameter",
    "arguments": "arguments",
    "evidence": "evidence",
    "order": "order",
    "producers": "reads from",
    "explains": "explains",
    "first_seen": "before it",
    "again": "again",
    "others": "others",
    "confirmation": "confirm",
    "next": "next",
}
#: Fields that belong to the headline of a page.
_HEADLINE = ("kind", "rule", "module", "source", "parameter", "confirmation")
#: Functions of a call stack that are printed, from the innermost.
_MOST_FRAMES = 8
#: Pairs and names that a note lists.
_MOST_NAMED = 10
_FIRST_SEEN = "was not recorded, or not read: the cause may be there"


@dataclass(frozen=True)
class Finding:
    """An origin, a suspect, a cause, a changed call or an overflow, as plain values.

    role          "origin", "first seen", "suspect", "cause", "changed" or "operator": the label of the title
    rank          a rank or several ("0-3") as text; "" if the rank is not shown
    tensor        the label of the tensor, as in `Record.label`
    kind, rule    one of KINDS, of RULES
    stack         the call stack of the call site, innermost function first
    evidence      the facts that support it, one sentence each
    order         its order among the suspects of other ranks, in words
    producers     the operators that made its inputs
    explains      number of later outputs that differ because of it; ranks_after: of ranks that differ after it
    again         number of later runs of the operator that show the same
    others        number of other operators of this type with the same changed arguments
    confirmation  the result of a run with the correct value
    when          the step as trainers count it
    commands      shell commands that show more; settings: those of the capture to run next, if there are no commands
    """

    role: str
    op_name: str
    op_type: str
    step: Optional[int] = None
    rank: str = ""
    tensor: str = ""
    kind: str = ""
    rule: str = ""
    phase: Optional[str] = None
    module: Optional[str] = None
    source: Optional[str] = None
    stack: Sequence[str] = ()
    parameter: Optional[str] = None
    arguments: Sequence[str] = ()
    evidence: Sequence[str] = ()
    order: str = ""
    producers: Sequence[str] = ()
    explains: int = 0
    ranks_after: int = 0
    again: int = 0
    others: int = 0
    confirmation: str = ""
    when: str = ""
    commands: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The operator and its position in the program: `fc/addmm_0 (aten::addmm), step 0, rank 1`."""
        step = "" if self.step is None else f", step {self.step}"
        rank = f", rank {self.rank}" if self.rank else ""
        return f"{named(self.op_name, self.op_type)}{step}{rank}{f', {self.when}' if self.when else ''}"

    @property
    def call_site(self) -> str:
        """The line of the operator; for one in an installed package the line of the program that led there too."""
        source = self.source or ""
        if not _is_installed(source):
            return source
        own = next((frame.partition(" in ")[0] for frame in self.stack if not _is_installed(frame)), "")
        return f"{source}, called from {own}" if own else source

    @property
    def sentence(self) -> str:
        """The finding as the first one of its role, in one sentence."""
        step = "" if self.step is None else f"Step {self.step}: "
        rank = f" on rank {self.rank}" if self.rank else ""
        role = "suspect" if self.rule else "origin"
        reason = self.evidence[0].replace(f"{self.tensor}: ", "", 1) if self.rule else KINDS[self.kind]
        explains = f"; it explains {self._explains()[0]}" if self.explains else ""
        return f"{step}{named(self.op_name, self.op_type)}{rank} is the first {role}: {reason}{explains}."

    def lines(self, fields: Collection[str] = LABELS) -> list[tuple[str, str]]:
        """Labels and texts of these fields; a field of several lines repeats its label."""
        texts: dict[str, Sequence[Optional[str]]] = {
            "kind": [f"{self.kind}: {KINDS[self.kind]}"] if self.kind else [],
            "rule": [f"{self.rule}: {RULES[self.rule]}"] if self.rule else [],
            "phase": [self.phase if self.phase != "other" else ""],
            "module": [self.module],
            "source": [self.source],
            "stack": self.stack[1:_MOST_FRAMES],
            "parameter": [self.parameter],
            "arguments": self.arguments,
            "evidence": self.evidence,
            "order": [self.order],
            "producers": [", ".join(self.producers)],
            "explains": self._explains(),
            "first_seen": [_FIRST_SEEN] if self.role == "first seen" else [],
            "again": [f"in {counted(self.again, 'later run')} of the operator"] if self.again else [],
            "others": [f"{counted(self.others, 'more operator')} of this type with the same"] if self.others else [],
            "confirmation": [self.confirmation],
            "next": self._next(),
        }
        return [(LABELS[name], text) for name in LABELS if name in fields for text in texts[name] if text]

    def headline(self) -> tuple[tuple[str, str], ...]:
        """The lines for the head of a page."""
        return tuple(self.lines(_HEADLINE))

    def _explains(self) -> list[str]:
        if self.explains:
            return [f"{counted(self.explains, 'later output')} that {'differs' if self.explains == 1 else 'differ'}"]
        return [f"{self.ranks_after} ranks whose first difference comes after it"] if self.ranks_after else []

    def _next(self) -> Sequence[str]:
        if self.commands or not self.settings:
            return self.commands
        return [f"ascend_dump.capture(..., {', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"]


def _is_installed(path: str) -> bool:
    """Return True for a file of an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages"))


def rank_text(rank: Optional[int], several_ranks: bool) -> str:
    """Return the rank of a finding as text; "" for the only rank of a dump, if it is rank 0."""
    return str(rank) if rank is not None and (several_ranks or rank > 0) else ""


def text_lines(finding: Finding, number: Optional[int] = None) -> Iterator[str]:
    """Yield the lines of a finding for a terminal. number: its number in a list of suspects."""
    title = finding.title if number is None else f"{number}. {finding.title}"
    for label, text in ((finding.role, title), *finding.lines()):
        yield f"{label:<12}{escape(text)}"


def brief_lines(finding: Finding, why: str) -> Iterator[str]:
    """Yield a finding in three lines: its operator and step, its call site, and why."""
    texts = [(finding.role, finding.title), ("source", finding.call_site), ("why", why)]
    for label, text in texts:
        if text:
            yield f"{label:<12}{escape(text)}"


def agreement(verdict: str, counts: Mapping[str, int]) -> str:
    """Return the sentence about a comparison without origins. counts: number of pairs by verdict."""
    allowed = " but for operators that may be missing" if counts.get("allowed") else ""
    return {
        "equal": f"both dumps are the same, bit for bit{allowed}",
        "noise": f"the dumps differ by rounding only{allowed}",
        "undecided": "statistics agree, which proves nothing: dump tensors on both sides",
        "unmatched": f"what was compared agrees; {counted(counts.get('unmatched', 0), 'record')} without a partner",
        "unreadable": f"{counted(counts.get('unreadable', 0), 'pair')} cannot be read",
    }.get(verdict, "the dumps differ, and no difference has an origin among the compared operators")


def nothing_wrong(*, is_complete: bool) -> str:
    """Return the sentence about a dump without suspects. is_complete: everything could be checked."""
    return "nothing looks wrong by itself" if is_complete else "nothing looks wrong in what could be checked"


def sentence_case(text: str) -> str:
    """Return the text as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


class CrossedPair(Protocol):
    """Two operators that were paired against the order of pairs with stronger evidence. how: the evidence."""

    @property
    def actual(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def how(self) -> str: ...


class HasNotes(Protocol):
    """The fields of a comparison that its notes are about."""

    @property
    def inside(self) -> tuple[int, int]: ...
    @property
    def left_out(self) -> tuple[int, int]: ...
    @property
    def crossings(self) -> Sequence[CrossedPair]: ...
    @property
    def unused(self) -> Sequence[str]: ...
    @property
    def undefined(self) -> Mapping[str, int]: ...


def comparison_notes(compared: HasNotes) -> Iterator[str]:
    """Yield the notes of a comparison: operators and tensors that were not compared, and doubtful pairs."""
    inside, left_out, unused = compared.inside, compared.left_out, compared.unused
    if any(inside):
        yield (
            f"two frameworks: {inside[0]} operators of actual and {inside[1]} of the reference are inner operators of "
            "compared ones, and make tensors that the other side does not have"
        )
    if any(left_out):
        yield (
            f"left out: {left_out[0]} operators of actual and {left_out[1]} of the reference, which have no "
            "floating-point values of their own to compare, such as views and constants"
        )
    pairs = [f"{pair.actual} with {pair.reference} ({pair.how})" for pair in compared.crossings]
    if pairs:
        further = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
        yield f"paired by weak evidence, across the order of other pairs: {'; '.join(pairs[:_MOST_NAMED])}{further}"
    yield from (f"not used: {text}" for text in unused[:_MOST_NAMED])
    if len(unused) > _MOST_NAMED:
        yield f"not used: {len(unused) - _MOST_NAMED} more (--json lists all)"
    for text, count in compared.undefined.items():
        yield f"not judged: {text} ({counted(count, 'record')})"
