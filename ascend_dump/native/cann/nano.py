"""Read and write the headers of nano dump files, which have TLV entries (tag, length, value) instead of protobuf.

Layout, as in msaccucmp (nano_dump_data): `uint64 length | uint32 magic | uint32 version | input TLV | output TLV`,
then the payloads of inputs and outputs. The operator's name and the time are only in the file's name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from ascend_dump.errors import CorruptDump
from ascend_dump.native.cann._model import MAX_DIMS, MAX_ENTRIES, NANO_MAGIC, DumpFile, OriginalOp, Tensor

__all__ = ["encode_nano_header", "parse_nano"]

_INPUTS, _OUTPUTS = 4, 5
_SHAPE, _ORIGINAL_SHAPE, _ORIGINAL_NAME = 0, 1, 2
_TLV = struct.Struct("<II")
#: An input: data_type, format, address_type, address, offset, size, length of the TLV entries after it.
_INPUT = struct.Struct("<iiiQQQI")
#: An output: data_type, format, address_type, the original operator's output index, type and format, address, offset,
#: size, length of the TLV entries after it.
_OUTPUT = struct.Struct("<iiiiiiQQQI")


class _Cursor:
    """A reader of the header's fields in order. Its methods raise CorruptDump if the header is too short."""

    def __init__(self, path: Path, header: bytes, position: int, end: int) -> None:
        self.path = path
        self.header = header
        self.position = position
        self.end = end

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        if self.end - self.position < layout.size:
            raise self.broken("it ends inside an entry")
        values: tuple[int, ...] = layout.unpack_from(self.header, self.position)
        self.position += layout.size
        return values

    def part(self, length: int) -> _Cursor:
        if length > self.end - self.position:
            raise self.broken(f"an entry of {length} bytes does not fit")
        part = _Cursor(self.path, self.header, self.position, self.position + length)
        self.position += length
        return part

    def rest(self) -> bytes:
        return self.header[self.position : self.end]

    def broken(self, what: str) -> CorruptDump:
        return CorruptDump(
            f"not a CANN nano dump file: its header is broken, {what}", path=self.path, offset=8 + self.position
        )


def parse_nano(path: Path, header: bytes) -> DumpFile:
    """Parse a header that begins with the magic number. Raises CorruptDump."""
    from ascend_dump.native.cann.dtypes import from_ge

    cursor = _Cursor(path, header, len(NANO_MAGIC), len(header))
    (version,) = cursor.take(struct.Struct("<I"))
    tensors: list[Tensor] = []
    while True:
        tag, length = cursor.take(_TLV)
        part = cursor.part(length)
        if tag not in (_INPUTS, _OUTPUTS):
            raise cursor.broken(f"tag {tag} is neither inputs ({_INPUTS}) nor outputs ({_OUTPUTS})")
        (count,) = part.take(struct.Struct("<I"))
        if count > MAX_ENTRIES:
            raise part.broken(f"it lists {count} tensors")
        for index in range(count):
            tensor = _parse_input(part, index) if tag == _INPUTS else _parse_output(part, index)
            tensors.append(tensor._replace(data_type=from_ge(tensor.data_type)))
        if cursor.position == cursor.end:
            break
    tensors.sort(key=lambda tensor: tensor.io)
    fields = path.name.split(".")
    stamp = fields[4] if len(fields) > 4 else ""
    return DumpFile(
        path,
        str(version),
        int(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 20 else 0,
        fields[1] if len(fields) > 1 else "",
        tuple(tensors),
        nano=True,
    )


def _parse_input(cursor: _Cursor, index: int) -> Tensor:
    data_type, layout, _, address, offset, size, length = cursor.take(_INPUT)
    tlvs = _parse_tlvs(cursor.part(length))
    return Tensor(
        "input",
        index,
        data_type,
        layout & 0xFF,
        _dims(cursor, tlvs.get(_SHAPE, b"")),
        _dims(cursor, tlvs.get(_ORIGINAL_SHAPE, b"")),
        size,
        (layout >> 8) & 0xFFFF,
        address=address,
        memory_offset=offset,
    )


def _parse_output(cursor: _Cursor, index: int) -> Tensor:
    data_type, layout, _, from_index, from_type, from_format, address, offset, size, length = cursor.take(_OUTPUT)
    tlvs = _parse_tlvs(cursor.part(length))
    name = tlvs.get(_ORIGINAL_NAME, b"").decode("utf-8", "backslashreplace")
    return Tensor(
        "output",
        index,
        data_type,
        layout & 0xFF,
        _dims(cursor, tlvs.get(_SHAPE, b"")),
        _dims(cursor, tlvs.get(_ORIGINAL_SHAPE, b"")),
        size,
        (layout >> 8) & 0xFFFF,
        address=address,
        memory_offset=offset,
        original_op=OriginalOp(name, from_index, from_type, from_format) if name else None,
    )


def _parse_tlvs(cursor: _Cursor) -> dict[int, bytes]:
    values = {}
    while cursor.position < cursor.end:
        tag, length = cursor.take(_TLV)
        values[tag] = cursor.part(length).rest()
    return values


def _dims(cursor: _Cursor, value: bytes) -> tuple[int, ...]:
    if len(value) % 8 or len(value) > 8 * MAX_DIMS:
        raise cursor.broken(f"a shape of {len(value)} bytes")
    return struct.unpack(f"<{len(value) // 8}Q", value)


def encode_nano_header(tensors: Iterable[Tensor], version: int = 0) -> bytes:
    """Return the header for these tensors, without the length that precedes it in a file."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for tensor in tensors:
        (inputs if tensor.io == "input" else outputs).append(tensor)
    out = NANO_MAGIC + struct.pack("<I", version)
    for tag, entries in ((_INPUTS, inputs), (_OUTPUTS, outputs)):
        body = struct.pack("<I", len(entries)) + b"".join(_encode(entry) for entry in entries)
        out += _TLV.pack(tag, len(body)) + body
    return out


def _encode(tensor: Tensor) -> bytes:
    from ascend_dump.native.cann.dtypes import to_ge

    tlvs = _encode_tlv(_SHAPE, struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape))
    tlvs += _encode_tlv(_ORIGINAL_SHAPE, struct.pack(f"<{len(tensor.original_shape)}Q", *tensor.original_shape))
    head = (to_ge(tensor.data_type), tensor.format | tensor.sub_format << 8, 0)
    region = (tensor.address, tensor.memory_offset, tensor.size)
    if tensor.io == "input":
        return _INPUT.pack(*head, *region, len(tlvs)) + tlvs
    origin: Optional[OriginalOp] = tensor.original_op
    if origin is None:
        origin = OriginalOp("", 0, head[0], tensor.format)
    else:
        tlvs += _encode_tlv(_ORIGINAL_NAME, origin.name.encode())
    return _OUTPUT.pack(*head, origin.output_index, origin.data_type, origin.format, *region, len(tlvs)) + tlvs


def _encode_tlv(tag: int, value: bytes) -> bytes:
    return _TLV.pack(tag, len(value)) + value
