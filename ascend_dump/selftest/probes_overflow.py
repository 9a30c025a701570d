"""Probes that look at what a device wrote of an overflow that was planted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ascend_dump.errors import ReadError
from ascend_dump.native.cann.dump_file import payload, read_header
from ascend_dump.native.cann.overflow import MAGIC, PAYLOAD_SIZE, decode_overflow, find_operator
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import DeviceFile, Evidence

__all__ = [
    "overflow_file",
    "overflow_found",
    "overflow_of_conversion",
    "overflow_operator",
    "overflow_payload",
    "overflow_status",
    "overflow_task",
]

_NOTHING = Outcome("unknown", "no overflow was recorded")
_FLOAT_BIT, _CONVERSION_BIT, _CUBE_BIT = 0x20, 0x100, 0x400
_PREFIX = "Opdebug.Node_OpDebug."
#: Beginnings of the names of devices whose record begins with the magic number.
_MAGIC_SOCS = ("Ascend910B", "Ascend910_93", "Ascend950")


def _records(evidence: Evidence) -> list[DeviceFile]:
    """Records of overflows, however they are spelled."""
    return [
        file
        for file in evidence.files(evidence.overflow)
        if "opdebug" in file.path.name.lower() and file.name is not None
    ]


def overflow_found(evidence: Evidence) -> Outcome:
    """The overflow that was planted is recorded."""
    if evidence.overflow is None:
        return Outcome("unknown", "no overflow was planted")
    number = len(_records(evidence))
    return Outcome("confirmed" if number else "refuted", f"{number} records of a planted overflow")


def overflow_file(evidence: Evidence) -> Outcome:
    """The name of a record."""
    found = [file.path.name for file in _records(evidence)]
    wrong = next((name for name in found if not name.startswith(_PREFIX)), None)
    if not found:
        return _NOTHING
    return Outcome("confirmed", f"{len(found)} records") if wrong is None else Outcome("refuted", wrong)


def overflow_task(evidence: Evidence) -> Outcome:
    """The task in the name of a record."""
    tasks = {file.parsed.task_id for file in _records(evidence)}
    return (
        Outcome("confirmed" if tasks == {0} else "refuted", f"tasks {sorted(map(str, tasks))}") if tasks else _NOTHING
    )


def _bytes_of(file: DeviceFile) -> bytes:
    header = read_header(file.path)
    return bytes(payload(header, header.outputs[0]))


def overflow_payload(evidence: Evidence) -> Outcome:
    """Length and beginning of a record."""
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
    """The operator that a record names has a file beside it."""
    files = evidence.files(evidence.overflow)
    for file in _records(evidence):
        try:
            unit = decode_overflow(_bytes_of(file)).units[0]
        except ReadError as error:
            return Outcome("refuted", str(error))
        beside = [one.parsed for one in files if one.path.parent == file.path.parent and one.name is not None]
        if find_operator(unit, beside, file.parsed.timestamp) is None:
            return Outcome(
                "refuted", f"no file of task {unit.task_id} of stream {unit.stream_id} beside {file.path.name}"
            )
    return Outcome("confirmed", f"{len(_records(evidence))} records") if _records(evidence) else _NOTHING


def overflow_status(evidence: Evidence) -> Outcome:
    """The bits that the core reported of the planted overflow, which is one of floating point.

    The Cube unit may report the product by its own bit alone, which tells nothing of the other.
    """
    if not _records(evidence):
        return _NOTHING
    try:
        units = [
            unit for file in _records(evidence) for unit in decode_overflow(_bytes_of(file)).units if unit.overflowed
        ]
    except ReadError as error:
        return Outcome("unknown", str(error))
    found = {word for unit in units for word in unit.status if word}
    seen = ", ".join(f"{word:#x}" for word in sorted(found)) or "none"
    if any(word & _FLOAT_BIT for word in found):
        return Outcome("confirmed", f"status {seen}")
    if not found or all(word == _CUBE_BIT for word in found):
        return Outcome("unknown", f"status {seen}")
    return Outcome("refuted", f"status {seen}")


def overflow_of_conversion(evidence: Evidence) -> Outcome:
    """The bits that the core reported of a conversion to float16 that overflowed."""
    words = evidence.facts.get("conversion_status")
    if not words:
        return judge_fact(evidence, "conversion_status", words) if words is None else _NOTHING
    seen = ", ".join(f"{word:#x}" for word in words)
    return Outcome("confirmed" if any(word & _CONVERSION_BIT for word in words) else "refuted", f"status {seen}")
