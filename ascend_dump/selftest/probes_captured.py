"""Probes of kernels in graphs (NPUGraph), from the facts of `programs/captured_graph.py`."""

from __future__ import annotations

from ascend_dump.native.cann.names import eager_name, parse_name
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, outcome, probes

__all__ = ["PROBES"]


def captured_name(evidence: Evidence) -> Outcome:
    """Judge the names of the files of one kernel that was replayed twice."""
    files = fact(evidence, "captured")
    parsed = [(parse_name(file["name"]), file["sides"]) for file in files]
    kernels = {
        (name.op_type, name.op_name, *sides) for name, sides in parsed if name is not None and name.form == "aclgraph"
    }
    return outcome(len(kernels) == len(files), ", ".join(file["name"] for file in files))


def captured_files(evidence: Evidence) -> Outcome:
    """Judge the files of one API call in a graph: two of the call and two of each kernel, each with its own number."""
    parsed = [parse_name(file["name"]) for file in fact(evidence, "captured")]
    numbers = {name.dump_number for name in parsed if name is not None}
    eager = [eager_name(name) for name in parsed if name is not None]
    of_call = sum(name is not None and name.kernel is None for name in eager)
    good = len(numbers) == len(parsed) > of_call == 2 and None not in eager
    return outcome(good, f"{len(parsed)} files with the numbers {sorted(map(str, numbers))}, {of_call} of the call")


def append(evidence: Evidence) -> Outcome:
    """Judge the size of such a file by the size of one record in it."""
    files = fact(evidence, "captured")
    sizes = ", ".join(f"{file['bytes']} bytes, a record has {file['record']}" for file in files)
    return outcome(all(file["bytes"] == 2 * file["record"] for file in files), sizes)


def captured_scenes(evidence: Evidence) -> Outcome:
    """Judge the number of files of statistics and of an overflow of the same kernel."""
    if not evidence.facts.get("captured") or not fact(evidence, "detected_early")["files"]:
        return Outcome(
            "unknown", "tensors of a captured kernel, or overflows outside of a graph, are not dumped either"
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
    # Waiting for the device was refused during a capture.
    capturing=True,
)
