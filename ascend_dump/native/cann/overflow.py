"""Decode and encode overflow records: the 2048 bytes in an `Opdebug.Node_OpDebug.*` file.

The device's firmware writes the bytes, in one of two layouts. Sources: msaccucmp for the layouts (const_manager and
dump_data_parser), and CANN's documents on overflow detection for the meaning of the AI Core status bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump
from ascend_dump.native.cann.names import DumpName

__all__ = [
    "PAYLOAD_SIZE",
    "OverflowRecord",
    "Unit",
    "decode_overflow",
    "describe_status",
    "encode_overflow",
    "find_operator",
    "overflow_of",
]

#: Size of a record in bytes: GE registers a buffer of this size for each model.
PAYLOAD_SIZE = 2048
MAGIC = 0x5A5A5A5A
#: The value of an id that a task does not have.
NOT_APPLICABLE = 65535

#: The layout without a magic number. By unit: (offset of its ids, offset of its status block, fields of that block).
_FIXED = {
    "DHA Atomic Add": (0, 512, ("status",)),
    "L2 Atomic Add": (128, 768, ("status",)),
    "AI Core": (256, 1024, ("kernel_code", "block_idx", "status")),
}
_FIXED_IDS = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
_TASK = ("model_id", "stream_id", "task_id", "task_type", "context_id")
_CORE = (*_TASK, "thread_id", "pc_start", "para_base", "core_id", "block_id", "status")
#: The layout with a magic number: (name of the unit, names of its fields of 8 bytes), by the number `acc_type`.
_MAGIC_UNITS = (
    ("AIC", _CORE),
    ("AIV", _CORE),
    ("AICPU", (*_TASK, "cpu_id", "thread_id", "status")),
    ("SDMA", (*_TASK, "thread_id", "src_addr", "dst_addr", "channel_id", "status")),
)
_ADDRESSES = ("pc_start", "para_base", "kernel_code", "src_addr", "dst_addr")
#: Number of status words of a core, from version 1 of the layout on.
_STATUS_WORDS = 4
_HEAD = struct.Struct("<6I")

_CORE_UNITS = ("AI Core", "AIC", "AIV")
_STATUS_BITS = {
    0x8: "negation of the smallest signed integer",
    0x10: "integer add, subtract, multiply or multiply-accumulate",
    0x20: "floating-point calculation",
    0x80: "negative input of a conversion from floating point to unsigned integer",
    0x100: "conversion from FP32 or signed 32-bit integer to FP16",
    0x400: "accumulation in the Cube unit",
}


class Unit(NamedTuple):
    """A unit of the device in a record, such as an AI Core.

    status  one word; for cores, from version 1 of the layout on, four words. All are 0 if the unit did not overflow
    context_id, thread_id  context and thread of the task; None if it has none (65535) or the layout lacks them
    """

    name: str
    status: tuple[int, ...]
    model_id: int
    stream_id: int
    task_id: int
    task_type: int
    context_id: Optional[int] = None
    thread_id: Optional[int] = None

    @property
    def overflowed(self) -> bool:
        return any(self.status)

    @property
    def words(self) -> tuple[str, ...]:
        """The meaning of the status: a text for each bit that is set."""
        return describe_status(self.name, self.status)


class OverflowRecord(NamedTuple):
    """A decoded record.

    document  the record in msaccucmp's JSON form (print it with `json.dumps(document, indent=4)`)
    units     all units of the record, those that overflowed first
    problems  sentences about irregularities of the record, which did not prevent its decoding
    """

    document: dict[str, Any]
    units: tuple[Unit, ...]
    problems: tuple[str, ...] = ()


def decode_overflow(payload: Union[bytes, bytearray, memoryview]) -> OverflowRecord:
    """Decode the bytes of output 0 of an Opdebug file.

    Raises CorruptDump if the bytes have neither layout. The error's offset is counted from the start of the payload.

    (assumption cann.overflow_payload)
    """
    data = bytes(payload)
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == MAGIC:
        return _decode_magic(data)
    if len(data) != PAYLOAD_SIZE:
        raise CorruptDump(
            f"an overflow record has {PAYLOAD_SIZE} bytes or begins with {MAGIC:#x}, this one has {len(data)} bytes",
            hint="the file was cut off, or it is not an overflow record",
        )
    return _decode_fixed(data)


def overflow_of(document: dict[str, Any]) -> OverflowRecord:
    """Return the record for a document like `OverflowRecord.document`. Raises CorruptDump for any other document."""
    if "magic" in document or any(name in document for name in _FIXED):
        try:
            return decode_overflow(encode_overflow(document))
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError, struct.error):
            pass
    raise CorruptDump(
        "it is not the JSON of an overflow record",
        hint="expected the units of the device, each with its numbers, as msaccucmp writes them",
    )


def encode_overflow(document: dict[str, Any]) -> bytes:
    """Return the 2048 bytes of a record. document: as `OverflowRecord.document`; missing numbers become 0.

    (assumption cann.overflow_payload)
    """
    out = bytearray(PAYLOAD_SIZE)
    if "magic" not in document:
        for name, (offset, status_at, extra) in _FIXED.items():
            values = document.get(name, {})
            struct.pack_into("<6Q", out, offset, *(_to_int(values.get(field, 0)) for field in _FIXED_IDS))
            struct.pack_into(f"<{len(extra)}Q", out, status_at, *(_to_int(values.get(field, 0)) for field in extra))
        return bytes(out)
    record = document["acc_list"]
    kind = next(offset for offset, (name, _) in enumerate(_MAGIC_UNITS) if name == record["acc_type"])
    numbers: list[int] = []
    for field in _MAGIC_UNITS[kind][1]:
        value = record["data"].get(field, 0)
        numbers += [_to_int(word) for word in value] if isinstance(value, (list, tuple)) else [_to_int(value)]
    body = struct.pack(f"<{len(numbers)}Q", *numbers)
    size = record.get("data_len", len(body))
    head = (MAGIC, document.get("version", 0), record.get("valid", 1), kind, record.get("rsv", 0), size)
    _HEAD.pack_into(out, 0, *head)
    out[_HEAD.size : _HEAD.size + len(body)] = body
    return bytes(out)


def describe_status(unit: str, status: Sequence[int]) -> tuple[str, ...]:
    """Return a text for each bit that is set. All bits without a documented meaning are one hexadecimal number.

    unit: the name of the unit. Meanings are documented for "AI Core", "AIC" and "AIV" only.

    (assumption cann.overflow_status)
    (assumption cann.overflow_of_conversion)
    """
    words: list[str] = []
    for number, value in enumerate(status):
        where = f"word {number}: " if len(status) > 1 else ""
        documented = 0
        if unit in _CORE_UNITS:
            for bit, text in _STATUS_BITS.items():
                if value & bit:
                    documented |= bit
                    words.append(f"{where}{text} ({bit:#x})")
        if value & ~documented:
            words.append(f"{where}status {value & ~documented:#x} has no documented meaning for {unit}")
    return tuple(words)


def find_operator(unit: Unit, names: Iterable[DumpName], around: int) -> Optional[DumpName]:
    """Return the name of the file of the operator that overflowed; None if it is not among `names`.

    names: the files in the directory of the record. Task and stream have to be equal, and context and thread if the
    record has them. If the operator ran several times, the run nearest to `around`, the record's timestamp, is chosen.

    (assumption cann.overflow_operator)
    """
    best: Optional[DumpName] = None
    for name in names:
        if (
            name.task_id == unit.task_id
            and name.stream_id in (unit.stream_id, None)
            and not name.overflow
            and not name.exception
            and unit.context_id in (None, name.context_id)
            and unit.thread_id in (None, name.thread_id)
            and (best is None or abs(name.timestamp - around) < abs(best.timestamp - around))
        ):
            best = name
    return best


def _decode_fixed(data: bytes) -> OverflowRecord:
    document: dict[str, Any] = {}
    units = []
    for name, (offset, status_at, extra) in _FIXED.items():
        values = dict(zip(_FIXED_IDS, struct.unpack_from("<6Q", data, offset)))
        values.update(zip(extra, struct.unpack_from(f"<{len(extra)}Q", data, status_at)))
        units.append(_unit(name, values, (values["status"],)))
        document[name] = _shown(values)
    return OverflowRecord(document, _overflowed_first(units))


def _decode_magic(data: bytes) -> OverflowRecord:
    if len(data) < _HEAD.size:
        raise CorruptDump(f"an overflow record of {len(data)} bytes is cut off inside its header", offset=len(data))
    _, version, valid, kind, reserved, size = _HEAD.unpack_from(data)
    if kind >= len(_MAGIC_UNITS):
        raise CorruptDump(
            f"the overflow record has accelerator type {kind}, known are 0 to {len(_MAGIC_UNITS) - 1}",
            offset=12,
            hint="a newer CANN wrote it; msaccucmp of that version may know it",
        )
    name, fields = _MAGIC_UNITS[kind]
    words = _STATUS_WORDS if name in _CORE_UNITS and version > 0 else 1
    expected = 8 * (len(fields) - 1 + words)
    if len(data) < _HEAD.size + expected:
        raise CorruptDump(
            f"an overflow record of {name} needs {_HEAD.size + expected} bytes, there are {len(data)}",
            offset=len(data),
        )
    problems = []
    if size != expected:
        problems.append(f"it declares {size} bytes of data, but {name} has {expected}")
    if valid != 1:
        problems.append(f"it is marked as not valid ({valid})")
    if version > 1:
        problems.append(f"version {version} is newer than this reader, which reads it as version 1")
    numbers = struct.unpack_from(f"<{expected // 8}Q", data, _HEAD.size)
    values: dict[str, Any] = dict(zip(fields[:-1], numbers))
    status = numbers[len(fields) - 1 :]
    values["status"] = list(status) if words > 1 else status[0]
    record = {"valid": valid, "acc_type": name, "rsv": reserved, "data_len": size, "data": _shown(values)}
    document = {"magic": hex(MAGIC), "version": version, "acc_list": record}
    return OverflowRecord(document, (_unit(name, values, status),), tuple(problems))


def _unit(name: str, values: dict[str, Any], status: tuple[int, ...]) -> Unit:
    optional = (values.get("context_id"), values.get("thread_id"))
    context, thread = (None if value == NOT_APPLICABLE else value for value in optional)
    return Unit(
        name, status, values["model_id"], values["stream_id"], values["task_id"], values["task_type"], context, thread
    )


def _overflowed_first(units: list[Unit]) -> tuple[Unit, ...]:
    return tuple(sorted(units, key=lambda unit: not unit.overflowed))


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    return {name: hex(value) if name in _ADDRESSES else value for name, value in values.items()}


def _to_int(value: Union[int, str]) -> int:
    return int(value, 0) if isinstance(value, str) else value
