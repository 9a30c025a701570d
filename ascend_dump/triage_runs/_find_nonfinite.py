"""Find the operator that makes NaN or Inf: summarise all steps of a program, then record the wrong step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ascend_dump.adapter import adapters
from ascend_dump.analysis.triage import Triage, triage_wrong
from ascend_dump.dump_format import PARAMETERS, Over
from ascend_dump.errors import CaptureError
from ascend_dump.request import Data
from ascend_dump.triage_runs._determinism import first_other_step
from ascend_dump.triage_runs._rerun_cause import run_cause_again
from ascend_dump.triage_runs._runner import PROGRAM, RoundResult, RoundRunner, no_dump

__all__ = ["find_nonfinite"]

#: Parameters are checked often enough that NaN in them is at most this many steps old.
_OLD = 16
_HOST = ("torch", "torchair")


def find_nonfinite(runner: RoundRunner, command: Sequence[str], directory: Path) -> Triage:
    """Run the program until a step returns NaN or Inf, and again to record that step and the step before.

    Raises CaptureError if the program calls no model that can be dumped.
    """
    first = runner.watch(PROGRAM, "looks for the first step with NaN or Inf", until="wrong")
    if first.last_step < 0:
        return _without_steps(runner, first, command, directory)
    if not any(outline.steps for outline in first.outlines):
        return _keep_last(runner, command, first, "no module returned floating-point numbers that can be looked at")
    wrong_step = _first_wrong(first)
    count = first.last_step + 1
    if wrong_step is None and not first.has_failed:
        runner.conclude(first, f"no output had NaN or Inf in {count} steps")
        unfinished = [outline for outline in first.outlines if outline.over in ("", Over.FAILED)]
        reasons = [
            f"not checked: process {outline.name} after step {outline.last}: {outline.reason}".rstrip(": ")
            for outline in unfinished
        ]
        advice = (
            f"nothing was NaN or Inf in {count} steps; `--reference COMMAND` compares with a correct program, "
            "and `--determinism` with another run of this one"
        )
        return Triage(directory, (), None, None, advice, tuple(reasons))
    if wrong_step is None:
        runner.conclude(first, f"the command ended with exit code {first.exit_code} in step {count - 1}")
        step = count - 1
    else:
        step, what = wrong_step
        runner.conclude(first, f"{what} in step {step}")
        if what.endswith(PARAMETERS):
            step = _exactly(runner, step)
    return _record(runner, command, first, step, wrong=wrong_step is not None)


def _first_wrong(result: RoundResult) -> Optional[tuple[int, str]]:
    """Return the first step with NaN or Inf and its description. -Inf alone may be a mask: it counts last."""
    for marks in ([outline.wrong for outline in result.outlines], [outline.masked for outline in result.outlines]):
        steps = [mark for mark in marks if mark is not None]
        if steps:
            return min(steps)
    return None


def _exactly(runner: RoundRunner, step: int) -> int:
    window = f"{max(step - _OLD, 0)}-{step}"
    again = runner.watch(PROGRAM, f"looks at the gradients of steps {window}", until="wrong", gradients=window)
    wrong_step = _first_wrong(again)
    if wrong_step is None:
        runner.conclude(again, "no gradient had NaN or Inf")
        return step
    runner.conclude(again, f"{wrong_step[1]} in step {wrong_step[0]}")
    return wrong_step[0]


def _record(runner: RoundRunner, command: Sequence[str], first: RoundResult, step: int, *, wrong: bool) -> Triage:
    # A gradient or a loss that is not returned appears in the outputs of the next step.
    begin = max(step - 1, 0)
    steps = f"{begin}-{step}" if begin < step else f"{step}"
    result = _of_steps(runner, steps)
    changed_step = first_other_step(first.outlines, result.outlines)
    differs = (
        "" if changed_step is None else f"the program is not deterministic: step {changed_step} differs between rounds"
    )
    if result.dump is None:
        if differs:
            return _add_reason(_keep_last(runner, command, result, differs), differs)
        raise no_dump(result, command)
    triage = triage_wrong(result.dump)
    if triage.cause is None and differs and wrong:
        return _add_reason(_keep_last(runner, command, result, differs), differs)
    if triage.cause is None and result.reasons:
        runner.conclude(result, "the dump is incomplete, and its records show no NaN or Inf")
        advice = "the dump is incomplete: solve the problems in the notes, and run the same command again"
        triage = replace(triage, advice=advice)
    else:
        runner.conclude(result, _outcome(triage))
        if triage.cause is None and wrong:
            triage = replace(triage, advice=_no_operator(step))
        triage = run_cause_again(triage, result.dump)
    return replace(triage, reasons=(*triage.reasons, *result.reasons, *filter(None, [differs])))


def _of_steps(runner: RoundRunner, steps: str) -> RoundResult:
    """Record the tensors of some steps, from which an operator can be run again; or their statistics, to save space."""
    text, room = f"step {steps.replace('-', ' and ')}", runner.room_for_tensors
    if room is not None:
        result = runner.record(PROGRAM, f"records {text}", steps=steps, data="full", max_bytes=room)
        if not result.reasons:
            return result
        runner.conclude(result, f"tensors could not be recorded, statistics are recorded instead: {result.reasons[0]}")
    return runner.record(PROGRAM, f"records statistics of {text}", steps=steps)


def _add_reason(triage: Triage, reason: str) -> Triage:
    return replace(triage, reasons=(*triage.reasons, reason))


def _keep_last(
    runner: RoundRunner, command: Sequence[str], before: RoundResult, why: str, data: Data = "stats"
) -> Triage:
    runner.conclude(before, why)
    result = runner.keep_last(PROGRAM, "records all steps, until one has NaN or Inf; this takes longer", data)
    if result.dump is None:
        raise no_dump(result, command)
    triage = triage_wrong(result.dump)
    runner.conclude(result, _outcome(triage))
    return replace(triage, reasons=(*triage.reasons, *result.reasons))


def _outcome(triage: Triage) -> str:
    cause = triage.cause
    return "no operator made NaN or Inf" if cause is None else f"{cause.op_name} in step {cause.step}"


def _no_operator(step: int) -> str:
    return (
        f"step {step} returned -Inf or NaN, and no operator made it of finite numbers: it is a mask, or came from "
        "outside; `ascend-dump stats DUMP --nonfinite` lists the tensors"
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
    # Not every framework computes statistics on every device.
    return _keep_last(runner, command, first, why, "tensor")
