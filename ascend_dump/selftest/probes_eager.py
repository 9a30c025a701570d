"""Probes of eager operators on an NPU: the names, levels, numbers and contents of their files.

PyTorch runs an eager operator as an *API call* of CANN (such as `aclnnAdd`), which starts *kernels*. A dump has files
of the call and files of its kernels. All files of a call have its number, which counts the calls of the process.
"""

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
    """A file of an eager operator. eager: API, number and kernel from its name. sides: "input", "output" or both."""

    file: DeviceFile
    eager: EagerName
    sides: tuple[str, ...]

    @property
    def call(self) -> tuple[str, int]:
        return self.eager.api, self.eager.number


def _eager_files(evidence: Evidence) -> list[_EagerFile]:
    """Return the files of eager operators in the order of their times. Raises Untried if there are none."""
    eager_files = []
    for file in evidence.dumped if evidence.eager else ():
        eager = None if file.name is None else eager_name(file.parsed)
        if eager is not None:
            sides = dict.fromkeys(tensor.io for tensor in read_header(file.path).tensors)
            eager_files.append(_EagerFile(file, eager, tuple(sides)))
    if not eager_files:
        raise Untried("no file of an eager operator was written")
    return sorted(eager_files, key=lambda each: each.file.parsed.timestamp)


def no_model_levels(evidence: Evidence) -> Outcome:
    """Judge the directories: all files of eager operators are directly in the directory of the device."""
    files = _eager_files(evidence)
    wrong = [each.file for each in files if len(each.file.levels) != 1]
    return outcome(not wrong, "/".join(wrong[0].levels) if wrong else f"{len(files)} files directly below the device")


def split_files(evidence: Evidence) -> Outcome:
    """Judge the sides: each file has inputs only or outputs only, and there are files of both kinds."""
    files = _eager_files(evidence)
    counts = Counter("+".join(each.sides) for each in files)
    return outcome(
        set(counts) == {"input", "output"}, ", ".join(f"{count} of {side}" for side, count in counts.items())
    )


def levels(evidence: Evidence) -> Outcome:
    """Judge the files of each API call, in the order of time: inputs of the call, files of its kernels, its outputs.

    A few APIs have no file of outputs (`reports_no_outputs`). Kernels that do not run on AI Core have no files. Tensors
    of the call have one dimension, because CANN writes the whole storage of each.
    """
    by_call: defaultdict[tuple[str, int], list[_EagerFile]] = defaultdict(list)
    for each in _eager_files(evidence):
        if not each.eager.generated:
            by_call[each.call].append(each)
    kernels = 0
    for (api, number), files in by_call.items():
        sides = ["input"] if reports_no_outputs(api) else ["input", "output"]
        call_files = [each for each in files if each.eager.kernel is None]
        first_and_last = [files[0], files[-1]][: len(sides)]
        good = call_files == first_and_last and [each.sides for each in call_files] == [(side,) for side in sides]
        if not good or any(each.file.parsed.op_name != api for each in call_files):
            names = ", ".join(f"{each.file.parsed.op_type}.{each.file.parsed.op_name}" for each in files)
            return Outcome("refuted", f"call {number}: {names}")
        shapes = [tensor.shape for each in call_files for tensor in read_header(each.file.path).tensors]
        if any(len(shape) != 1 for shape in shapes):
            return Outcome("refuted", f"call {number} of {api} has the shapes {shapes}")
        kernels += len(files) > len(call_files)
    if not by_call:
        return Outcome("unknown", "no API call was written")
    return outcome(kernels > 0, f"{len(by_call)} calls, {kernels} with kernels")


def call_counter(evidence: Evidence) -> Outcome:
    """Judge the numbers of API calls: they rise with time, and the calls of a step that is not dumped count too.

    The selected steps are not consecutive, so the numbers have a gap between them.
    """
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
    """Judge the API names in the files of each operator of `programs/dump_interface.py`."""
    return _other_names(evidence, "api")


def kernel_names(evidence: Evidence) -> Outcome:
    """Judge the kernel names in the files of each operator of `programs/dump_interface.py`."""
    return _other_names(evidence, "kernel")


def _other_names(evidence: Evidence, level: str) -> Outcome:
    """Judge the names of one level, "api" or "kernel". Raises Untried if no operator wrote a file."""
    called = fact(evidence, "called_apis")
    if not any(written["kernel"] for written in called.values()):
        raise Untried("no operator wrote a file")
    # The name of each question in `programs/dump_interface.py` is the expected "API.kernel".
    expected = {name: dict(zip(("api", "kernel"), name.split(".")))[level] for name in called}
    unexpected = {name: written[level] for name, written in called.items() if expected[name] not in written[level]}
    listed = ", ".join(f"{expected[name]}: {written or 'nothing'}" for name, written in unexpected.items())
    number = len(called) - len(unexpected)
    return outcome(not unexpected, f"{number} of {len(called)} as expected{listed and '; '}{listed}")


def kernels_per_operator(evidence: Evidence) -> Outcome:
    """Judge the kernels of matrix products in the selected steps: each API call has exactly one kernel that multiplies.

    The program notes the number of products in a step as the fact "products".
    """
    kernels: defaultdict[tuple[str, int], set[DeviceFile]] = defaultdict(set)
    for each in _eager_files(evidence):
        if _PRODUCT_API.match(each.eager.api) and "output" in each.sides:
            product_kernels = kernels[each.call]
            if each.eager.kernel is not None and _PRODUCT_KERNEL.search(each.eager.kernel):
                product_kernels.add(each.file)
    expected = fact(evidence, "products") * len(evidence.steps)
    counts = [len(files) for files in kernels.values()]
    return outcome(counts == [1] * expected, f"kernels {counts} of the calls of {expected} products")


def left_out_side(evidence: Evidence) -> Outcome:
    """Judge the modes "input" and "output": the files have the tensors of this side only."""
    sides = fact(evidence, "sides_of_modes")
    if not all(sides.values()):
        raise Untried("a mode wrote no file")
    return outcome(sides == {"input": ["input"], "output": ["output"]}, f"sides of the files by mode: {sides}")


def generated_names(evidence: Evidence) -> Outcome:
    """Judge the file names of an operator whose API is generated: two files, for inputs and outputs, with two numbers.

    CANN's build generates some APIs, which have no source file in its repositories.
    """
    names = fact(evidence, "generated_names")
    parsed = [eager_name(name) for name in map(parse_name, names) if name is not None]
    numbers = {eager.number for eager in parsed if eager is not None and eager.generated}
    return outcome(len(numbers) == len(names) == 2, ", ".join(names))


def statistics_ids(evidence: Evidence) -> Outcome:
    """Judge task and stream in the names of statistics files: they belong to the launch of a kernel, so files differ.

    The pair (65535, 65535) would mean that CANN did not set them.
    """
    files = evidence.files(evidence.statistics) if evidence.eager else []
    ids = {(file.parsed.task_id, file.parsed.stream_id) for file in files if file.name is not None}
    if not ids:
        raise Untried("no statistics of an eager operator were written")
    good = len(ids) > 1 and (_NO_ID, _NO_ID) not in ids
    return outcome(good, f"{len(ids)} pairs of task and stream, such as {min(ids)}")


# Overflows of eager operators. The facts come from `programs/overflow_switch.py`, which runs three processes:
# "detected_early" switches the detection on before its first operator, "detected_late" after it, and
# "detected_saturated" before it, in saturation mode.


def _detected(evidence: Evidence, name: str) -> dict[str, Any]:
    """Return the notes of a process that switched the detection on early. Raises Untried if it wrote no overflow."""
    noted: dict[str, Any] = fact(evidence, name)
    if not noted["files"]:
        raise Untried("no overflow was written with the detection on before the first operator")
    return noted


def overflow_switch(evidence: Evidence) -> Outcome:
    """Judge the switch of the detection, which a process reads once.

    Switched on after the first operator, the detection writes nothing. Switched on early, off, and on again, it does.
    """
    again, late = _detected(evidence, "detected_early")["again"], fact(evidence, "detected_late")
    return outcome(not late and again, f"{late} files after the first operator; {again} when it is switched on again")


def overflow_of_kernels(evidence: Evidence) -> Outcome:
    """Judge the files of an overflow: all are files of kernels with inputs and outputs, none is an overflow record."""
    files = _detected(evidence, "detected_early")["files"]
    wrong = [file["name"] for file in files if not file["is_kernel"] or file["sides"] != ["input", "output"]]
    return outcome(not wrong, wrong[0] if wrong else ", ".join(file["name"] for file in files))


def overflow_values(evidence: Evidence) -> Outcome:
    """Judge the files of an overflow by their largest output.

    In INF_NAN mode the kernel that overflows has a file, and so have the kernels that pass its Inf on. In saturation
    mode there is one file, with the largest float16: kernels that read this value do not overflow.
    """
    seen = []
    for name, inf_nan in _modes(evidence):
        noted = _detected(evidence, name)
        maxima = [file["max"] for file in noted["files"]]
        seen.append(f"{'INF_NAN' if inf_nan else 'saturation'}: maxima {maxima}")
        if set(maxima) != {"inf" if inf_nan else str(_LARGEST)} or (len(maxima) > 1) is not inf_nan:
            return Outcome("refuted", seen[-1])
    return Outcome("confirmed", "; ".join(seen))


def overflow_mode(evidence: Evidence) -> Outcome:
    """Judge the mode that torch_npu reports: the result of the program is Inf exactly in INF_NAN mode.

    The process in which saturation is requested may not report INF_NAN mode.
    """
    modes = dict(_modes(evidence))
    results = {name: fact(evidence, name)["result"] for name in modes}
    good = all((results[name] == "inf") is inf_nan for name, inf_nan in modes.items())
    return outcome(good and modes.get("detected_saturated") is not True, f"INF_NAN {modes}, results {results}")


def _modes(evidence: Evidence) -> Iterator[tuple[str, bool]]:
    """Yield the name of each process, and True if torch_npu reports INF_NAN mode there.

    Raises Untried if torch_npu does not report the mode.
    """
    for name in ("detected_early", "detected_saturated"):
        inf_nan = fact(evidence, name)["inf_nan"]
        if inf_nan is None:
            raise Untried("torch_npu.npu.utils has no is_support_inf_nan")
        yield name, inf_nan


def exception_switch(evidence: Evidence) -> Outcome:
    """Judge an exception dump ("norm") of a failing kernel: set after the first operator, it writes nothing.

    Set before the first operator, the same dump has to write files; otherwise the outcome is unknown.
    """
    early, late = (_kernels_of(fact(evidence, name)) for name in ("failed_norm_early", "failed_norm_late"))
    if not early:
        raise Untried("a norm exception dump that is set before the first operator wrote nothing either")
    return outcome(not late, f"before the first operator {early[0]}, after it {late[0] if late else 'nothing'}")


def _kernels_of(paths: Iterable[str]) -> Sequence[str]:
    """Return the names of the files of eager operators among `paths`."""
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
