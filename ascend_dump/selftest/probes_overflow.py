"""Probes of overflow records: the files that a device writes when a test program lets an operator overflow.

A record is a file `Opdebug.…`. Its payload names the task that overflowed, and has status bits.
"""

from __future__ import annotations

from typing import Optional

from ascend_dump.errors import ReadError
from ascend_dump.native.cann.dump_file import payload, read_header
from ascend_dump.native.cann.overflow import MAGIC, PAYLOAD_SIZE, decode_overflow, find_operator
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import DeviceFile, Evidence, outcome, probes

__all__ = ["PROBES"]

_NOTHING = Outcome("unknown", "no overflow was recorded")
_FLOAT_BIT, _CUBE_BIT = 0x20, 0x400
_PREFIX = "Opdebug.Node_OpDebug."
#: Name prefixes of the devices (SoCs) whose overflow records begin with the magic number.
_MAGIC_SOCS = ("Ascend910B", "Ascend910_93", "Ascend950")


def _records(evidence: Evidence) -> list[DeviceFile]:
    """Return the files with overflow records: those with "opdebug" in their names, in upper or lower case."""
    return [
        file
        for file in evidence.files(evidence.overflow)
        if "opdebug" in file.path.name.lower() and file.name is not None
    ]


def overflow_found(evidence: Evidence) -> Outcome:
    """Judge the number of records of the deliberate overflow: at least one."""
    if evidence.overflow is None or evidence.eager:  # eager operators leave no record
        return Outcome("unknown", "no overflow was planted in a graph")
    number = len(_records(evidence))
    return outcome(number > 0, f"{number} records of a planted overflow")


def overflow_file(evidence: Evidence) -> Outcome:
    """Check that the names of records begin with `_PREFIX`."""
    names = [file.path.name for file in _records(evidence)]
    wrong = next((name for name in names if not name.startswith(_PREFIX)), None)
    return (
        outcome(wrong is None, f"{len(names)} records" if wrong is None else f"{wrong}: expected {_PREFIX}…")
        if names
        else _NOTHING
    )


def overflow_task(evidence: Evidence) -> Outcome:
    """Check that the task id in the name of a record is 0."""
    tasks = {file.parsed.task_id for file in _records(evidence)}
    return outcome(tasks == {0}, f"tasks {sorted(map(str, tasks))}") if tasks else _NOTHING


def _bytes_of(file: DeviceFile) -> bytes:
    header = read_header(file.path)
    return bytes(payload(header, header.outputs[0]))


def overflow_payload(evidence: Evidence) -> Outcome:
    """Check the size of the payload, and that it begins with the magic number on the devices of `_MAGIC_SOCS` alone."""
    soc: Optional[str] = evidence.facts.get("soc")
    for file in _records(evidence):
        data = _bytes_of(file)
        if len(data) != PAYLOAD_SIZE:
            return Outcome("refuted", f"{len(data)} bytes")
        has_magic = int.from_bytes(data[:4], "little") == MAGIC
        if soc is None:
            return Outcome("unknown", f"the device's name is not known; magic number: {has_magic}")
        if has_magic != soc.startswith(_MAGIC_SOCS):
            return Outcome("refuted", f"{soc}, magic number: {has_magic}")
    return Outcome("confirmed", f"{PAYLOAD_SIZE} bytes, {soc}") if _records(evidence) else _NOTHING


def overflow_operator(evidence: Evidence) -> Outcome:
    """Check that the operator named in a record has a dump file in the same directory."""
    files = evidence.files(evidence.overflow)
    for file in _records(evidence):
        try:
            unit = decode_overflow(_bytes_of(file)).units[0]
        except ReadError as error:
            return Outcome("refuted", str(error))
        neighbours = [
            candidate.parsed
            for candidate in files
            if candidate.path.parent == file.path.parent and candidate.name is not None
        ]
        if find_operator(unit, neighbours, file.parsed.timestamp) is None:
            return Outcome(
                "refuted", f"no file of task {unit.task_id} of stream {unit.stream_id} beside {file.path.name}"
            )
    return Outcome("confirmed", f"{len(_records(evidence))} records") if _records(evidence) else _NOTHING


def overflow_status(evidence: Evidence) -> Outcome:
    """Judge the status bits in the records of the deliberate overflow: the floating-point bit is set.

    The overflowing operator is a matrix product, for which the Cube unit may set only its own bit. Such a record
    neither confirms nor refutes the floating-point bit.
    """
    if not _records(evidence):
        return _NOTHING
    try:
        units = [
            unit for file in _records(evidence) for unit in decode_overflow(_bytes_of(file)).units if unit.overflowed
        ]
    except ReadError as error:
        return Outcome("unknown", str(error))
    words = {word for unit in units for word in unit.status if word}
    text = ", ".join(f"{word:#x}" for word in sorted(words)) or "none"
    if any(word & _FLOAT_BIT for word in words):
        return Outcome("confirmed", f"status {text}")
    if not words or all(word == _CUBE_BIT for word in words):
        return Outcome("unknown", f"status {text}")
    return Outcome("refuted", f"status {text}")


PROBES = probes(
    overflow_file,
    overflow_found,
    overflow_operator,
    overflow_payload,
    overflow_status,
    overflow_task,
)
