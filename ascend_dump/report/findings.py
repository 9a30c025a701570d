"""Texts of findings (origins, suspects, causes, changed calls) for terminals, pages, notebooks and the demo.

Analyses create a `Finding` from plain values. Labels, meanings, titles and sentences are defined in this file only.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from ascend_dump.common.units import counted, named
from ascend_dump.report.tables import escape, folded

__all__ = [
    "ANSWERS",
    "KINDS",
    "LABELS",
    "RULES",
    "CrossedPair",
    "Finding",
    "HasNotes",
    "agreement",
    "brief_text",
    "cause_lines",
    "comparison_notes",
    "nothing_wrong",
    "rank_text",
    "sentence_case",
    "short_lines",
    "text_lines",
]

#: Meanings of the kinds of origins. Only comparisons of indexes have the kinds "made" and "given".
KINDS = {
    "structure": "an operator, an argument, a type or a shape differs between the programs",
    "input": "data from outside the operators that are compared differ",
    "parameter": "a parameter or a buffer differs when it is first read",
    "wiring": "an operator reads another tensor than in the reference",
    "compute": "the output differs although all compared inputs are equal, up to rounding or as far as statistics show",
    "amplification": "the operator enlarged a difference that was within rounding",
    "unknown": "the output differs, and not all inputs of the operator could be compared",
    "collective": "all ranks put equal data into a collective operator, and its result differs",
    "random": "the operator draws random numbers",
    "uninitialised": "the operator read memory that was never written",
    "made": "an output differs although no input of its operator is known to differ",
    "given": "an input differs, and no earlier difference of its rank explains it",
}
#: Meanings of the rules that name suspects.
RULES = {
    "non-finite": "an operator made NaN or Inf, or received them from outside",
    "uninitialised": "an operator read memory that was never written",
    "collective-order": "a rank waits in a collective that another rank never began, or runs in another order",
    "disagreement": "the result of a collective operator differs between the ranks of its group, or does not follow "
    "from their inputs",
    "extra-operator": "some ranks run an operator between two operators that the other ranks run one after the other",
    "replicas": "a parameter, or a tensor with a replicated placement, differs between ranks",
    "shard-update": "ranks update one tensor, or their parts of one, differently",
    "gradient-factor": "a gradient is not divided by the number of ranks as others are, or is divided twice",
    "other-argument": "one rank calls an operator with another setting than the other ranks, or another operator",
    "unreduced-term": "a tensor that differs between ranks with the same data is added to one that is equal on them",
    "repeated-part": "two ranks have the same part of the data or of a tensor, and each other rank has one of its own",
    "wrong-reduction": "ranks add up a sum again or the same bias several times, or reduce gradients to their maximum",
    "saturated": "an operator reached the largest value of its type, at which the device may clip larger values",
    "growth": "values are much larger than in all earlier steps, and no earlier operator of the step has such values",
    "layer-growth": "values are much larger than in the layer before, which has the same structure",
    "dead": "an output has the same value everywhere, and had different values in earlier steps",
    "zero-gradient": "the gradient of a parameter is zero everywhere, while other gradients are not",
    "unmoved": "the optimizer writes a parameter without changing it, while it changes other parameters",
    "no-gradient": "a trainable parameter is read, and the optimizer never writes it",
    "underflow": "values became zero when they were cast to a narrower type",
}
#: Meanings of the answers of `ascend-dump overflow`.
ANSWERS = {
    "origin": "an operator made NaN or Inf of finite inputs, or the device reported it",
    "nan-made": "an operator made NaN of inputs without NaN: softmax of -Inf, 0*Inf, Inf-Inf",
    "outside": "NaN or Inf came from an input, a parameter, a number of the program, another rank or an operator that "
    "is not recorded",
    "none": "everything was checked and nothing was found",
    "unchecked": 'nothing was found, but not everything could be checked; "reasons" say why',
}
#: Field of a finding -> label of its line, in the order of the lines.
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
#: Fields of a finding that are shown at the head of a page.
_HEADLINE = ("kind", "rule", "module", "source", "parameter", "confirmation")
#: Fields of a finding that a short answer (`brief_text`) contains.
_BRIEF = ("kind", "rule", "phase", "module", "source", "parameter", "arguments", "evidence", "explains", "first_seen")
#: Maximum number of functions of a call stack that are printed, counted from the innermost.
_MOST_FRAMES = 8
#: Maximum number of pairs or names that a note lists.
_MOST_NAMED = 10
#: Maximum number of changed calls that are printed.
_MOST_CALLS = 3
#: Maximum number of differently built parts that a note names; and the pattern of numbers in the names of parts. If two
#: names differ only in their numbers, they are the same part of two layers.
_MOST_PARTS, _NUMBER = 3, re.compile(r"\d+")
#: Maximum number of versions, variables and settings that a note names, and maximum number of labels.
_MOST_AROUND = 5
_MOST_LABELS = 8
#: Maximum number of bytes of a short answer, and of a line in it. Lines with a next step are never cut.
_MOST_BRIEF = 2000
_MOST_OF_LINE = 240
_FIRST_SEEN = "operators were not recorded, not read or not compared: the cause may be among them"


@dataclass(frozen=True)
class Finding:
    """An origin, a suspect, a cause, a changed call or an overflow, as plain values.

    role          "origin", "first seen", "suspect", "cause", "changed" or "operator": the label of the title
    rank          one or several ranks as text, such as "0-3"; "" if the rank is not shown
    tensor        the label of the tensor, as in `Record.label`
    kind          a key of KINDS for an origin, else ""
    rule          a key of RULES for a suspect, else ""
    stack         the call stack of the call site, innermost function first
    evidence      the facts that support the finding, one sentence each
    order         a sentence about suspects of other ranks that come earlier than this one
    producers     the operators that produced its inputs
    explains      number of later outputs that differ because of it
    ranks_after   number of ranks whose first difference comes after this finding
    again         number of later runs of the operator with the same finding
    others        number of other operators of this type with the same changed arguments
    confirmation  the result of a run with the correct value
    when          the step in the numbers of the training framework, such as "optimizer step 2"
    commands      shell commands that show more
    settings      arguments of the capture to run next, printed if there are no commands
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
        """The source line of the operator. If it is in an installed package, the program's line that called it too."""
        source = self.source or ""
        if not _is_installed(source):
            return source
        own = next((frame.partition(" in ")[0] for frame in self.stack if not _is_installed(frame)), "")
        return f"{source}, called from {own}" if own else source

    @property
    def sentence(self) -> str:
        """A sentence that presents the finding as the first suspect, or as the first origin."""
        step = "" if self.step is None else f"Step {self.step}: "
        rank = f" on rank {self.rank}" if self.rank else ""
        role = "suspect" if self.rule else "origin"
        reason = self.evidence[0].replace(f"{self.tensor}: ", "", 1) if self.rule else KINDS[self.kind]
        explains = f"; it explains {self._explains()[0]}" if self.explains else ""
        return f"{step}{named(self.op_name, self.op_type)}{rank} is the first {role}: {reason}{explains}."

    def lines(self, fields: Collection[str] = LABELS) -> list[tuple[str, str]]:
        """Return a (label, text) pair for each line of these fields. A field with several lines repeats its label."""
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
            "others": self._others_text(),
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

    def _others_text(self) -> list[str]:
        count = counted(self.others, "more operator")
        return [f"{count} of this type with the same changed arguments"] if self.others else []

    def _next(self) -> Sequence[str]:
        if self.commands or not self.settings:
            return self.commands
        return [f"ascend_dump.capture(..., {', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"]


def _is_installed(path: str) -> bool:
    """Return True for a file of an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages"))


def rank_text(rank: Optional[int], several_ranks: bool) -> str:
    """Return the rank of a finding as text; "" if it is None, or if the dump has rank 0 only."""
    return str(rank) if rank is not None and (several_ranks or rank > 0) else ""


def text_lines(finding: Finding, number: Optional[int] = None) -> Iterator[str]:
    """Yield the lines of a finding for a terminal. number: its number in a list of suspects."""
    title = finding.title if number is None else f"{number}. {finding.title}"
    for label, text in ((finding.role, title), *finding.lines()):
        yield from _folded(label, text)


def _folded(label: str, text: str) -> Iterator[str]:
    """Yield a labelled text in lines that fit the terminal; without a terminal, in lines of 100 columns.

    A command (label "next") is not folded, so that it can be copied.
    """
    line = f"{label:<12}{escape(text)}"
    yield from (line,) if label == "next" else folded(line, sys.stdout, 12)


def cause_lines(finding: Finding, why: str) -> Iterator[str]:
    """Yield a finding in three lines: operator and step, call site, and reason. why: the reason."""
    texts = [(finding.role, finding.title), ("source", finding.call_site), ("why", why)]
    for label, text in texts:
        if text:
            yield from _folded(label, text)


def brief_text(
    answer: str,
    finding: Optional[Finding],
    *,
    next_steps: Sequence[str] = (),
    not_checked: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return a short answer for an assistant or a script, of at most 2 kB: answer, finding, next step.

    next_steps: commands to run next; by default those of the finding

    If the text would be too long, lines are left out, first notes and evidence, and a last line says how many.
    """
    lines = [("answer", answer)]
    if finding is not None:
        lines += [(finding.role, finding.title), *finding.lines(_BRIEF)]
        next_steps = next_steps or [text for _, text in finding.lines(("next",))]
    lines += [*(("not checked", text) for text in not_checked), *(("note", text) for text in notes)]
    lines += [("next", text) for text in next_steps]
    order = {"answer": 0, "next": 2, "not checked": 3, **({} if finding is None else {finding.role: 1})}
    more = "more lines without --brief"
    room, fitting = _MOST_BRIEF - len(f"{len(lines)} {more}\n"), {}
    for position, (label, text) in sorted(enumerate(lines), key=lambda item: order.get(item[1][0], 4)):
        line = f"{label:<12}{escape(text)}"
        line = line if label == "next" else _cut(line, _MOST_OF_LINE)
        size = len(line.encode(errors="replace")) + 1
        if size <= room:
            room -= size
            fitting[position] = line
    hidden = len(lines) - len(fitting)
    return "\n".join([*(fitting[position] for position in sorted(fitting)), *([f"{hidden} {more}"] if hidden else [])])


def _cut(line: str, size: int) -> str:
    encoded = line.encode(errors="replace")
    return line if len(encoded) <= size else f"{encoded[:size].decode(errors='ignore')}…"


def short_lines(findings: Sequence[Finding], calls: Sequence[Finding], room: int) -> Iterator[str]:
    """Yield a line for each further origin, the changed calls, and a line that counts those without one.

    room: number of lines that are left on the screen. There are at least one origin and one call.
    """
    called = [list(_folded(call.role, _call_text(call))) for call in calls[:_MOST_CALLS]]
    while len(called) > 1 and sum(map(len, called)) > room - 2:
        called.pop()
    if sum(map(len, called)) > room - 1:
        names = [call.title.partition(" ")[0] for call in calls[: len(called)]]
        called = [[_one_line(call.role, f"{name}: {', '.join(call.arguments)}")] for name, call in zip(names, calls)]
    left = room - sum(map(len, called))
    most = min(left if len(findings) <= left and len(calls) == len(called) else left - 1, _MOST_NAMED - 1)
    shown = findings[: max(1, most)]
    for finding in shown:
        operator = finding.title.partition(" ")[0]
        evidence = [text.removeprefix(f"{operator}.") for text in finding.evidence[:1]]  # the title names the operator
        yield _one_line("and", f"{finding.title}, {': '.join([finding.kind, *evidence])}")
    yield from itertools.chain.from_iterable(called)
    counts = {"origin": len(findings) - len(shown), "changed call": len(calls) - len(called)}
    more = [counted(count, f"more {what}") for what, count in counts.items() if count > 0]
    if more:
        yield f"{', '.join(more)}: --all prints them"


def _call_text(call: Finding) -> str:
    others = f" (and {counted(call.others, 'more operator')})" if call.others else ""
    return f"{call.title}: {', '.join(call.arguments)}{others}"


def _one_line(label: str, text: str) -> str:
    first, *others = _folded(label, text)
    return f"{first} …" if others else first


def agreement(verdict: str, counts: Mapping[str, int]) -> str:
    """Return the sentence about a comparison without origins. counts: number of pairs by verdict."""
    allowed = " but for operators that may be missing" if counts.get("allowed") else ""
    return {
        "equal": f"both dumps are the same, bit for bit{allowed}",
        "noise": f"the dumps differ by rounding only{allowed}",
        "undecided": "statistics agree, which proves nothing: dump tensors on both sides",
        "unmatched": f"all compared pairs agree; without a partner: {counted(counts.get('unmatched', 0), 'record')}",
        "unreadable": f"{counted(counts.get('unreadable', 0), 'pair')} cannot be read",
    }.get(verdict, "the dumps differ, and no difference has an origin among the compared operators")


def nothing_wrong(*, is_complete: bool) -> str:
    """Return the sentence about a dump without suspects. is_complete: everything could be checked."""
    return "nothing looks wrong by itself" if is_complete else "nothing looks wrong in what could be checked"


def sentence_case(text: str) -> str:
    """Return the text as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


class CrossedPair(Protocol):
    """Two operators that were paired by weak evidence, and that contradict the order of pairs with better evidence.

    how: the evidence
    """

    @property
    def actual(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def how(self) -> str: ...


class RebuiltPart(Protocol):
    """A part of the programs that is built differently. actual, reference: number of its operators on each side."""

    @property
    def name(self) -> str: ...
    @property
    def actual(self) -> int: ...
    @property
    def reference(self) -> int: ...


class SurroundingText(Protocol):
    """A version, an environment variable or a setting that differs between the programs. None: it is not set."""

    @property
    def name(self) -> str: ...
    @property
    def actual(self) -> Optional[str]: ...
    @property
    def reference(self) -> Optional[str]: ...


class HasNotes(Protocol):
    """The fields of a comparison that `comparison_notes` reads.

    inside    number of operators of (actual, reference) that run inside a compared operator
    left_out  number of operators of (actual, reference) without floating-point values of their own, such as views
    """

    @property
    def inside(self) -> tuple[int, int]: ...
    @property
    def left_out(self) -> tuple[int, int]: ...
    @property
    def crossings(self) -> Sequence[CrossedPair]: ...
    @property
    def rebuilt(self) -> Sequence[RebuiltPart]: ...
    @property
    def around(self) -> Sequence[SurroundingText]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def unused(self) -> Sequence[str]: ...
    @property
    def undefined(self) -> Mapping[str, int]: ...
    @property
    def aligned(self) -> Sequence[str]: ...


def _rebuilt_text(parts: Sequence[RebuiltPart]) -> str:
    """Describe the parts. Parts of several layers that differ in the same way are described once."""
    alike: dict[tuple[str, int, int], list[str]] = {}
    for part in parts:
        alike.setdefault((_NUMBER.sub("*", part.name), part.actual, part.reference), []).append(part.name)
    texts = []
    for (name, actual, reference), names in alike.items():
        sizes = f"{counted(actual, 'operator')} here, {reference} in the reference"
        if not actual and not reference:
            sizes = "another parameter"
        texts.append(f"{names[0]} ({sizes})" if len(names) == 1 else f"{name} ({len(names)} times: {sizes})")
    further = f" and {len(texts) - _MOST_PARTS} more" if len(texts) > _MOST_PARTS else ""
    return f"{'; '.join(texts[:_MOST_PARTS])}{further}"


def _labels_text(labels: Mapping[str, str]) -> str:
    texts = [f"{label or '(none)'} {verdict}" for label, verdict in labels.items()]
    further = f" and {len(texts) - _MOST_LABELS} more" if len(texts) > _MOST_LABELS else ""
    return f"{', '.join(texts[:_MOST_LABELS])}{further}"


def _around_text(around: Sequence[SurroundingText]) -> str:
    texts = [
        f"{one.name} {_or_not_set(one.actual)} here, {_or_not_set(one.reference)} in the reference" for one in around
    ]
    further = f" and {len(texts) - _MOST_AROUND} more (--json lists all)" if len(texts) > _MOST_AROUND else ""
    return f"{'; '.join(texts[:_MOST_AROUND])}{further}"


def _or_not_set(text: Optional[str]) -> str:
    return "not set" if text is None else text


def _crossed_pairs(compared: HasNotes, *, full: bool) -> Iterator[str]:
    """Yield the note about doubtful pairs. A pair of several steps is named once."""
    pairs = list(dict.fromkeys(f"{pair.actual} with {pair.reference} ({pair.how})" for pair in compared.crossings))
    further = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    named = f"{'; '.join(pairs[:_MOST_NAMED])}{further}"
    if pairs:
        short = f"{counted(len(pairs), 'pair')} (--all names them)"
        yield f"paired by weak evidence, against the order of other pairs: {named if full else short}"


def comparison_notes(compared: HasNotes, *, full: bool = True) -> Iterator[str]:
    """Yield the notes of a comparison, one sentence each.

    They are about what differs around the programs, the alignment, the verdicts of labels, operators and tensors that
    were not compared, parts that are built differently, doubtful pairs, and settings without effect.

    full: name the doubtful pairs too. Otherwise a note has only as much as a screen has room for.
    """
    inside, left_out, unused = compared.inside, compared.left_out, compared.unused
    if compared.around:
        yield f"around the programs: {_around_text(compared.around)}"
    yield from compared.aligned
    if compared.labels:
        yield f"by label: {_labels_text(compared.labels)}"
    if not full and any(inside) and any(left_out):
        sides = (f"{actual} and {reference}" for actual, reference in (inside, left_out))
        yield "left out: {} operators inside compared ones, {} without values of their own".format(*sides)
        inside = left_out = (0, 0)
    if any(inside):
        yield (
            f"other operators: {inside[0]} of actual and {inside[1]} of the reference run inside compared "
            "operators, and are not compared themselves: the other side does not have their tensors"
        )
    if any(left_out):
        yield (
            f"left out: {left_out[0]} operators of actual and {left_out[1]} of the reference, which have no "
            "floating-point values of their own to compare, such as views and constants"
        )
    if compared.rebuilt:
        yield f"built differently, and the results agree: {_rebuilt_text(compared.rebuilt)}"
    yield from _crossed_pairs(compared, full=full)
    yield from (f"not used: {text}" for text in unused[:_MOST_NAMED])
    if len(unused) > _MOST_NAMED:
        yield f"not used: {len(unused) - _MOST_NAMED} more (--json lists all)"
    for text, count in compared.undefined.items():
        yield f"not judged: {text} ({counted(count, 'record')})"
