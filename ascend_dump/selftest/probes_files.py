"""Probes of the dump files that a device writes: file names, directories, headers, payloads and statistics."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.native.cann.names import parse_name
from ascend_dump.native.cann.statistics_csv import HEADER, format_statistics
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import DeviceFile, Evidence, Untried, outcome, probes, step_of
from ascend_dump.storage.files import read_small

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.native.cann.dump_file import DumpFile

__all__ = ["PROBES"]

_NOTHING = Outcome("unknown", "no file of a device was written")
_NO_ARRAYS = Outcome("unknown", "the program fetched no arrays to compare with")
#: Maximum number of bytes that are read of a table of statistics.
_LONGEST_TABLE = 1 << 24
#: Index of the average among the printed statistics, and the relative size of one unit in the last of its six digits.
_AVERAGE, _LAST_DIGIT = 2, 1e-5
#: Types of operators that are never dumped, because the device runs no task for them: constants and control flow.
_NO_TASK = {
    *("Const", "Constant", "ConstPlaceHolder", "FileConstant"),
    *("If", "_If", "StatelessIf", "Case", "StatelessCase", "While", "_While", "StatelessWhile", "For"),
}


def _all_of(files: Iterable[DeviceFile], deviations: Iterable[str], claim: str) -> Outcome:
    """Return "unknown" if there are no files, "refuted" if there is a deviation, else "confirmed".

    claim: the evidence of a confirmation, printed after the number of files.
    """
    number = sum(1 for _ in files)
    first = next(iter(deviations), None)
    return outcome(first is None, f"{number} {claim}" if first is None else first) if number else _NOTHING


def _headers(evidence: Evidence) -> list[tuple[DeviceFile, DumpFile]]:
    """Return the dump files of whole tensors with their headers."""
    return [(file, read_header(file.path)) for file in evidence.dumped if file.name is not None]


# Names and levels.


def file_names(evidence: Evidence) -> Outcome:
    """Judge the file names: they have the five fields of CANN's form "device", of which the last is the time in µs."""
    files = evidence.dumped
    wrong = (file.path.name for file in files if file.name is None or file.parsed.form != "device")
    return _all_of(files, wrong, "names have the five fields")


def time_directory(evidence: Evidence) -> Outcome:
    """Judge the time in the name of the time directory: it is a local time during the run."""
    files = evidence.dumped
    if not files and evidence.tensors is not None:
        stray = next((path for path in evidence.tensors.rglob("*") if parse_name(path.name) is not None), None)
        return _NOTHING if stray is None else Outcome("refuted", f"{stray.name} is not in a directory named by a time")
    times = {file.time for file in files}
    # The name is in whole seconds, so one second of tolerance is needed.
    wrong = (text for text in times if not evidence.began - 1 <= _seconds(text) <= evidence.ended + 1)
    return _all_of(files, wrong, "files are below a directory with a local time of the run")


def _seconds(text: str) -> float:
    """Return the seconds since the epoch of a local time "YYYYmmddHHMMSS"; -1 if there is no such time."""
    try:
        return time.mktime(time.strptime(text, "%Y%m%d%H%M%S"))
    except (OverflowError, ValueError):
        return -1.0


def device_directory(evidence: Evidence) -> Outcome:
    """Judge the directory below the time directory: its name is the number of the device."""
    files = evidence.dumped
    wrong = ("/".join(file.levels) or file.path.name for file in files if file.levels[:1] != (str(evidence.device),))
    return _all_of(files, wrong, f"files are below {evidence.device}")


def graph_levels(evidence: Evidence) -> Outcome:
    """Judge the four levels of the files of graphs: the device, the model, the model id and the step."""
    files = [] if evidence.eager else evidence.dumped
    wrong = (
        "/".join(file.levels)
        for file in files
        if len(file.levels) != 4 or not file.levels[2].isdecimal() or not file.levels[3].isdecimal()
    )
    return _all_of(files, wrong, "files are below model, model id and step")


def graph_steps(evidence: Evidence) -> Outcome:
    """Judge the last level of the files of graphs: the dumped steps are the selected ones, counted from 0."""
    files = [] if evidence.eager else evidence.dumped
    if not files:
        return _NOTHING
    steps = {file.levels[-1] for file in files}
    selected = {str(step) for step in evidence.steps}
    return outcome(steps == selected, f"steps {sorted(steps)}, selected {sorted(selected)}")


def rank_directory(evidence: Evidence) -> Outcome:
    """Judge the directory of the rank: without distributed execution it is `worldsize1_global_rank0`."""
    files = [] if evidence.eager else evidence.dumped
    wrong = (
        str(file.path) for file in files if "worldsize1_global_rank0" not in file.path.parts[: -len(file.levels) - 1]
    )
    return _all_of(files, wrong, "files are below worldsize1_global_rank0")


def file_modes(evidence: Evidence) -> Outcome:
    """Judge the permissions of the files: the owner alone may read and write (mode 600)."""
    files = evidence.dumped
    modes = ((file.path.name, file.path.stat().st_mode & 0o777) for file in files)
    return _all_of(files, (f"{name} has {mode:o}" for name, mode in modes if mode != 0o600), "files have 600")


def never_dumped(evidence: Evidence) -> Outcome:
    """Judge a graph with constants: the dump has no file of a constant or of a control flow operator."""
    files = [file for file in evidence.dumped if not evidence.eager and file.name is not None]
    types = sorted({file.parsed.op_type for file in files} & _NO_TASK)
    if types:
        return Outcome("refuted", f"there is a file of type {types[0]}")
    constants = evidence.facts.get("constants", 0)
    if not files or not constants:
        return Outcome("unknown", "no graph with constants was dumped")
    return Outcome("confirmed", f"{len(files)} files, none of {constants} constants")


def container(evidence: Evidence) -> Outcome:
    """Judge a dump in a container: the device writes files there too."""
    if not evidence.facts.get("container"):
        return Outcome("unknown", "the self-test does not run in a container")
    if evidence.tensors is None:
        return _NOTHING
    number = len(evidence.dumped)
    return outcome(number > 0, f"{number} files in a container")


# Headers and payloads.


def header_version(evidence: Evidence) -> Outcome:
    """Judge the version in the headers: it is "2.0"."""
    headers = _headers(evidence)
    wrong = (f"{file.path.name} says {header.version!r}" for file, header in headers if header.version != "2.0")
    return _all_of([file for file, _ in headers], wrong, "headers say 2.0")


def header_time(evidence: Evidence) -> Outcome:
    """Judge the time in the headers: it equals the time in the file name."""
    headers = _headers(evidence)
    wrong = (
        f"{file.path.name} says {header.dump_time}"
        for file, header in headers
        if header.dump_time != file.parsed.timestamp
    )
    return _all_of([file for file, _ in headers], wrong, "headers have the time of the name")


def one_header_in_a_file(evidence: Evidence) -> Outcome:
    """Judge the files of graphs: an operator has one file in a step, with one header for inputs and outputs.

    The file ends with the payload of the last tensor.
    """
    headers = [] if evidence.eager else _headers(evidence)
    if not headers:
        return _NOTHING
    count = Counter((*file.levels, file.parsed.op_type, file.parsed.op_name) for file, _ in headers)
    [(operator, most)] = count.most_common(1)
    if most > 1:
        return Outcome("refuted", f"{most} files of {'/'.join(operator)}")
    if not any(header.inputs and header.outputs for _, header in headers):
        return Outcome("refuted", f"no file of {len(headers)} has inputs and outputs")
    wrong = next((f"{file.path.name}: {header.problems[0]}" for file, header in headers if header.problems), None)
    return outcome(wrong is None, f"{len(headers)} files" if wrong is None else wrong)


def null_address(evidence: Evidence) -> Outcome:
    """Judge tensors with a null address: the file has no bytes of them.

    A program cannot request a tensor with a null address, because GE omits inputs that are not fed. So a dump has such
    tensors by chance only, and without them the outcome is unknown.
    """
    files, wrong = [], []
    for file, header in _headers(evidence):
        null = [tensor for tensor in header.tensors if tensor.size and not tensor.address]
        if null:
            files.append(file)
            wrong += [
                f"{file.path.name}: {tensor.io} {tensor.index} has {tensor.length} bytes"
                for tensor in null
                if tensor.length
            ]
            wrong += [f"{file.path.name}: {problem}" for problem in header.problems]
    if not files:
        return Outcome("unknown", "no tensor of the dump has a null address, and a program cannot ask for one")
    return _all_of(files, wrong, "files list tensors without an address")


def _values(evidence: Evidence, step: Optional[int] = None) -> dict[str, list[np.ndarray]]:
    """Return the readable tensors of the dump files by side, "input" or "output". step: None for all steps."""
    arrays: dict[str, list[np.ndarray]] = {"input": [], "output": []}
    for file, header in _headers(evidence):
        if step is not None and step_of(evidence, file) != step:
            continue
        for tensor in header.tensors:
            if not tensor.error:
                arrays[tensor.io].append(decode(header, tensor))
    return arrays


def _contains(arrays: Iterable[np.ndarray], expected: np.ndarray, *, dtype: bool) -> bool:
    """Return True if an array has the bytes of `expected`. dtype: it must have the same type too."""
    data = expected.tobytes()
    return any(array.tobytes() == data and (not dtype or array.dtype == expected.dtype) for array in arrays)


def _find_arrays(evidence: Evidence, *, dtype: bool, what: str) -> Outcome:
    """Judge the dumped tensors by the arrays that the program fetched: each array is in the dump of its step.

    dtype: the types are compared too. what: the end of the message about an array that is not in the dump.
    """
    if not evidence.dumped:
        return _NOTHING
    if not any(evidence.inputs.values()) and not any(evidence.outputs.values()):
        return _NO_ARRAYS
    number = 0
    for side, by_step in (("input", evidence.inputs), ("output", evidence.outputs)):
        for step in evidence.steps:
            values = _values(evidence, step)[side]
            for array in by_step.get(step, ()):
                number += 1
                if not _contains(values, array, dtype=dtype):
                    return Outcome(
                        "refuted", f"no {side} of step {step} is the {array.dtype}{list(array.shape)} {what}"
                    )
    return Outcome("confirmed", f"{number} arrays")


def payload_order(evidence: Evidence) -> Outcome:
    """Judge the order of the payloads: the bytes at the offset of a tensor are those that the program fetched."""
    return _find_arrays(evidence, dtype=False, what="that the program had")


def dtype_numbers(evidence: Evidence) -> Outcome:
    """Judge the numbers of types in headers: a tensor has the type of the array that the program fetched."""
    return _find_arrays(evidence, dtype=True, what="that the program had, by bytes and type")


def kernels_in_their_step(evidence: Evidence) -> Outcome:
    """Judge the directories of steps of eager operators: each contains the results of its own step, of no other."""
    if not evidence.eager or not evidence.dumped:
        return _NOTHING
    if not any(evidence.outputs.values()):
        return _NO_ARRAYS
    for step in evidence.steps:
        values = _values(evidence, step)["output"]
        for number, arrays in evidence.outputs.items():
            for array in arrays:
                if _contains(values, array, dtype=False) != (number == step):
                    where = "also" if number != step else "not"
                    return Outcome("refuted", f"the result of step {number} is {where} among the files of step {step}")
    return Outcome("confirmed", f"steps {list(evidence.steps)}")


# Statistics.


def _statistics_tables(evidence: Evidence) -> list[str]:
    """Return the text of each table of statistics. Raises Untried if there are none."""
    files = (file for file in evidence.files(evidence.statistics) if file.path.suffix == ".csv")
    texts = [read_small(file.path, _LONGEST_TABLE).decode(errors="replace") for file in files]
    if not texts:
        raise Untried("no statistics of a device were written")
    return texts


def statistics_header(evidence: Evidence) -> Outcome:
    """Judge the first line of the tables of statistics: it is `HEADER`."""
    texts = _statistics_tables(evidence)
    wrong = next((text.partition("\n")[0] for text in texts if text.partition("\n")[0] != HEADER), None)
    return outcome(wrong is None, f"{len(texts)} files" if wrong is None else wrong)


def statistics_numbers(evidence: Evidence) -> Outcome:
    """Judge the statistics of outputs: for each fetched array of floats a line has the statistics of that array."""
    texts = _statistics_tables(evidence)
    arrays = [array for step in evidence.steps for array in evidence.outputs.get(step, ()) if array.dtype.kind == "f"]
    if not arrays:
        return _NO_ARRAYS
    lines = [line.split(",") for text in texts for line in text.splitlines() if line.startswith("Output")]
    for array in arrays:
        expected = format_statistics(array)
        if not any(_agree(line[-len(expected) :], expected) for line in lines):
            return Outcome("refuted", f"no line ends with {','.join(expected)}")
    return Outcome("confirmed", f"{len(arrays)} arrays")


def _agree(printed: Sequence[str], expected: Sequence[str]) -> bool:
    """Return True if all printed statistics are equal, apart from the sign of NaN and the last digit of the average.

    The sign of NaN depends on the processor, and the last digit of the average on the order of the sum.
    """
    texts = [[text.replace("-nan", "nan") for text in line] for line in (printed, expected)]
    averages = [line.pop(_AVERAGE) if len(line) > _AVERAGE else "" for line in texts]
    try:
        near = math.isclose(*map(float, averages), rel_tol=_LAST_DIGIT)
    except ValueError:
        near = False
    return texts[0] == texts[1] and (near or averages[0] == averages[1])


PROBES = probes(
    container,
    device_directory,
    dtype_numbers,
    file_modes,
    file_names,
    graph_levels,
    graph_steps,
    header_time,
    header_version,
    kernels_in_their_step,
    never_dumped,
    null_address,
    one_header_in_a_file,
    payload_order,
    rank_directory,
    statistics_header,
    statistics_numbers,
    time_directory,
)
