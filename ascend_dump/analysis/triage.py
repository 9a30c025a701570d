"""Find what is wrong in a dump, and the next, narrower dump that shows more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from ascend_dump.analysis.explaining.page_facts import has_values, operator_command, tensor_commands
from ascend_dump.analysis.operators.next_request import is_of_module, layers_of
from ascend_dump.analysis.overflow import watched
from ascend_dump.analysis.suspects import Suspect, SuspectReport, find_suspects, producers_of
from ascend_dump.analysis.suspects.repeated_steps import RepeatedStep, first_changed_repeat
from ascend_dump.common.units import counted, named
from ascend_dump.errors import ConfigError, ReadError
from ascend_dump.reading import Dump, Record, open_dump
from ascend_dump.report.findings import Finding, agreement, nothing_wrong
from ascend_dump.request import DumpRequest
from ascend_dump.steps import Steps
from ascend_dump.storage import named_beside

if TYPE_CHECKING:
    import os

    from ascend_dump.analysis.compare import Comparison, Origin
    from ascend_dump.analysis.suspects.symptoms import Traced
    from ascend_dump.report.page import PageContent

__all__ = [
    "ONLY_IGNORED",
    "Cause",
    "Triage",
    "TriageRound",
    "triage",
    "triage_failed",
    "triage_of_cause",
    "triage_wrong",
]

#: The beginning of `Triage.advice` if only ignored operators have made NaN or Inf.
ONLY_IGNORED = "no operator is known to have made NaN or Inf, apart from those that are ignored"
#: Maximum number of operators that the next dump is narrowed to.
_MOST_LAYERS = 16


@dataclass(frozen=True)
class Cause:
    """The operator at which something is wrong first.

    kind      for NaN and Inf that reach something that the user sees: `SymptomSource.kind`; for an exception: "raised";
              for a loss that jumps, is zero or does not change: "spike", "zero" or "stuck"; else ""
    source    the line of the user's code, `FILE:LINE`
    phase     "forward", "backward" or "other"
    evidence  the facts that support it, one sentence each
    stack     the call stack that led there, innermost function first, as in `Record.stack`
    """

    op_name: str
    op_type: str
    step: Optional[int]
    rank: Optional[int]
    module: Optional[str]
    source: Optional[str]
    phase: Optional[str]
    evidence: tuple[str, ...]
    stack: tuple[str, ...] = ()
    kind: str = ""

    @classmethod
    def of(cls, record: Record, evidence: Iterable[str], kind: str = "") -> Cause:
        """Return the operator of a record as the cause."""
        stack: tuple[str, ...] = ()
        with contextlib.suppress(ReadError):
            stack = record.stack
        names = ("op_name", "op_type", "step", "rank", "module", "source", "phase")
        return cls(**{name: getattr(record, name) for name in names}, evidence=tuple(evidence), stack=stack, kind=kind)

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as plain values, for JSON."""
        return {**vars(self), "evidence": list(self.evidence), "stack": list(self.stack)}


@dataclass(frozen=True)
class TriageRound:
    """One run of a program by `ascend-dump triage --run`.

    program    "program", "reference", or "second run" if a program is compared with itself
    purpose    the purpose of the run, in words
    dump       the path of its dump; None if nothing was recorded
    exit_code  the exit code of the command; None if it was stopped because it had shown enough
    seconds    wall time
    nbytes     bytes written to disk
    outcome    its result, in one sentence
    """

    number: int
    program: str
    purpose: str
    dump: Optional[Path]
    exit_code: Optional[int]
    seconds: float
    nbytes: int
    outcome: str

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain values, for JSON."""
        return {**vars(self), "dump": None if self.dump is None else str(self.dump)}


@dataclass(frozen=True)
class Triage:
    """The findings in a dump, and the next dump to make.

    suspects      records that look wrong without a reference, ranked; empty if there is a reference
    comparison    with the reference, None if there is none
    next          the request of the next, more detailed dump; None if nothing is wrong, or this dump has all details
    advice        the next action, in one sentence
    reasons       reasons why not everything could be checked; empty if it was
    cause         the first suspect or the first origin; None if nothing is wrong
    rounds        the runs of the program that led here; empty if a dump was given
    confirmation  the result of a run with the reference's value in place of the cause's value; "" without such a run
    records       the records that were checked, for a report page; None if they were not kept
    notes         records that were not checked because the capture was asked to leave them out
    harmless      operators that make NaN or Inf that reaches nothing that the user sees
    why           why the operator of the cause makes NaN or Inf, and where that is seen; "" if it is not known
    when          the step of the cause as trainers count it; "" if that is its step in the dump
    """

    dump: Path
    suspects: tuple[Suspect, ...]
    comparison: Optional[Comparison]
    next: Optional[DumpRequest]
    advice: str
    reasons: tuple[str, ...] = ()
    cause: Optional[Cause] = None
    rounds: tuple[TriageRound, ...] = ()
    confirmation: str = ""
    records: Optional[Dump] = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    why: str = ""
    when: str = ""

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Differences from the reference that no earlier record explains."""
        return () if self.comparison is None else self.comparison.origins

    def suspect_findings(self) -> list[Finding]:
        """Return the suspects as findings for the report."""
        several_ranks = self.records is not None and len(self.records.known_values("rank")) > 1
        return [suspect.finding(several_ranks=several_ranks) for suspect in self.suspects]

    def cause_finding(self) -> Optional[Finding]:
        """Return the cause as a finding for the report; None if there is no cause."""
        cause = self.cause
        if cause is None:
            return None
        suspect = next((suspect for suspect in self.suspects if suspect.op_name == cause.op_name), None)
        return Finding(
            # A wrong value from outside is not the fault of the operator that reads it first.
            "first seen" if cause.kind == "outside" else "cause",
            cause.op_name,
            cause.op_type,
            cause.step,
            str(cause.rank or ""),
            phase=cause.phase,
            module=cause.module,
            source=cause.source,
            stack=cause.stack,
            evidence=(*filter(None, [self.why]), *cause.evidence),
            producers=() if suspect is None else suspect.producers,
            confirmation=self.confirmation,
            when=self.when,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the triage as plain values, for JSON."""
        compared = self.comparison
        return {
            "dump": str(self.dump),
            "reference": None if compared is None else str(compared.reference),
            "verdict": None if compared is None else compared.verdict,
            "suspects": [item.to_dict() for item in self.suspects],
            "origins": [item.to_dict() for item in self.origins],
            "next": None if self.next is None else self.next.to_mapping(),
            "advice": self.advice,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "harmless": list(self.harmless),
            "why": self.why,
            "when": self.when,
            "cause": None if self.cause is None else self.cause.to_dict(),
            "rounds": [item.to_dict() for item in self.rounds],
            "confirmation": self.confirmation,
        }

    def save(self, path: Union[str, os.PathLike[str]], *, sources: Union[str, os.PathLike[str], None] = ".") -> Path:
        """Write a report page with the findings and all records; the file name has to end in .html.

        sources: the page shows lines of Python files below this directory where records name them; None shows none.
        Raises ConfigError for another suffix, WriteError if the file cannot be written.
        """
        from ascend_dump.report.page import save_page

        return save_page(self.to_page(), path, "a triage", sources)

    def to_page(self) -> PageContent:
        """Return the content of the report page, for `save` and `ascend-dump serve`."""
        from ascend_dump.analysis._triage_page import of_triage

        return of_triage(self)

    def _repr_html_(self) -> str:
        """Return the findings with a strip of all records, for notebooks."""
        from ascend_dump.report.page import compact

        return compact(self.to_page())


def triage(
    dump: Union[Dump, str, os.PathLike[str]],
    reference: Union[Dump, str, os.PathLike[str], None] = None,
    *,
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]] = None,
    executor: Optional[Executor] = None,
    **settings: Any,
) -> Triage:
    """Find what is wrong in a dump: its suspects, or the origins of its differences from a reference.

    dump, reference  dumps or paths of dumps
    watch            an iterator function that receives each record (and each pair of a comparison) and yields it again,
                     for a progress display
    executor         checks the tensors of several ranks in parallel
    settings         keyword arguments of `compare`, if there is a reference

    `Triage.next` requests the tensors of the findings, at the steps and ranks in question; without a reference also
    those of the operators that made their inputs.

    Raises what opening a dump raises, and ConfigError for settings without a reference.

    >>> found = ascend_dump.triage("dumps")   # doctest: +SKIP
    >>> found.cause.op_name, found.cause.source, found.next   # doctest: +SKIP
    """
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    if reference is None:
        if settings:
            name = next(iter(settings))
            raise ConfigError(f"{name}= is for a comparison, and no reference is given", hint="give reference= too")
        return _alone(opened, watch, executor)
    from ascend_dump.analysis.compare import compare

    reference_dump = reference if isinstance(reference, Dump) else open_dump(reference)
    compared = compare(opened, reference_dump, watch=watch, executor=executor, **settings)
    reasons = (f"{lost.run}: {lost.reason}" for side in (opened, reference_dump) for lost in side.lost_records())
    return replace(_against(opened, compared), reasons=tuple(dict.fromkeys(reasons)))


def _alone(
    dump: Dump, watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]], executor: Optional[Executor]
) -> Triage:
    report = find_suspects(dump, watch=watch, executor=executor)
    if not report.suspects:
        repeated = _of_repeat(dump, report.repeats)
        if repeated is not None:
            return replace(repeated, reasons=report.reasons, notes=report.notes)
        advice = nothing_wrong(is_complete=not report.reasons)
        if not report.reasons:
            hint = "compare with a reference: `ascend-dump triage DUMP REFERENCE`"
            advice = ("" if report.operators else watched(dump)) or f"{advice}; {hint}"
        return Triage(dump.root, (), None, None, advice, report.reasons, records=dump, notes=report.notes)
    return _of_suspects(dump, report.suspects, report)


def _of_repeat(dump: Dump, repeats: Sequence[RepeatedStep]) -> Optional[Triage]:
    """Return the triage of a step that got the inputs of an earlier step, but has other results; None without one."""
    changed = first_changed_repeat(dump, repeats)
    if changed is None:
        return None
    repeat, comparison = changed
    triage = _against(dump, comparison)
    assert triage.cause is not None, "there is an origin"
    first = triage.cause.module or triage.cause.op_name
    why = (
        f"the same inputs and parameters as in step {repeat.earlier} gave another output in step {repeat.step}: "
        f"first at {first}"
    )
    return replace(triage, why=why, cause=replace(triage.cause, evidence=(why, *triage.cause.evidence)))


def triage_wrong(
    dump: Dump,
    *,
    trains: bool = False,
    needs_symptom: bool = False,
    skips_count: bool = False,
    ignore: Iterable[str] = (),
) -> Triage:
    """Return the triage of a dump that is known to have NaN or Inf: only an operator that made it may be the cause.

    trains         the program has losses, and all of them are finite unless a symptom says otherwise
    needs_symptom  without a symptom in the dump no cause is returned
    skips_count    gradients that a scaler refuses are a symptom, because the scaler does not recover
    ignore         operators whose NaN and Inf is known: they are no cause
    """
    from ascend_dump.analysis.suspects.first_wrong import cause_of_wrong
    from ascend_dump.analysis.suspects.symptoms import is_ignored, trace_symptoms
    from ascend_dump.common.ignored import IgnoredOperators

    report = find_suspects(dump)
    ignored = IgnoredOperators(ignore)
    suspects = [
        suspect
        for suspect in report.suspects
        if suspect.rule == "non-finite" and not is_ignored(suspect.record, ignored)
    ]
    traced = trace_symptoms(dump, trains=trains, skips_count=skips_count, ignored=ignored)
    harmless = () if traced is None else _listed(traced.harmless)
    if traced is not None:
        first = _suspect_of(traced, suspects, dump) if traced.counts else None
    elif needs_symptom:
        first, harmless = None, _listed(suspect.record for suspect in suspects)
    else:
        first = cause_of_wrong(dump, suspects, ignored)
    if first is None:
        advice = "no operator is known to have made NaN or Inf"
        if ignored.used:
            advice = f"{ONLY_IGNORED}: {', '.join(ignored.used)}"
        triage = Triage(
            dump.root, report.suspects, None, None, advice, report.reasons, records=dump, notes=report.notes
        )
        return replace(triage, harmless=harmless)
    followers = (suspect for suspect in report.suspects if suspect.op_name != first.op_name)
    triage = _of_suspects(dump, (first, *followers), report)
    assert triage.cause is not None, "there is a suspect"
    if traced is None:
        return triage
    evidence = (first.reason, traced.reaches)
    return replace(triage, cause=replace(triage.cause, kind=traced.source.kind, evidence=evidence), harmless=harmless)


def triage_of_cause(dump: Dump, cause: Cause) -> Optional[Triage]:
    """Return the triage of a dump that has the operator of a known cause; None if that operator is not recorded."""
    records = [record for record in dump.select(step=cause.step, rank=cause.rank) if record.op_name == cause.op_name]
    if not records:
        return None
    report = find_suspects(dump)
    suspects = {(one.op_name, one.step): one for one in report.suspects if one.rule == "non-finite"}
    record = next((record for record in records if record.io == "output"), records[0])
    suspect = suspects.get((cause.op_name, cause.step)) or Suspect("non-finite", record, cause.evidence[0])
    suspect = suspect._replace(producers=suspect.producers or tuple(producers_of(dump, [cause.op_name])))
    triage = _of_suspects(dump, (suspect,), report)
    stack = cause.stack or (triage.cause.stack if triage.cause is not None else ())
    return replace(triage, cause=replace(cause, stack=stack))


def triage_failed(dump: Dump, error: str) -> Optional[Triage]:
    """Return the triage of a dump of a program that ended by an exception in an operator; None if it did not.

    error: the exception in words
    """
    from ascend_dump.analysis.suspects.symptoms import failed_operator

    records = failed_operator(dump)
    if not records:
        return None
    cause = Cause.of(records[0], [error], "raised")
    advice = f"its inputs are in this dump: `{operator_command('show', dump.root, records[0])}`"
    return Triage(dump.root, (), None, None, advice, cause=cause, records=dump)


def _suspect_of(traced: Traced, suspects: Iterable[Suspect], dump: Dump) -> Suspect:
    """Return the source of a symptom as a suspect."""
    record = traced.source.record
    key = (record.op_name, record.step, record.rank)
    found = next((one for one in suspects if (one.op_name, one.step, one.rank) == key), None)
    producers = found.producers if found is not None else tuple(producers_of(dump, [record.op_name]))
    return Suspect("non-finite", record, f"{record.label}: {traced.source.words}", producers=producers)


def _listed(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the operators in words; for each operator type and source line only the first one."""
    first: dict[Any, Record] = {}
    for record in records:
        first.setdefault((record.op_type, record.source or record.op_name), record)
    return tuple(map(_named, first.values()))


def _named(record: Record) -> str:
    line = f", {record.source}" if record.source else ""
    return f"{named(record.op_name, record.op_type)}, step {record.step}{line}"


def _of_suspects(dump: Dump, suspects: tuple[Suspect, ...], report: SuspectReport) -> Triage:
    """Return the triage of these suspects of the report. The first suspect becomes the cause."""
    first = suspects[0]
    # Suspects of the same rule and step may have the same cause; the others follow from it or come later.
    near = [suspect for suspect in suspects if (suspect.rule, suspect.step) == (first.rule, first.step)]
    names = [suspect.op_name for suspect in near] + [name for suspect in near for name in suspect.producers]
    request = _narrower(dump, [suspect.record for suspect in near], names)
    cause = Cause.of(first.record, [first.reason])
    advice = _advice(first.record, request, f"in this dump: `{operator_command('show', dump.root, first.record)}`")
    return Triage(dump.root, suspects, None, request, advice, report.reasons, cause, records=dump, notes=report.notes)


def _against(dump: Dump, compared: Comparison) -> Triage:
    if not compared.origins:
        advice = agreement(compared.verdict, compared.counts)
        if compared.verdict not in ("equal", "noise", "undecided"):
            advice += ": `ascend-dump compare` lists the pairs"
        request = DumpRequest(path=_beside(dump), data="tensor") if compared.verdict == "undecided" else None
        return Triage(dump.root, (), compared, request, advice)
    records = [origin.pair.record for origin in compared.origins]
    request = _narrower(dump, records, [origin.op_name for origin in compared.origins])
    first = compared.origins[0]
    cause = Cause.of(first.pair.record, first.evidence)
    commands = tensor_commands(compared.actual, compared.reference, first.pair)
    commands = commands or [operator_command("show", compared.actual, first.pair.record)]
    location = f"there: {', '.join(f'`{command}`' for command in commands)}"
    return Triage(dump.root, (), compared, request, _advice(first.pair.record, request, location), cause=cause)


def _narrower(dump: Dump, records: list[Record], names: Iterable[str]) -> Optional[DumpRequest]:
    """Return the request for the tensors of these operators; None if the dump has the tensor of the first record.

    For modules it requests the operators that they call.
    """
    first = records[0]
    layers = layers_of(first, names)[:_MOST_LAYERS]
    if not is_of_module(first) and (not layers or has_values(first)):
        return None
    steps = sorted({record.step for record in records if record.step is not None})
    ranks = sorted({record.rank for record in records if record.rank is not None})
    several = len(dump.known_values("rank")) > 1
    return DumpRequest(
        path=_beside(dump),
        steps=Steps(steps) if steps else None,
        ranks=Steps(ranks) if ranks and several else None,
        layers=layers,
        data="tensor",
    )


def _beside(dump: Dump) -> Path:
    return named_beside(dump.root, "_next")


def _advice(record: Record, request: Optional[DumpRequest], location: str) -> str:
    """Return the next action. location: where the tensors are, with the commands that show them."""
    name = record.op_name
    if request is None:
        return f"the tensors of {name} are {location}"
    if is_of_module(record):
        what = f"module {record.module}" if record.module else "the model"
        count = len(request.layers) - 1
        and_others = f" and of {counted(count, 'more module')}" if count > 0 else ""
        return f"dump the operators of {what}{and_others}, without level='module': the next request names them"
    return f"dump the tensors of {name} and of its inputs: the next request names them"
