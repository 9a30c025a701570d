"""Probes of eager operators on an NPU: their files, numbers and switches."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.names import reports_no_outputs
from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.native.cann.names import EagerName, eager_name, parse_name
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import DeviceFile, Evidence, Untried, fact, outcome, probes, step_of

__all__ = ["PROBES"]

_PRODUCT_API = re.compile(r"aclnn(Addmm|Mm|Matmul|BatchMatMul|Linear)", re.ASCII)
_PRODUCT_KERNEL = re.compile(r"mat_?mul", re.IGNORECASE)
_NO_ID = 65535
_LARGEST = 65504.0


class _EagerFile(NamedTuple):
    """A file of an eager operator. sides: "input", "output" or both."""

    file: DeviceFile
    eager: EagerName
    sides: tuple[str, ...]

    @property
    def call(self) -> tuple[str, int]:
        return self.eager.api, self.eager.number


def _eager_files(evidence: Evidence) -> list[_EagerFile]:
    """Return the files of eager operators in the order of their times. Raises Untried if there are none."""
    found = []
    for file in evidence.dumped if evidence.eager else ():
        eager = None if file.name is None else eager_name(file.parsed)
        if eager is not None:
            sides = dict.fromkeys(tensor.io for tensor in read_header(file.path).tensors)
            found.append(_EagerFile(file, eager, tuple(sides)))
    if not found:
        raise Untried("no file of an eager operator was written")
    return sorted(found, key=lambda each: each.file.parsed.timestamp)


def no_model_levels(evidence: Evidence) -> Outcome:
    """Judge the levels of eager operators: directly in the directory of the device."""
    files = _eager_files(evidence)
    wrong = [each.file for each in files if len(each.file.levels) != 1]
    return outcome(not wrong, "/".join(wrong[0].levels) if wrong else f"{len(files)} files directly below the device")


def split_files(evidence: Evidence) -> Outcome:
    """Judge the sides of each file, and that there are files of both sides."""
    files = _eager_files(evidence)
    counts = Counter("+".join(each.sides) for each in files)
    return outcome(
        set(counts) == {"input", "output"}, ", ".join(f"{count} of {side}" for side, count in counts.items())
    )


def levels(evidence: Evidence) -> Outcome:
    """Judge the names, order and shapes: whole storages of an API call before and after those of its kernels.

    A few APIs have no file of outputs, and kernels that do not run on AI Core have no files.
    """
    by_call: defaultdict[tuple[str, int], list[_EagerFile]] = defaultdict(list)
    for each in _eager_files(evidence):
        if not each.eager.generated:
            by_call[each.call].append(each)
    kernels = 0
    for (api, number), files in by_call.items():
        sides = ["input"] if reports_no_outputs(api) else ["input", "output"]
        ends = [each for each in files if each.eager.kernel is None]
        around = [files[0], files[-1]][: len(sides)]
        good = ends == around and [each.sides for each in ends] == [(side,) for side in sides]
        if not good or any(each.file.parsed.op_name != api for each in ends):
            names = ", ".join(f"{each.file.parsed.op_type}.{each.file.parsed.op_name}" for each in files)
            return Outcome("refuted", f"call {number}: {names}")
        shapes = [tensor.shape for end in ends for tensor in read_header(end.file.path).tensors]
        if any(len(shape) != 1 for shape in shapes):
            return Outcome("refuted", f"call {number} of {api} has the shapes {shapes}")
        kernels += len(files) > len(ends)
    if not by_call:
        return Outcome("unknown", "no API call was written")
    return outcome(kernels > 0, f"{len(by_call)} calls, {kernels} with kernels")


def call_counter(evidence: Evidence) -> Outcome:
    """Judge the numbers: they rise with time, and count the calls of the step between that is not dumped."""
    calls: dict[Optional[int], list[int]] = {}
    for each in _eager_files(evidence):
        numbers = calls.setdefault(step_of(evidence, each.file), [])
        if not numbers or numbers[-1] != each.eager.number:
            numbers.append(each.eager.number)
    ordered = [number for numbers in calls.values() for number in numbers]
    if ordered != sorted(set(ordered)):
        return Outcome("refuted", f"numbers {ordered}")
    if len(calls) < 2:
        return Outcome("unknown", "one step was dumped")
    first, second = list(calls.values())[:2]
    return outcome(
        second[0] > first[-1] + 1, f"a step ends with {first[-1]}, the next dumped one begins with {second[0]}"
    )


def api_names(evidence: Evidence) -> Outcome:
    """Judge the APIs of operators that ran one by one."""
    return _other_names(evidence, "api")


def kernel_names(evidence: Evidence) -> Outcome:
    """Judge the kernels of operators that ran one by one."""
    return _other_names(evidence, "kernel")


def _other_names(evidence: Evidence, level: str) -> Outcome:
    called = fact(evidence, "called_apis")
    if not any(written["kernel"] for written in called.values()):
        raise Untried("no operator wrote a file")
    # API and kernel, as `programs/dump_interface.py` expects them.
    expected = {name: dict(zip(("api", "kernel"), name.split(".")))[level] for name in called}
    others = {name: written[level] for name, written in called.items() if expected[name] not in written[level]}
    found = ", ".join(f"{expected[name]}: {written or 'nothing'}" for name, written in others.items())
    return outcome(not others, f"{len(called) - len(others)} of {len(called)} as expected{found and '; '}{found}")


def kernels_per_operator(evidence: Evidence) -> Outcome:
    """Judge the API calls of matrix products and their kernels that multiply, in the selected steps."""
    kernels: defaultdict[tuple[str, int], set[DeviceFile]] = defaultdict(set)
    for each in _eager_files(evidence):
        if _PRODUCT_API.match(each.eager.api) and "output" in each.sides:
            found = kernels[each.call]
            if each.eager.kernel is not None and _PRODUCT_KERNEL.search(each.eager.kernel):
                found.add(each.file)
    expected = fact(evidence, "products") * len(evidence.steps)
    counts = [len(files) for files in kernels.values()]
    return outcome(counts == [1] * expected, f"kernels {counts} of the calls of {expected} products")


def left_out_side(evidence: Evidence) -> Outcome:
    """Judge the sides of the files for each mode."""
    sides = fact(evidence, "sides_of_modes")
    if not all(sides.values()):
        raise Untried("a mode wrote no file")
    return outcome(sides == {"input": ["input"], "output": ["output"]}, f"sides of the files by mode: {sides}")


def generated_names(evidence: Evidence) -> Outcome:
    """Judge the names of the files of an operator whose API is generated: each side has its own number."""
    names = fact(evidence, "generated_names")
    parsed = [eager_name(name) for name in map(parse_name, names) if name is not None]
    numbers = {eager.number for eager in parsed if eager is not None and eager.generated}
    return outcome(len(numbers) == len(names) == 2, ", ".join(names))


def statistics_ids(evidence: Evidence) -> Outcome:
    """Judge task and stream in the names of statistics: those of the launch, so that tasks differ."""
    files = evidence.files(evidence.statistics) if evidence.eager else []
    ids = {(file.parsed.task_id, file.parsed.stream_id) for file in files if file.name is not None}
    if not ids:
        raise Untried("no statistics of an eager operator were written")
    good = len(ids) > 1 and (_NO_ID, _NO_ID) not in ids
    return outcome(good, f"{len(ids)} pairs of task and stream, such as {min(ids)}")


# Overflow, from the facts of `programs/overflow_switch.py`.


def _detected(evidence: Evidence, name: str) -> dict[str, Any]:
    """Return the notes of a process with detection. Raises Untried if it detected nothing."""
    noted: dict[str, Any] = fact(evidence, name)
    if not noted["files"]:
        raise Untried("no overflow was written with the detection on before the first operator")
    return noted


def overflow_switch(evidence: Evidence) -> Outcome:
    """Judge the files of a process that switched the detection on late, and of one that switched it on twice."""
    again, late = _detected(evidence, "detected_early")["again"], fact(evidence, "detected_late")
    return outcome(not late and again, f"{late} files after the first operator; {again} when it is switched on again")


def overflow_of_kernels(evidence: Evidence) -> Outcome:
    """Judge the files of kernels that overflowed: both sides in one, and no record of the device."""
    files = _detected(evidence, "detected_early")["files"]
    wrong = [file["name"] for file in files if not file["is_kernel"] or file["sides"] != ["input", "output"]]
    return outcome(not wrong, wrong[0] if wrong else ", ".join(file["name"] for file in files))


def overflow_values(evidence: Evidence) -> Outcome:
    """Judge the kernels that are written, and their values: one that overflows, and one that passes the result on."""
    seen = []
    for name, inf_nan in _modes(evidence):
        noted = _detected(evidence, name)
        maxima = [file["max"] for file in noted["files"]]
        seen.append(f"{'INF_NAN' if inf_nan else 'saturation'}: maxima {maxima}")
        # Two operators pass the Inf of the first one on; a largest number is no overflow of theirs.
        if set(maxima) != {"inf" if inf_nan else str(_LARGEST)} or (len(maxima) > 1) is not inf_nan:
            return Outcome("refuted", seen[-1])
    return Outcome("confirmed", "; ".join(seen))


def overflow_mode(evidence: Evidence) -> Outcome:
    """Judge the mode that torch_npu tells by the results of the program, by default and with saturation."""
    modes = dict(_modes(evidence))
    results = {name: fact(evidence, name)["result"] for name in modes}
    good = all((results[name] == "inf") is inf_nan for name, inf_nan in modes.items())
    return outcome(good and modes.get("detected_saturated") is not True, f"INF_NAN {modes}, results {results}")


def _modes(evidence: Evidence) -> Iterator[tuple[str, bool]]:
    """Yield each process and True for INF_NAN. Raises Untried if torch_npu does not tell the mode."""
    for name in ("detected_early", "detected_saturated"):
        inf_nan = fact(evidence, name)["inf_nan"]
        if inf_nan is None:
            raise Untried("torch_npu.npu.utils has no is_support_inf_nan")
        yield name, inf_nan


def exception_switch(evidence: Evidence) -> Outcome:
    """Judge the norm exception dump that is set after the first operator, by one that is set before it."""
    early, late = (_kernels_of(fact(evidence, name)) for name in ("failed_norm_early", "failed_norm_late"))
    if not early:
        raise Untried("a norm exception dump that is set before the first operator wrote nothing either")
    return outcome(not late, f"before the first operator {early[0]}, after it {late[0] if late else 'nothing'}")


def _kernels_of(paths: Iterable[str]) -> Sequence[str]:
    names = [path.rpartition("/")[2] for path in paths]
    return [name for name in names if (parsed := parse_name(name)) is not None and eager_name(parsed) is not None]


PROBES = probes(
    api_names,
    call_counter,
    exception_switch,
    generated_names,
    kernel_names,
    kernels_per_operator,
    left_out_side,
    levels,
    no_model_levels,
    overflow_mode,
    overflow_of_kernels,
    overflow_switch,
    overflow_values,
    split_files,
    statistics_ids,
)
