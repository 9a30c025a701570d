"""Create records for a shard without an index, from the header of the safetensors file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
from msgspec import Meta

from ascend_dump.dump_format import PADDING, SAFETENSORS
from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading._dialect import Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects.host._loader import ShardRegion, Shards, read_array, refuse_format, row_major

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["LoneShard"]

#: Maximum size of a header in bytes, as in the library safetensors.
_MOST_HEADER = 100_000_000
_METADATA = "__metadata__"
#: The writer's names of tensors: operator, io, index, and a suffix `~N` for a repeated name.
_NAME = re.compile(r"(.+)\.(input|output|buffer|space)\.(\d{1,9})(?:~\d+)*", re.DOTALL | re.ASCII)
_DTYPES = {native.name: name for name, native in SAFETENSORS.items()}
_Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _LoneTensor(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[_Size, ...], Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]


class LoneShard(Entry):
    """A shard without an index. Names, shapes and values of its tensors are known, but not the types of operators."""

    __slots__ = ("_known", "_shards")

    def __init__(self, path: Path, fields: dict[str, Any], shards: Shards) -> None:
        super().__init__(path, **{name: value for name, value in fields.items() if name != "model_id"})
        self._known = fields
        self._shards = shards

    def records(self) -> Iterator[Record]:
        loader = _LoneShardLoader(self._shards)
        try:
            entries, start = self._header()
        except ReadError as error:
            yield self._broken(error)
            return
        for name, raw in entries.items():
            if name == _METADATA or name.startswith(PADDING):
                continue
            parsed = _NAME.fullmatch(name)
            op_name, io, index = (parsed[1], parsed[2], int(parsed[3])) if parsed else (name, "buffer", 0)
            try:
                tensor = msgspec.json.decode(raw, type=_LoneTensor)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                damage = CorruptDump(f"{name[:200]!r} in the header is no tensor: {error}", path=self.path, offset=8)
                yield self._broken(damage, op_name=op_name)
                continue
            begin, end = tensor.data_offsets
            yield Record(
                loader,
                path=self.path,
                op_name=op_name,
                io=io,
                index=index,
                key=(tensor, start),
                dtype=_DTYPES.get(tensor.dtype, tensor.dtype.lower()),
                shape=tensor.shape,
                format="ND",
                nbytes=max(end - begin, 0),
                **self._known,
            )

    def _header(self) -> tuple[dict[str, msgspec.Raw], int]:
        """Return (undecoded descriptions of tensors by name, byte position of the first tensor). Raises ReadError."""
        mapped = self._shards.map(self.path)
        size = struct.unpack("<Q", mapped[:8])[0] if len(mapped) >= 8 else 0
        if not 2 <= size <= min(len(mapped) - 8, _MOST_HEADER):
            raise CorruptDump(f"it is no safetensors file: its header claims {size} bytes", path=self.path, offset=0)
        text = mapped[8 : 8 + size]
        if not text.strip(b"\0"):
            raise CorruptDump(
                "its header was not completed: the process that wrote it was killed, or could not write",
                path=self.path,
                offset=8,
                hint="the tensors are intact: move the file next to its index file and open that directory",
            )
        try:
            return msgspec.json.decode(text, type=dict[str, msgspec.Raw]), 8 + size
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptDump(f"its header is damaged: {error}", path=self.path, offset=8) from None

    def _broken(self, error: ReadError, op_name: str = "") -> Record:
        return Record(None, path=self.path, error=error, op_name=op_name, **self._known)


class _LoneShardLoader:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        tensor, start = record.key
        refuse_format(record, format)
        if tensor.dtype not in _DTYPES:
            raise NotSupported(
                f"{record} has the type {tensor.dtype[:40]!r}, which cannot be read without its index",
                hint="read it with the safetensors library",
            )
        dtype, (begin, end) = _DTYPES[tensor.dtype], tensor.data_offsets
        size = SAFETENSORS[dtype].itemsize
        for n in tensor.shape:
            size *= n
        if size != end - begin:
            raise CorruptDump(
                f"{record.label} needs {size} bytes, but has {end - begin} according to the header",
                path=record.path,
                offset=start + begin,
            )
        region = ShardRegion(start + begin, start + end, start + begin, dtype, tensor.shape, row_major(tensor.shape))
        return read_array(self._shards.map(record.path), region, record)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None
