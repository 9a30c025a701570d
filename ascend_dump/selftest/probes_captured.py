"""Probes of kernels in graphs (NPUGraph), from the facts of `programs/captured_graph.py`."""

from __future__ import annotations

from ascend_dump.native.cann.names import parse_name
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]


def captured_name(evidence: Evidence) -> Outcome:
    """Judge the names of the files of one kernel that was replayed twice."""
    names = [file["name"] for file in fact(evidence, "captured")]
    parsed = [parse_name(name) for name in names]
    kernels = {
        (name.op_type, name.op_name, name.task_id) for name in parsed if name is not None and name.form == "aclgraph"
    }
    return outcome(len(kernels) == len(names), ", ".join(names))


def append(evidence: Evidence) -> Outcome:
    """Judge the size of such a file by the size of one record in it."""
    files = fact(evidence, "captured")
    sizes = ", ".join(f"{file['bytes']} bytes, a record has {file['record']}" for file in files)
    return outcome(all(file["bytes"] == 2 * file["record"] for file in files), sizes)


def captured_scenes(evidence: Evidence) -> Outcome:
    """Judge the number of files of statistics and of an overflow of the same kernel."""
    result = judge_fact(evidence, "captured_scenes", {"stats": 0, "overflow": 0})
    if result.state == "confirmed" and not evidence.facts.get("captured"):
        return Outcome("unknown", "tensors of a captured kernel are not dumped either")
    return result


PROBES = probes(
    append,
    captured_name,
    captured_scenes,
    # Waiting for the device was refused during a capture.
    capturing=True,
)
