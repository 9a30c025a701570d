"""Read the header of a `.safetensors` file that may be malicious.

The file consists of 8 bytes with the size of the header, the header in JSON, and the bytes of the tensors. The tensors
have to cover these bytes without gaps and overlaps, as in the reference implementation (safetensors/src/tensor.rs).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ascend_dump.dump_format import PADDING, SAFETENSORS
from ascend_dump.errors import CorruptDump, NotSupported, StorageError
from ascend_dump.reading.weights._tensor import FileBytes, WeightTensor, numpy_dtype
from ascend_dump.storage.files import NotRegularFile, open_regular, size_of

__all__ = ["safetensors_file"]

#: Maximum size of a header in bytes, as in the library safetensors.
_MOST_HEADER = 100_000_000
_METADATA = "__metadata__"
#: Types by their names in the format: the types that the dump format writes, and two that it does not write.
_DTYPES = {
    **{native.name: dtype for dtype, native in SAFETENSORS.items()},
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
_Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: Annotated[tuple[_Size, ...], Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]


def safetensors_file(path: Path, *, follow_links: bool = True) -> Iterator[WeightTensor]:
    """Yield the tensors of a file. Raises CorruptDump, and NotSupported for a type that numpy and ml_dtypes lack."""
    total = _size(path, follow_links)
    file = FileBytes(path, follow_links=follow_links)
    claimed = struct.unpack("<Q", file.read(0, 8))[0] if total >= 8 else 0
    if not 2 <= claimed <= min(total - 8, _MOST_HEADER):
        raise CorruptDump(
            f"it is no safetensors file: its header claims {claimed} bytes, and the file has {total}",
            path=path,
            offset=0,
        )
    try:
        entries = msgspec.json.decode(file.read(8, claimed), type=dict[str, msgspec.Raw])
        entries.pop(_METADATA, None)
        tensors = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in entries.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptDump(f"its header is damaged: {error}", path=path, offset=8) from None
    start = 8 + claimed
    _check_cover(path, tensors, start, total)
    for name, entry in tensors.items():
        if name.startswith(PADDING):
            continue
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise NotSupported(
                f"{path}: {name!r} has the type {entry.dtype[:40]!r}, which is not read",
                hint=f"types that are read: {', '.join(_DTYPES)}; convert the tensor, or remove it",
            )
        begin, end = entry.data_offsets
        needed = math.prod(entry.shape) * numpy_dtype(dtype).itemsize
        if needed != end - begin:
            raise CorruptDump(
                f"{name!r} needs {needed} bytes for its shape, but has {end - begin} according to the header",
                path=path,
                offset=start + begin,
            )
        yield WeightTensor(name, dtype, entry.shape, path, content=(file, start + begin))


def _size(path: Path, follow_links: bool) -> int:
    try:
        with open_regular(path, follow_links=follow_links) as file:
            return size_of(file)
    except NotRegularFile as error:
        raise CorruptDump(error.what, path=path) from None
    except StorageError:
        raise
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path) from None


def _check_cover(path: Path, tensors: dict[str, _Entry], start: int, total: int) -> None:
    """Raise CorruptDump unless the tensors follow each other without gaps up to the end of the file."""
    position, previous = 0, "the header"
    for name, entry in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < position:
            raise CorruptDump(f"{name!r} overlaps {previous!r}", path=path, offset=start + begin)
        if begin > position or end < begin:
            raise CorruptDump(
                f"{name!r} has the bytes {begin} to {end}, expected them to begin at {position}",
                path=path,
                offset=start + begin,
            )
        position, previous = end, name
    if start + position != total:
        what = "it is truncated" if start + position > total else "the rest belongs to no tensor"
        raise CorruptDump(
            f"its tensors end at byte {start + position}, and the file has {total} bytes: {what}",
            path=path,
            offset=min(start + position, total),
        )
