"""The checks of a self-test: they judge the promises of a capture by the files and notes of its processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Callable, Literal, NamedTuple, Optional

from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, open_dump
from ascend_dump.selftest.program import OVERFLOWS, SELECTED, STEPS

if TYPE_CHECKING:
    from ascend_dump.selftest.processes import Ran, Subject
    from ascend_dump.statistics import Statistics

__all__ = ["CheckResult", "CheckState", "check_runs"]

CheckState = Literal["PASS", "FAIL", "SKIP"]

#: Scenario of a process -> the way to start a capture that it uses.
_ROADS = {"with": "with", "decorator": "decorator", "launcher-1": "launcher"}
#: The relative tolerance of statistics, because those of CANN are text with six digits.
_TOLERANCE = 1e-5
#: The code of messages about failed writes.
_NOT_WRITTEN = "[AD501]"
_NO_MESSAGE = "no message reported it"


class CheckResult(NamedTuple):
    """A line of the table. road: the way to start the capture. reason: the deviation, "" if there is none."""

    framework: str
    road: str
    check: str
    state: CheckState
    reason: str = ""


def check_runs(subject: Subject, runs: Mapping[str, Ran]) -> Iterator[CheckResult]:
    """Yield the results of all checks of one framework."""
    plain = runs["plain"]
    if plain.code != 0:
        yield CheckResult(subject.name, "-", "the program runs", "FAIL", plain.last_line)
        return
    for scenario, road in _ROADS.items():
        if scenario in runs:
            yield from _road_results(subject.name, road, runs[scenario], plain)
        else:
            yield CheckResult(subject.name, road, "all", "SKIP", subject.without[road])
    if "with" in runs:
        yield _judged(subject.name, "with", "nothing is written after the block", runs["with"], _nothing_after)
    for scenario, check, judge in (
        ("statistics", "statistics are those of the tensors", _statistics),
        ("overflow", "a planted overflow is found", _overflow),
        ("unwritable", "a path that cannot be written is reported", _reported),
        ("full", "a full disk is reported", _reported_or_unreadable),
    ):
        if scenario in runs:
            yield _judged(subject.name, "with", check, runs[scenario], judge)
        else:
            yield CheckResult(subject.name, "with", check, "SKIP", subject.without[scenario])
    if "launcher-0" in runs:
        check = "the rank that is not selected writes nothing"
        yield _judged(subject.name, "launcher", check, runs["launcher-0"], _no_files)


def _road_results(framework: str, road: str, ran: Ran, plain: Ran) -> Iterator[CheckResult]:
    def same(this: Ran) -> str:
        return _same_results(this, plain)

    checks: tuple[tuple[str, Callable[[Ran], str]], ...] = (
        ("only the selected steps are in the dump", _steps),
        ("names and layout can be read", _names),
        ("values are those that the program had", _values),
        ("results are the same without a capture", same),
    )
    for check, judge in checks:
        yield _judged(framework, road, check, ran, judge)


def _judged(framework: str, road: str, check: str, ran: Ran, judge: Callable[[Ran], str]) -> CheckResult:
    if ran.code != 0:
        return CheckResult(framework, road, check, "FAIL", f"the program failed: {ran.last_line}")
    if "refused" in ran.truth:
        return CheckResult(framework, road, check, "SKIP", str(ran.truth["refused"]).partition("\n")[0])
    try:
        reason = judge(ran)
    except AscendDumpError as error:
        reason = str(error).partition("\n")[0]
    return CheckResult(framework, road, check, "FAIL" if reason else "PASS", reason)


def _dump(ran: Ran) -> Dump:
    return open_dump(ran.dumps)


# The functions of the checks return the deviation, "" if there is none.


def _steps(ran: Ran) -> str:
    steps = _dump(ran).known_values("step")
    return "" if steps == set(SELECTED) else f"the dump has steps {sorted(map(str, steps))}, not {list(SELECTED)}"


def _names(ran: Ran) -> str:
    number = 0
    for record in _dump(ran):
        number += 1
        if record.error is not None:
            return str(record.error).partition("\n")[0]
        if not record.op_type or not record.op_name or record.io not in ("input", "output"):
            return f"{record.path.name} has no operator or side"
    return "" if number else "there are no records"


def _values(ran: Ran) -> str:
    for step in SELECTED:
        selected = _dump(ran).select(step=step)
        for side, kind in (("input", "inputs"), ("output", "outputs")):
            recorded = {(str(record.dtype), record.numpy().tobytes()) for record in selected if record.io == side}
            fetched = ran.of(kind).get(step, [])
            if not fetched:
                return f"the program fetched no {kind} at step {step}"
            missing = next((array for array in fetched if (array.dtype.name, array.tobytes()) not in recorded), None)
            if missing is not None:
                return f"no {side} of step {step} is the {missing.dtype}{list(missing.shape)} that the program had"
    return ""


def _same_results(ran: Ran, plain: Ran) -> str:
    expected, results = plain.of("result"), ran.of("result")
    if len(expected) != STEPS:
        return f"the plain program has results of {len(expected)} steps, not of {STEPS}"
    for step, arrays in expected.items():
        if [array.tobytes() for array in results.get(step, [])] != [array.tobytes() for array in arrays]:
            return f"step {step} has another result under capture"
    return ""


def _nothing_after(ran: Ran) -> str:
    after = ran.truth.get("after")
    if after is None:
        return "the program noted no files"
    return f"{len(after)} files changed, such as {after[0]}" if after else ""


def _statistics(ran: Ran) -> str:
    from ascend_dump.statistics import statistics

    records = [record for record in _dump(ran) if record.io == "output"]
    for step in SELECTED:
        recorded = [record.statistics() for record in records if record.step == step]
        for array in ran.of("outputs").get(step, []):
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


def _overflow(ran: Ran) -> str:
    from ascend_dump.analysis.overflow import find_overflows

    steps = {overflow.record.step for overflow in find_overflows(_dump(ran)).overflows}
    if steps == {OVERFLOWS}:
        return ""
    return f"it was planted at step {OVERFLOWS}, and reported at {sorted(map(str, steps)) or 'none'}"


def _reported(ran: Ran) -> str:
    if not _finished(ran):
        return "the program did not finish"
    return "" if any(_NOT_WRITTEN in message for message in ran.truth.get("messages", ())) else _NO_MESSAGE


def _reported_or_unreadable(ran: Ran) -> str:
    """Return the deviation. A device writes its files itself, so the reader may be first to report lost data."""
    deviation = _reported(ran)
    if deviation == _NO_MESSAGE and any(record.error is not None for record in _dump(ran)):
        return ""
    return deviation


def _finished(ran: Ran) -> bool:
    return set(ran.of("result")) == set(range(STEPS))


def _no_files(ran: Ran) -> str:
    names = [path.name for path in ran.dumps.rglob("*") if path.is_file()]
    return f"{len(names)} files, such as {names[0]}" if names else ""
