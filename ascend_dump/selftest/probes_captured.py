"""Probes of the dumps of kernels that an NPUGraph captured and replayed.

Their facts come from `programs/captured_graph.py`, which captures one kernel and replays it twice.
"""

from __future__ import annotations

from ascend_dump.native.cann.names import eager_name, parse_name
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, outcome, probes

__all__ = ["PROBES"]


def captured_name(evidence: Evidence) -> Outcome:
    """Judge the file names: all have the form for captured graphs, and no two name the same kernel and side."""
    files = fact(evidence, "captured")
    parsed = [(parse_name(file["name"]), file["sides"]) for file in files]
    kernels = {
        (name.op_type, name.op_name, *sides) for name, sides in parsed if name is not None and name.form == "aclgraph"
    }
    return outcome(len(kernels) == len(files), ", ".join(file["name"] for file in files))


def captured_files(evidence: Evidence) -> Outcome:
    """Judge the files of one captured API call: every file has its own number, and exactly two are of the call itself.

    The other files are of the kernels that the call started.
    """
    parsed = [parse_name(file["name"]) for file in fact(evidence, "captured")]
    numbers = {name.dump_number for name in parsed if name is not None}
    eager = [eager_name(name) for name in parsed if name is not None]
    call_files = sum(name is not None and name.kernel is None for name in eager)
    good = len(numbers) == len(parsed) > call_files == 2 and None not in eager
    return outcome(good, f"{len(parsed)} files with the numbers {sorted(map(str, numbers))}, {call_files} of the call")


def append(evidence: Evidence) -> Outcome:
    """Judge the sizes of the files: each contains two records, because the second replay appends to the file."""
    files = fact(evidence, "captured")
    sizes = ", ".join(f"{file['bytes']} bytes, a record has {file['record']}" for file in files)
    return outcome(all(file["bytes"] == 2 * file["record"] for file in files), sizes)


def captured_scenes(evidence: Evidence) -> Outcome:
    """Judge dumps of statistics, and of an overflow, of a captured kernel: neither writes a file."""
    if not evidence.facts.get("captured") or not fact(evidence, "detected_early")["files"]:
        return Outcome(
            "unknown",
            "the dump of tensors of a captured kernel, or of an overflow outside a graph, wrote no file either",
        )
    numbers = {
        "statistics": fact(evidence, "captured_statistics"),
        "overflow": fact(evidence, "detected_early")["captured"],
    }
    return outcome(not any(numbers.values()), f"files of captured kernels: {numbers}")


PROBES = probes(
    append,
    captured_files,
    captured_name,
    captured_scenes,
    # True: torch_npu refused to wait for the device while a graph was being captured.
    capturing=True,
)
