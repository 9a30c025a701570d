"""Probes of kernels in graphs (NPUGraph): what `programs/captured_graph.py` noted of captures under a dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump.native.cann.names import parse_name
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = ["append", "captured_name", "captured_scenes", "capturing"]


def captured_name(evidence: Evidence) -> Outcome:
    """The names of the files of one kernel that was replayed twice."""
    found = evidence.facts.get("captured")
    if found is None:
        return judge_fact(evidence, "captured", found)
    names = [file["name"] for file in found]
    parsed = [parse_name(name) for name in names]
    kernels = {(one.op_type, one.op_name, one.task_id) for one in parsed if one is not None and one.form == "aclgraph"}
    return Outcome("confirmed" if len(kernels) == len(names) else "refuted", ", ".join(names))


def append(evidence: Evidence) -> Outcome:
    """The size of such a file, and that of one record in it."""
    found = evidence.facts.get("captured")
    if found is None:
        return judge_fact(evidence, "captured", found)
    good = all(file["bytes"] == 2 * file["record"] for file in found)
    seen = ", ".join(f"{file['bytes']} bytes, a record has {file['record']}" for file in found)
    return Outcome("confirmed" if good else "refuted", seen)


def captured_scenes(evidence: Evidence) -> Outcome:
    """The files of statistics and of an overflow of the same kernel."""
    found = judge_fact(evidence, "captured_scenes", {"stats": 0, "overflow": 0})
    if found.state == "confirmed" and not evidence.facts.get("captured"):
        return Outcome("unknown", "tensors of a captured kernel are not dumped either")
    return found


def capturing(evidence: Evidence) -> Outcome:
    """Whether waiting for the device was refused in a capture."""
    return judge_fact(evidence, "capturing", True)
