"""Read CANN's binary dump files: `uint64 header length | header | payloads`, little-endian.

The header is a protobuf message, DumpData. The payloads are in the order inputs, outputs, buffers, spaces, without gaps
(aicpu_schedule dump_task; adump dump_file). A payload may be larger than its shape needs; the rest of it is padding.

Indices are positions in the file. The device leaves out tensors in L1 or UB and tensors on a blacklist, so a position
may be smaller than the index of the operator's input or output.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, Union

from ascend_dump.errors import CorruptDump, DumpNotFound, NotSupported, ReadError, StorageError
from ascend_dump.native.cann._blobs import Blob, place_blobs
from ascend_dump.native.cann._model import (
    MAX_DIMS,
    MAX_ENTRIES,
    NANO_MAGIC,
    Buffer,
    DumpFile,
    Entry,
    OriginalOp,
    Space,
    Tensor,
)
from ascend_dump.native.cann._write import tensor_of, write, write_nano
from ascend_dump.storage import StoredPath, located
from ascend_dump.storage.files import NotRegularFile, open_regular, read_part, size_of

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Buffer",
    "DumpFile",
    "Entry",
    "OriginalOp",
    "Space",
    "Tensor",
    "decode",
    "payload",
    "read_header",
    "tensor_of",
    "write",
    "write_nano",
]

_Path = Union[str, "os.PathLike[str]"]

#: Maximum size of a header in bytes; real headers have some kilobytes.
MAX_HEADER = 64 << 20


def read_header(path: _Path) -> DumpFile:
    """Read the header of a file, and find the positions of the payloads without reading them.

    Raises DumpNotFound, and CorruptDump if it is not a dump file. If payloads are missing or their positions are
    unknown, `problems` says so, and the tensors without a complete payload have an `error`.
    """
    path = located(path)
    with _open(path) as file:
        file_size = size_of(file)
        header = _read_header_bytes(file, path, 0, file_size)
        if header.startswith(NANO_MAGIC):
            from ascend_dump.native.cann.nano import parse_nano

            dump = parse_nano(path, header)
        else:
            dump = _parse(path, header)
        return _place(dump, file, 8 + len(header), file_size)


def payload(dump: DumpFile, entry: Entry) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a payload as a read-only uint8 array. It is a view of the mapped file; in an object store it is read.

    Raises CorruptDump if the payload is incomplete, or if the file changed since the header was read.
    """
    import mmap

    import numpy as np

    if entry.error:
        raise CorruptDump(
            f"{_label(entry)}: {entry.error}",
            path=dump.path,
            offset=entry.offset,
            hint="the dump was cut off or appended to; the other tensors in the file can be read",
        )
    if not entry.length:
        return np.empty(0, np.uint8)
    with _open(dump.path) as file:
        if size_of(file) < entry.offset + entry.length:
            raise CorruptDump(
                f"{_label(entry)}: the file is shorter than when it was opened", path=dump.path, offset=entry.offset
            )
        if isinstance(dump.path, StoredPath):
            return np.frombuffer(read_part(dump.path, entry.offset, entry.length), np.uint8)
        before = entry.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file.fileno(), before + entry.length, access=mmap.ACCESS_READ, offset=entry.offset - before)
    return np.frombuffer(mapped, np.uint8, entry.length, before)


def decode(dump: DumpFile, tensor: Tensor, *, format: Optional[str] = None) -> np.ndarray[Any, Any]:
    """Return the tensor without padding, in its numpy or ml_dtypes type.

    The array may be a read-only view of the mapped file, and then it may be unaligned in memory.
    format: the layout to convert to, or "original" for the layout of the model (`cann.formats`); None: no conversion.
    A payload without a numeric type (string, variant, undefined) is returned as raw bytes.
    Raises CorruptDump if the payload is too short for the shape, NotSupported for a type that cannot be decoded, and
    for a tensor that was not dumped because its address is null.
    """
    from ascend_dump.native.cann import dtypes, formats

    raw = payload(dump, tensor)
    if tensor.size and not tensor.length and 0 not in tensor.shape:
        raise NotSupported(
            f"{_label(tensor)} of {dump.path} was not dumped: its address was null on the device",
            hint="the operator does not use this output; read the others",
        )
    try:
        array = dtypes.decode(raw, tensor.data_type, tensor.shape)
        if format is None:
            return array
        origin = tensor.original_op
        return formats.convert(
            array,
            formats.format_name(tensor.format),
            format,
            original_shape=tensor.original_shape,
            original_format=None if origin is None else formats.format_name(origin.format),
            groups=max(1, tensor.sub_format),
        )
    except CorruptDump as error:
        raise CorruptDump(
            f"{_label(tensor)}: {error.message}", path=dump.path, offset=tensor.offset, hint=error.hint
        ) from None


def _label(entry: Entry) -> str:
    return f"{entry.io if isinstance(entry, Tensor) else entry.kind} {entry.index}"


def _open(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise DumpNotFound("no such file", path=path) from None
    except NotRegularFile:
        raise CorruptDump("not a regular file", path=path, hint="give a file that the dump wrote") from None
    except StorageError:
        raise
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from None


def _read_header_bytes(file: BinaryIO, path: Path, start: int, file_size: int) -> bytes:
    available = file_size - start - 8
    if available <= 0:
        raise CorruptDump(
            f"{file_size} bytes are too few for a dump file", path=path, offset=start, hint="the dump was cut off"
        )
    file.seek(start)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(available, MAX_HEADER):
        raise CorruptDump(
            f"not a CANN dump file: it declares a header of {length} bytes, but only {available} follow",
            path=path,
            offset=start,
        )
    header = file.read(length)
    if len(header) != length:
        raise CorruptDump("the file became shorter while it was read", path=path, offset=start + 8)
    return header


def _parse(path: Path, header: bytes) -> DumpFile:
    from ascend_dump.native.cann.messages import messages

    protobuf = messages()
    data = protobuf.dump_data()
    try:
        parsed = data.ParseFromString(header)
    except (protobuf.decode_error, RuntimeWarning, SystemError) as error:
        # RuntimeWarning, because for some broken messages the C++ parser of protobuf 3.20 only warns, and the program
        # may have turned warnings into exceptions.
        raise CorruptDump(
            f"not a CANN dump file: its header is not a DumpData message ({error})", path=path, offset=8
        ) from None
    if parsed not in (None, len(header)):
        raise CorruptDump(
            "not a CANN dump file: unknown bytes follow the message in its header", path=path, offset=8 + parsed
        )
    if max(len(data.input), len(data.output), len(data.buffer), len(data.space), len(data.attr)) > MAX_ENTRIES:
        raise CorruptDump("its header lists more entries than an operator can have", path=path, offset=8)
    problems: list[str] = []
    return DumpFile(
        path,
        _text(data.version),
        data.dump_time,
        _text(data.op_name),
        (
            *(_tensor("input", index, item, problems) for index, item in enumerate(data.input)),
            *(_tensor("output", index, item, problems) for index, item in enumerate(data.output)),
        ),
        tuple(Buffer(index, item.size, type=item.buffer_type) for index, item in enumerate(data.buffer)),
        tuple(
            Space(index, item.size, type=item.type, arg_index=item.arg_index) for index, item in enumerate(data.space)
        ),
        tuple((_text(item.name), _text(item.value)) for item in data.attr),
        _text(data.dfx_message),
        problems=tuple(problems),
    )


def _tensor(io: str, index: int, item: Any, problems: list[str]) -> Tensor:
    origin = None
    ranges: tuple[tuple[int, int], ...] = ()
    if io == "output":
        if item.HasField("original_op"):
            op = item.original_op
            origin = OriginalOp(_text(op.name), op.output_index, op.data_type, op.format)
        ranges = tuple((entry.dim_start, entry.dim_end) for entry in item.dim_range[:MAX_DIMS])
    return Tensor(
        io,
        index,
        item.data_type,
        # The low byte is the layout. The host also writes the number of groups and C0 into the higher bytes.
        item.format & 0xFF,
        _dims(item.shape.dim, f"{io} {index}", problems),
        _dims(item.original_shape.dim, f"{io} {index}", problems),
        item.size,
        item.sub_format or (item.format >> 8) & 0xFFFF,
        address=item.address,
        memory_offset=item.offset,
        original_op=origin,
        dim_range=ranges,
        input_type=item.input_type if io == "input" else 0,
        arg_index=item.arg_index,
    )


def _dims(dims: Sequence[int], label: str, problems: list[str]) -> tuple[int, ...]:
    if len(dims) <= MAX_DIMS:
        return tuple(dims)
    problems.append(f"{label}: {len(dims)} dimensions, of which the first {MAX_DIMS} were read")
    return tuple(dims[:MAX_DIMS])


def _text(value: bytes) -> str:
    # Bytes that are not UTF-8 are escaped, so that every text can be printed.
    return value.decode("utf-8", "backslashreplace")


def _place(dump: DumpFile, file: BinaryIO, start: int, file_size: int) -> DumpFile:
    entries: tuple[Entry, ...] = (*dump.tensors, *dump.buffers, *dump.spaces)
    null = [isinstance(entry, Tensor) and not entry.address for entry in entries]
    placed = place_blobs([entry.size for entry in entries], null, start, file_size)
    blobs = iter(placed.blobs)
    problems = list(dump.problems)
    declared = sum(entry.size for entry in entries)
    if placed.end is None or placed.end > file_size:
        problems.append(f"the header declares {declared} bytes of payload, the file has {file_size - start}")
    elif placed.end < file_size:
        problems.append(_trailing(file, dump.path, placed.end, file_size))
    return dump._replace(
        tensors=tuple(_put(entry, next(blobs)) for entry in dump.tensors),
        buffers=tuple(_put(entry, next(blobs)) for entry in dump.buffers),
        spaces=tuple(_put(entry, next(blobs)) for entry in dump.spaces),
        problems=tuple(problems),
    )


def _put(entry: Any, blob: Blob) -> Any:
    return entry._replace(offset=blob.offset, length=blob.length, error=blob.error)


def _trailing(file: BinaryIO, path: Path, start: int, file_size: int) -> str:
    """Return a sentence about the bytes after the last payload."""
    extra = file_size - start
    try:
        header = _read_header_bytes(file, path, start, file_size)
        again = header.startswith(NANO_MAGIC) or bool(_parse(path, header).version)
    except ReadError:
        again = False
    if again:
        return f"the file was appended to: another dump follows at byte {start}, only the first is read"
    return f"{extra} bytes follow the last payload, at byte {start}"
