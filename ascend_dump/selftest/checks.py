"""The checks of a self-test: they compare the dump of a process with the arrays and notes that the process saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Callable, Literal, NamedTuple, Optional

from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, open_dump
from ascend_dump.selftest.program import OVERFLOWS, SELECTED, STEPS

if TYPE_CHECKING:
    from ascend_dump.selftest.processes import ProcessResult, Subject
    from ascend_dump.statistics import Statistics

__all__ = ["CheckResult", "CheckState", "check_runs"]

CheckState = Literal["PASS", "FAIL", "SKIP"]

#: For each scenario that has the common checks: the way in which it starts a capture.
_START_METHODS = {"with": "with", "decorator": "decorator", "launcher-1": "launcher"}
#: Relative tolerance for statistics: CANN writes them as text with six digits.
_TOLERANCE = 1e-5
#: The code in messages about files that could not be written.
_NOT_WRITTEN = "[AD501]"
_NO_MESSAGE = "no message reported it"


class CheckResult(NamedTuple):
    """A row of the printed table.

    road    the way to start the capture: "with", "decorator" or "launcher"; "-" for none
    reason  for FAIL the deviation, for SKIP the reason, else ""
    """

    framework: str
    road: str
    check: str
    state: CheckState
    reason: str = ""


def check_runs(subject: Subject, runs: Mapping[str, ProcessResult]) -> Iterator[CheckResult]:
    """Yield the results of all checks of one framework. runs: results of its processes, by scenario."""
    plain = runs["plain"]
    if plain.code != 0:
        yield CheckResult(subject.name, "-", "the program runs", "FAIL", plain.last_line)
        return
    for scenario, road in _START_METHODS.items():
        if scenario in runs:
            yield from _road_results(subject.name, road, runs[scenario], plain)
        else:
            yield CheckResult(subject.name, road, "all", "SKIP", subject.without[road])
    if "with" in runs:
        yield _result(subject.name, "with", "nothing is written after the block", runs["with"], _nothing_after)
    for scenario, check, judge in (
        ("statistics", "statistics are those of the tensors", _statistics),
        ("overflow", "a planted overflow is found", _overflow),
        ("unwritable", "a path that cannot be written is reported", _reported),
        ("full", "a full disk is reported", _reported_or_unreadable),
    ):
        if scenario in runs:
            yield _result(subject.name, "with", check, runs[scenario], judge)
        else:
            yield CheckResult(subject.name, "with", check, "SKIP", subject.without[scenario])
    if "launcher-0" in runs:
        check = "the rank that is not selected writes nothing"
        yield _result(subject.name, "launcher", check, runs["launcher-0"], _no_files)


def _road_results(framework: str, road: str, run: ProcessResult, plain: ProcessResult) -> Iterator[CheckResult]:
    def same_as_plain(captured: ProcessResult) -> str:
        return _same_results(captured, plain)

    checks: tuple[tuple[str, Callable[[ProcessResult], str]], ...] = (
        ("only the selected steps are in the dump", _steps),
        ("names and layout can be read", _names),
        ("values are those that the program had", _values),
        ("results are the same without a capture", same_as_plain),
    )
    for check, judge in checks:
        yield _result(framework, road, check, run, judge)


def _result(
    framework: str, road: str, check: str, run: ProcessResult, judge: Callable[[ProcessResult], str]
) -> CheckResult:
    if run.code != 0:
        return CheckResult(framework, road, check, "FAIL", f"the program failed: {run.last_line}")
    if "refused" in run.truth:
        return CheckResult(framework, road, check, "SKIP", str(run.truth["refused"]).partition("\n")[0])
    try:
        reason = judge(run)
    except AscendDumpError as error:
        reason = str(error).partition("\n")[0]
    return CheckResult(framework, road, check, "FAIL" if reason else "PASS", reason)


def _dump(run: ProcessResult) -> Dump:
    return open_dump(run.dumps)


# Each of the following check functions returns a text that describes the deviation, or "" if there is none.


def _steps(run: ProcessResult) -> str:
    steps = _dump(run).known_values("step")
    return "" if steps == set(SELECTED) else f"the dump has steps {sorted(map(str, steps))}, not {list(SELECTED)}"


def _names(run: ProcessResult) -> str:
    number = 0
    for record in _dump(run):
        number += 1
        if record.error is not None:
            return str(record.error).partition("\n")[0]
        if not record.op_type or not record.op_name or record.io not in ("input", "output"):
            return f"{record.path.name} has no operator or side"
    return "" if number else "there are no records"


def _values(run: ProcessResult) -> str:
    for step in SELECTED:
        selected = _dump(run).select(step=step)
        for side, kind in (("input", "inputs"), ("output", "outputs")):
            recorded = {(str(record.dtype), record.numpy().tobytes()) for record in selected if record.io == side}
            fetched = run.arrays_of(kind).get(step, [])
            if not fetched:
                return f"the program fetched no {kind} at step {step}"
            missing = next((array for array in fetched if (array.dtype.name, array.tobytes()) not in recorded), None)
            if missing is not None:
                return f"no {side} of step {step} is the {missing.dtype}{list(missing.shape)} that the program had"
    return ""


def _same_results(run: ProcessResult, plain: ProcessResult) -> str:
    expected, results = plain.arrays_of("result"), run.arrays_of("result")
    if len(expected) != STEPS:
        return f"the plain program has results of {len(expected)} steps, not of {STEPS}"
    for step, arrays in expected.items():
        if [array.tobytes() for array in results.get(step, [])] != [array.tobytes() for array in arrays]:
            return f"step {step} has another result under capture"
    return ""


def _nothing_after(run: ProcessResult) -> str:
    after = run.truth.get("after")
    if after is None:
        return "the program noted no files"
    return f"{len(after)} files changed after the block, such as {after[0]}" if after else ""


def _statistics(run: ProcessResult) -> str:
    from ascend_dump.statistics import statistics

    records = [record for record in _dump(run) if record.io == "output"]
    for step in SELECTED:
        recorded = [record.statistics() for record in records if record.step == step]
        for array in run.arrays_of("outputs").get(step, []):
            ours = statistics(array)
            if not any(_agree(entry, ours) for entry in recorded if entry is not None):
                return f"no output of step {step} has max {ours.max:g}, min {ours.min:g}, mean {ours.mean:g}"
    return "" if records else "there are no records"


def _agree(recorded: Statistics, ours: Statistics) -> bool:
    scale = max(abs(ours.max or 0), abs(ours.min or 0))

    def near(a: Optional[float], b: Optional[float]) -> bool:
        return a is not None and b is not None and math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * scale)

    return recorded.count == ours.count and all(
        near(getattr(recorded, name), getattr(ours, name)) for name in ("max", "min", "mean")
    )


def _overflow(run: ProcessResult) -> str:
    from ascend_dump.analysis.overflow import find_overflows

    steps = {overflow.record.step for overflow in find_overflows(_dump(run)).overflows}
    if steps == {OVERFLOWS}:
        return ""
    return f"the overflow is at step {OVERFLOWS}, and reported at {sorted(map(str, steps)) or 'no step'}"


def _reported(run: ProcessResult) -> str:
    if not _finished(run):
        return "the program did not finish"
    return "" if any(_NOT_WRITTEN in message for message in run.truth.get("messages", ())) else _NO_MESSAGE


def _reported_or_unreadable(run: ProcessResult) -> str:
    """Return "" if a message of the capture, or the reader of the dump, reports lost data; else the deviation.

    A device writes its files itself, so the capture may not notice the full disk. Then the reader has to report it.
    """
    deviation = _reported(run)
    if deviation == _NO_MESSAGE and any(record.error is not None for record in _dump(run)):
        return ""
    return deviation


def _finished(run: ProcessResult) -> bool:
    return set(run.arrays_of("result")) == set(range(STEPS))


def _no_files(run: ProcessResult) -> str:
    names = [path.name for path in run.dumps.rglob("*") if path.is_file()]
    return f"{len(names)} files, such as {names[0]}" if names else ""
