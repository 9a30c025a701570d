"""From a program to the operator that makes NaN or Inf: look at all steps, then record the one that it is."""

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

#: Parameters are looked at so often that NaN in one is at most so many steps old.
_OLD = 16
_HOST = ("torch", "torchair")


def find_nonfinite(runner: RoundRunner, command: Sequence[str], directory: Path) -> Triage:
    """Run the program until a step gives NaN or Inf, and again to record that step and the one before.

    Raises CaptureError where it calls no model that can be dumped.
    """
    first = runner.watch(PROGRAM, "looks for the first step with NaN or Inf", until="wrong")
    if first.last_step < 0:
        return _without_steps(runner, first, command, directory)
    if not any(one.steps for one in first.outlines):
        return _keep_last(runner, command, first, "no module returned floating-point numbers that can be looked at")
    found = _first_wrong(first)
    count = first.last_step + 1
    if found is None and not first.has_failed:
        runner.conclude(first, f"no output had NaN or Inf in {count} steps")
        broken = [one for one in first.outlines if one.over in ("", Over.FAILED)]
        reasons = [f"not all was looked at: process {one.name} after step {one.last}: {one.reason}" for one in broken]
        advice = (
            f"nothing was NaN or Inf in {count} steps; `--reference COMMAND` compares with a program that is right, "
            "and `--determinism` with another run of this one"
        )
        return Triage(directory, (), None, None, advice, tuple(one.rstrip(": ") for one in reasons))
    if found is None:
        runner.conclude(first, f"the command ended with exit code {first.exit_code} in step {count - 1}")
        step = count - 1
    else:
        step, what = found
        runner.conclude(first, f"{what} in step {step}")
        if what.endswith(PARAMETERS):
            step = _exactly(runner, step)
    return _record(runner, command, first, step, wrong=found is not None)


def _first_wrong(result: RoundResult) -> Optional[tuple[int, str]]:
    """-Inf alone may be a mask, and counts where there is nothing else."""
    for found in ([one.wrong for one in result.outlines], [one.masked for one in result.outlines]):
        there = [one for one in found if one is not None]
        if there:
            return min(there)
    return None


def _exactly(runner: RoundRunner, step: int) -> int:
    window = f"{max(step - _OLD, 0)}-{step}"
    again = runner.watch(PROGRAM, f"looks at the gradients of steps {window}", until="wrong", gradients=window)
    found = _first_wrong(again)
    if found is None:
        runner.conclude(again, "no gradient had NaN or Inf")
        return step
    runner.conclude(again, f"{found[1]} in step {found[0]}")
    return found[0]


def _record(runner: RoundRunner, command: Sequence[str], first: RoundResult, step: int, *, wrong: bool) -> Triage:
    # A gradient or a loss that nobody returned shows in the outputs of the next step.
    begin = max(step - 1, 0)
    steps = f"{begin}-{step}" if begin < step else f"{step}"
    result = _of_steps(runner, steps)
    other = first_other_step(first.outlines, result.outlines)
    differs = "" if other is None else f"the program does not repeat itself: step {other} was another one in each round"
    if result.dump is None:
        if differs:
            return _add_reason(_keep_last(runner, command, result, differs), differs)
        raise no_dump(result, command)
    found = triage_wrong(result.dump)
    if found.cause is None and differs and wrong:
        return _add_reason(_keep_last(runner, command, result, differs), differs)
    if found.cause is None and result.reasons:
        runner.conclude(result, "the dump is not whole, and what it has shows no NaN or Inf")
        advice = "the dump is not whole: mend what the notes say, and give the same command again"
        found = replace(found, advice=advice)
    else:
        runner.conclude(result, _outcome(found))
        if found.cause is None and wrong:
            found = replace(found, advice=_no_operator(step))
        found = run_cause_again(found, result.dump)
    return replace(found, reasons=(*found.reasons, *result.reasons, *filter(None, [differs])))


def _of_steps(runner: RoundRunner, steps: str) -> RoundResult:
    """The tensors of some steps, from which an operator can be run again; their statistics, where these do not fit."""
    text, room = f"step {steps.replace('-', ' and ')}", runner.room_for_tensors
    if room is not None:
        result = runner.record(PROGRAM, f"records {text}", steps=steps, data="full", max_bytes=room)
        if not result.reasons:
            return result
        runner.conclude(result, f"tensors could not be recorded, statistics will do: {result.reasons[0]}")
    return runner.record(PROGRAM, f"records statistics of {text}", steps=steps)


def _add_reason(found: Triage, reason: str) -> Triage:
    return replace(found, reasons=(*found.reasons, reason))


def _keep_last(
    runner: RoundRunner, command: Sequence[str], before: RoundResult, why: str, data: Data = "stats"
) -> Triage:
    runner.conclude(before, why)
    result = runner.keep_last(PROGRAM, "records all steps, until one has NaN or Inf; this takes longer", data)
    if result.dump is None:
        raise no_dump(result, command)
    found = triage_wrong(result.dump)
    runner.conclude(result, _outcome(found))
    return replace(found, reasons=(*found.reasons, *result.reasons))


def _outcome(found: Triage) -> str:
    cause = found.cause
    return "no operator made NaN or Inf" if cause is None else f"{cause.op_name} in step {cause.step}"


def _no_operator(step: int) -> str:
    return (
        f"step {step} gave -Inf or NaN, and no operator made it of finite numbers: it masks something, or came from "
        "outside; `ascend-dump stats DUMP --nonfinite` lists where it is"
    )


def _without_steps(runner: RoundRunner, first: RoundResult, command: Sequence[str], directory: Path) -> Triage:
    failed = [one.reason for one in first.outlines if one.over == Over.FAILED]
    if first.has_failed or failed:
        why = f"the command ended with exit code {first.exit_code} before it called a model" if first.has_failed else ""
        why = why or f"its steps could not be looked at: {failed[0]}"
        runner.conclude(first, why)
        return Triage(directory, (), None, None, f"{why}; it must run without ascend-dump, see what it printed above")
    others = [one.name for one in adapters() if one.usable and one.name not in _HOST]
    if not others:
        runner.conclude(first, "the command called no PyTorch module with parameters")
        raise CaptureError(
            "the command called no PyTorch module with parameters, and no other framework is usable here",
            hint="give a command whose Python programs run a model; `ascend-dump doctor` lists the frameworks",
        )
    why = f"no PyTorch module was called; it may use {', '.join(others)}"
    # Not every framework computes statistics on every device.
    return _keep_last(runner, command, first, why, "tensor")
