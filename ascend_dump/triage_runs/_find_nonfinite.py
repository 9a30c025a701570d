"""Find the operator that produces NaN or Inf: outline all steps of a program, then record the steps where it begins.

An outline is a file with a few numbers of each step (losses, gradients, parameters) and the first signs of NaN or Inf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Optional

from ascend_dump.adapter import adapters
from ascend_dump.analysis.triage import ONLY_IGNORED, Cause, Triage, triage_failed, triage_of_cause, triage_wrong
from ascend_dump.dump_format import SKIPPED, Outline, Over
from ascend_dump.errors import CaptureError
from ascend_dump.reading import Dump
from ascend_dump.request import Data
from ascend_dump.triage_runs._determinism import first_other_step
from ascend_dump.triage_runs._explain_cause import explain_cause, is_carried
from ascend_dump.triage_runs._find_symptom import explain_symptom
from ascend_dump.triage_runs._runner import PROGRAM, RoundResult, RoundRunner, no_dump
from ascend_dump.triage_runs.looked_at import looked_at, not_looked_at
from ascend_dump.triage_runs.loss_symptoms import LossSymptom, Symptom, changes_before, is_divergence, loss_symptom
from ascend_dump.triage_runs.trainer_steps import trainer_step

__all__ = ["find_nonfinite"]

#: Adapters that record PyTorch. If the program has called no PyTorch module, only other adapters may record it.
_HOST = ("torch", "torchair")
#: Maximum number of model calls that are recorded before the call with the sign of NaN or Inf.
_MOST_CALLS = 6
#: Matches an error message about values that are not finite.
_OF_NAN = re.compile(r"(?<![a-z])(nan|inf|infinite|infinity)(?![a-z])|finite", re.IGNORECASE)


class _Sign(NamedTuple):
    """The first sign of NaN or Inf, or of a failure of the program.

    kind   "wrong": NaN or Inf that the user sees, such as in a loss; "failed": the command ended with an error;
           "printed": the output contains NaN; "read" and "masked" as in `Outline`
    step   step of the sign, None if it is not known
    what   the sign in words, such as the name of the tensor
    trains True if the program has losses
    ignore operators whose NaN and Inf is expected
    """

    kind: str
    step: Optional[int]
    what: str
    trains: bool
    ignore: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.what if self.step is None else f"{self.what} in step {self.step}"


def find_nonfinite(
    runner: RoundRunner,
    command: Sequence[str],
    directory: Path,
    ignore: Sequence[str] = (),
    symptom: Optional[Symptom] = None,
) -> Triage:
    """Run the program until the user would see NaN or Inf, and run it again to record the operator that produces it.

    ignore: operators whose NaN and Inf is expected
    symptom: the symptom to look for in the losses, before NaN and Inf. By default all symptoms are looked for, but only
             if nothing is NaN or Inf. A loss that diverges before it is NaN or Inf is explained as a spike in any case

    Raises CaptureError if the program runs nothing that can be dumped.
    """
    first = runner.watch(PROGRAM, "looks for the first step with NaN or Inf", until="wrong")
    if not any(outline.steps or outline.looked for outline in first.outlines):
        return _without_steps(runner, first, command, directory)
    sign = _sign(first, tuple(ignore))
    notes: tuple[str, ...] = ()
    if symptom is not None or sign is None:
        triage = _explain_symptom_of(runner, first, symptom)
        if triage is not None and (symptom is not None or triage.cause is not None):
            return triage
        notes = () if triage is None else (triage.advice, *triage.notes)
    diverged = _divergence(first)
    if sign is not None and sign.kind == "wrong" and diverged is not None:
        runner.conclude(first, f"{diverged[1].what}; {sign.text}")
        triage = explain_symptom(runner, *diverged)
        if triage.cause is not None:
            return replace(triage, notes=(*triage.notes, sign.text))
    if sign is None:
        triage = _nothing_wrong(runner, first, directory, symptom)
        return replace(triage, notes=(*triage.notes, *notes))
    runner.conclude(first, sign.text)
    triage = _record(runner, command, first, sign)
    if triage.cause is None and sign.kind != "failed":
        clear = looked_at(first.outlines)
        triage = replace(triage, advice=f"{sign.text}; no NaN or Inf in {clear}") if sign.kind != "wrong" else triage
    return triage


def _sign(result: RoundResult, ignore: tuple[str, ...]) -> Optional[_Sign]:
    """Return the first sign of NaN or Inf, None if there is none.

    Inf that the program reads, and NaN or Inf in a masked result, count only in a program without losses.
    """
    outlines = result.outlines
    trains = any(outline.looked.get("loss") for outline in outlines)
    wrong = [outline.wrong for outline in outlines if outline.wrong is not None]
    if wrong:
        return _Sign("wrong", *min(wrong), trains, ignore)
    if result.has_failed:
        error = f": {result.error}" if result.error else ""
        return _Sign(
            "failed",
            max(result.last_step, 0),
            f"the command ended with exit code {result.exit_code}{error}",
            trains,
            ignore,
        )
    read = [outline.read for outline in outlines if outline.read is not None]
    for mark in sorted(read):
        if not trains or mark[1].startswith("NaN"):
            return _Sign("read", *mark, trains, ignore)
    if result.nan_line:
        return _Sign("printed", None, f"the program printed {result.nan_line!r}", trains, ignore)
    masked = [outline.masked for outline in outlines if outline.masked is not None]
    return _Sign("masked", *min(masked), trains, ignore) if masked and not trains else None


def _explain_symptom_of(runner: RoundRunner, first: RoundResult, asked: Optional[Symptom]) -> Optional[Triage]:
    """Explain the first symptom in the losses; None if there is none. asked: look for this symptom only."""
    symptoms = [(symptom, one) for one in first.outlines if (symptom := loss_symptom(one, asked)) is not None]
    if not symptoms:
        return None
    symptom, outline = min(symptoms, key=lambda pair: pair[0].step)
    runner.conclude(first, symptom.what)
    return explain_symptom(runner, outline, symptom)


def _divergence(first: RoundResult) -> Optional[tuple[Outline, LossSymptom]]:
    """Return an outline and its spike if the loss diverges after a change of the optimizer's settings, else None.

    A loss diverges if it never falls below the spike again; here it later becomes NaN or Inf.
    """
    for outline in first.outlines:
        spike = loss_symptom(outline, "spike")
        if spike is not None and is_divergence(outline, spike) and any(changes_before(outline, spike.step)):
            return outline, spike
    return None


def _nothing_wrong(
    runner: RoundRunner, first: RoundResult, directory: Path, symptom: Optional[Symptom] = None
) -> Triage:
    seen = looked_at(first.outlines)
    runner.conclude(first, f"no NaN or Inf in {seen}")
    hint = "`--reference COMMAND` compares with a correct program, and `--determinism` with another run of this one"
    marks = [mark for outline in first.outlines for mark in (outline.masked, outline.read) if mark is not None]
    harmless = tuple(f"{what}, step {step}" for step, what in marks)
    reasons = tuple(not_looked_at(first.outlines))
    if symptom is not None:
        reasons = (*reasons, f"not found: no {symptom} in the losses of these steps")
    return Triage(directory, (), None, None, f"no NaN or Inf in {seen}; {hint}", reasons, harmless=harmless)


def _record(runner: RoundRunner, command: Sequence[str], first: RoundResult, sign: _Sign) -> Triage:
    """Record the steps around the sign, and explain them.

    If these steps do not show where NaN or Inf comes from, trace all steps from the start of the program on.
    """
    last, triage = first, None
    differs = ""
    if sign.step is not None:
        last = _record_steps(runner, first, _first_step_to_record(first, sign.step), sign.step)
        changed_step = first_other_step(first.outlines, last.outlines)
        if changed_step is not None:
            differs = f"the program is not deterministic: step {changed_step} differs between rounds"
        if last.dump is None and not differs:
            raise no_dump(last, command)
        triage = _triage(last, sign)
        if sign.kind == "failed" and not _is_answer(triage) and last.dump is not None:
            triage = triage_failed(last.dump, sign.what) or triage
        is_over = sign.kind == "failed" and not first.nan_line and not differs
        is_over = is_over or (triage is not None and triage.advice.startswith(ONLY_IGNORED))
        if _is_answer(triage) or last.reasons or is_over:
            return _ended(runner, last, triage, sign, differs)
        runner.conclude(last, differs or _outcome(triage))
    purpose = "records the operators with NaN or Inf of all steps; this takes longer"
    traced = runner.trace(PROGRAM, purpose, None if differs else sign.step)
    earliest = _triage(traced, sign)
    cause = None if earliest is None else earliest.cause
    if cause is not None and cause.step is not None and _is_answer(earliest) and not differs:
        runner.conclude(traced, _outcome(earliest))
        again = _record_steps(runner, first, cause.step, cause.step, from_start=cause.step == 0)
        full = _triage(again, sign, cause)
        return _ended(runner, again, full or earliest, sign, differs)
    return _ended(runner, traced, triage if earliest is None else earliest, sign, differs)


def _first_step_to_record(first: RoundResult, step: int) -> int:
    """Return the first step to record: the step before all calls that belong to the same optimizer step.

    All these calls are needed, because one backward pass may go through several calls, for example of a GAN. The step
    before is needed, because a parameter becomes NaN in the step before its first use.
    """
    begin = step
    updates_of_losses = (outline.before for outline in first.outlines if outline.looked.get("loss"))
    before = next((steps for steps in updates_of_losses if step in steps), {})
    while begin - 1 in before and before[begin - 1][0] == before[step][0] and step - begin < _MOST_CALLS:
        begin -= 1
    return max(begin - 1, 0)


def _triage(result: RoundResult, sign: _Sign, cause: Optional[Cause] = None) -> Optional[Triage]:
    """Return the triage of a round's dump, None without a dump. cause: explain this cause of an earlier round again."""
    if result.dump is None:
        return None
    if cause is not None:
        return triage_of_cause(result.dump, cause)
    # If the program raised an exception about NaN, the value that it tested may not be recorded as a symptom.
    is_about_nan = sign.kind == "failed" and _OF_NAN.search(sign.what) is not None
    is_skip = sign.what.startswith(SKIPPED)
    return triage_wrong(
        result.dump, trains=sign.trains, needs_symptom=not is_about_nan, skips_count=is_skip, ignore=sign.ignore
    )


def _is_answer(triage: Optional[Triage]) -> bool:
    """Return True if the source of NaN or Inf was found. Kind "outside" only says that the recording began too late."""
    return triage is not None and triage.cause is not None and triage.cause.kind != "outside"


def _record_steps(
    runner: RoundRunner, first: RoundResult, begin: int, end: int, *, from_start: bool = False
) -> RoundResult:
    """Record the tensors of some steps, so that operators can be replayed; if there is no space, their statistics.

    from_start: True if the first step begins with the program
    """
    steps, room = f"{begin}-{end}" if begin < end else f"{end}", runner.room_for_tensors
    text = f"step {steps}" if begin == end else f"steps {begin} to {end}"
    # In a program without a model, steps end with optimizer updates. Then nothing marks the begin of the first step,
    # so it begins with the program.
    from_start = from_start or (begin == 0 and any(outline.updates for outline in first.outlines))
    if room is not None:
        result = runner.record(
            PROGRAM, f"records {text}", steps=steps, data="full", max_bytes=room, from_start=from_start
        )
        if not result.reasons:
            return result
        runner.conclude(result, f"tensors could not be recorded, statistics are recorded instead: {result.reasons[0]}")
    return runner.record(PROGRAM, f"records statistics of {text}", steps=steps, from_start=from_start)


def _ended(runner: RoundRunner, result: RoundResult, triage: Optional[Triage], sign: _Sign, differs: str) -> Triage:
    """Conclude the last round, and return its triage: with the cause explained, or with advice if there is no cause.

    The operator of the cause is replayed for the explanation.
    """
    triage = triage or Triage(result.directory, (), None, None, "")
    runner.conclude(result, _outcome(triage))
    if triage.cause is None:
        is_ignored = triage.advice.startswith(ONLY_IGNORED)
        advice = triage.advice if is_ignored else _no_operator(sign, result)
        if result.reasons:
            advice = "the dump is incomplete: solve the problems in the notes, and run the same command again"
        triage = replace(triage, advice=advice, reasons=(*triage.reasons, f"not found: {sign.text}"))
    elif triage.records is not None:
        triage = _explained(triage, triage.records, result)
        if triage.cause is not None and triage.cause.kind == "outside":
            operator = f"{triage.cause.op_name} at {triage.cause.source or 'its line'}"
            triage = replace(
                triage,
                next=None,
                advice=f"look at the values that the program passes to {operator}, and at their origin",
            )
    return replace(triage, reasons=(*triage.reasons, *result.reasons, *filter(None, [differs])))


def _explained(triage: Triage, dump: Dump, result: RoundResult) -> Triage:
    triage = explain_cause(triage, dump)
    cause = triage.cause
    assert cause is not None, "there is a cause"
    if cause.step is None:
        return triage
    records = dump.select(step=cause.step, rank=cause.rank)
    time = next((record.timestamp for record in records if record.op_name == cause.op_name), None)
    return replace(triage, when=trainer_step(cause.step, cause.rank, time, result.outlines))


def _keep_last(
    runner: RoundRunner, command: Sequence[str], before: RoundResult, why: str, data: Data = "stats"
) -> Triage:
    runner.conclude(before, why)
    result = runner.keep_last(PROGRAM, "records all steps, until one has NaN or Inf; this takes longer", data)
    if result.dump is None:
        raise no_dump(result, command)
    triage = triage_wrong(result.dump)
    cause = triage.cause
    if cause is not None and is_carried(cause, result.dump):
        operator = f"{cause.op_name} in step {cause.step}"
        what = f"{operator} has NaN or Inf in its inputs already, and no recorded operator made it"
        advice = "record more of the program, such as operators that a framework runs without a graph: see its messages"
        triage = replace(triage, cause=None, advice=advice, reasons=(*triage.reasons, f"not found: {what}"))
    runner.conclude(result, _outcome(triage))
    if triage.cause is not None:
        triage = _explained(triage, result.dump, result)
    return replace(triage, reasons=(*triage.reasons, *result.reasons))


def _outcome(triage: Optional[Triage]) -> str:
    cause = None if triage is None else triage.cause
    return "no operator made NaN or Inf" if cause is None else f"{cause.op_name} in step {cause.step}"


def _no_operator(sign: _Sign, result: RoundResult) -> str:
    if result.has_failed and not result.nan_line:
        return f"no operator of PyTorch made NaN or Inf, and {sign.text}"
    return (
        f"{sign.text}, and no operator of PyTorch made it of finite numbers: it is a mask, or comes from code "
        "outside PyTorch, such as numpy; `ascend-dump stats DUMP --nonfinite` lists the tensors"
    )


def _without_steps(runner: RoundRunner, first: RoundResult, command: Sequence[str], directory: Path) -> Triage:
    failed = [outline.reason for outline in first.outlines if outline.over == Over.FAILED]
    if first.has_failed or failed:
        why = f"the command ended with exit code {first.exit_code} before it called a model" if first.has_failed else ""
        why = why or f"its steps could not be checked: {failed[0]}"
        runner.conclude(first, why)
        return Triage(directory, (), None, None, f"{why}; it must run without ascend-dump, see its output above")
    frameworks = [adapter.name for adapter in adapters() if adapter.usable and adapter.name not in _HOST]
    if not frameworks:
        runner.conclude(first, "the command called no PyTorch module with parameters")
        raise CaptureError(
            "the command called no PyTorch module with parameters, and no other framework is usable here",
            hint="give a command whose Python programs run a model; `ascend-dump doctor` lists the frameworks",
        )
    why = f"no PyTorch module was called; it may use {', '.join(frameworks)}"
    # Tensors are recorded, because not every framework can compute statistics on every device.
    return _keep_last(runner, command, first, why, "tensor")
