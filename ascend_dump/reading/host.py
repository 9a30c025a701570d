"""Dialect `host`: what the host adapters write, see `writing.layout`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from ascend_dump._errors import CorruptDump, NotSupported
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.writing.layout import INDEX, MANIFEST, SHARD, STATISTIC, Line

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.analysis.statistics import Statistics

__all__ = ["DIALECT"]

_SHARD_FILE = re.compile(r"tensors-\d{5,}\.safetensors")
_TIME = re.compile(r"\d{14}")
#: More than any tensor; a line that claims more is broken.
_MAX_RANK = 64


class _HostDialect:
    name = "host"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        names = directory.names
        claimed = {name for name in names if _SHARD_FILE.fullmatch(name)} if INDEX in names else set()
        claimed |= {name for name in names if name == MANIFEST}
        if INDEX not in names:
            return [], claimed
        claimed |= {INDEX, STATISTIC} & set(names)
        return [_Index(directory)], claimed


class _Index(Entry):
    """The index of one step; its records are decoded once and kept."""

    __slots__ = ("_records", "_root", "model_id")

    def __init__(self, directory: Directory) -> None:
        run, device, model, model_id, step = _levels(directory.parts)
        super().__init__(
            directory.path / INDEX,
            step=step,
            rank=rank_of(directory.parts),
            device=device,
            model=model,
            run=run,
        )
        self.model_id = model_id
        # Shards of earlier steps are read too, so the limit is the directory of the steps.
        self._root = directory.path.parent
        self._records: Optional[list[Record]] = None

    def records(self) -> list[Record]:
        if self._records is None:
            self._records = list(self._read())
        return self._records

    def _read(self) -> Iterator[Record]:
        try:
            text = self.path.read_bytes()
        except OSError as error:
            yield self._broken(f"cannot be read: {error.strerror}", 0)
            return
        loader = _Loader(self._root)
        decode = msgspec.json.Decoder(Line).decode
        offset = 0
        for raw in text.split(b"\n"):
            # The last piece has no newline: empty, or cut off while it was written.
            complete = offset + len(raw) < len(text)
            if raw:
                try:
                    line = decode(raw)
                    if len(line.shape) > _MAX_RANK or min(line.shape, default=0) < 0:
                        raise ValueError(f"impossible shape {line.shape}")
                    yield self._record(line, loader)
                except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
                    # A writer that was killed leaves at most one incomplete line behind.
                    if complete:
                        yield self._broken(f"not a record: {error}", offset)
            offset += len(raw) + 1

    def _record(self, line: Line, loader: _Loader) -> Record:
        attrs: dict[str, Any] = {"seq": line.seq}
        for name in ("hash", "stride", "storage_offset", "storage", "address", "storage_nbytes", "version"):
            attrs[name] = getattr(line, name)
        attrs["device"] = line.device
        for name in ("skipped", "origin", "quantization"):
            if getattr(line, name):
                attrs[name] = getattr(line, name)
        readable = line.shard or line.stats is not None or (line.nbytes == 0 and not line.skipped)
        return Record(
            loader if readable else None,
            path=self._root / line.shard if line.shard else self.path,
            op_type=line.op_type,
            op_name=line.op_name,
            io=line.io,
            index=line.index,
            key=line,
            attrs=attrs,
            step=self.step,
            rank=self.rank,
            device=self.device,
            model=self.model,
            model_id=self.model_id,
            run=self.run,
            timestamp=line.time,
            dtype=line.dtype,
            shape=line.shape,
            format="ND",
            nbytes=line.nbytes,
            phase=line.phase,
            module=line.module,
            source=line.source or None,
        )

    def _broken(self, reason: str, offset: int) -> Record:
        error = CorruptDump(reason, path=self.path, offset=offset, hint="the other records of the dump stay readable")
        return Record(
            None,
            path=self.path,
            error=error,
            step=self.step,
            rank=self.rank,
            device=self.device,
            model=self.model,
            model_id=self.model_id,
            run=self.run,
        )


class _Loader:
    """Reads tensors out of the shards below one directory, mapping each shard once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, Any] = {}

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        import numpy as np

        from ascend_dump.writing.dtypes import numpy_dtype

        line: Line = record._key
        if format not in (None, "ND"):
            raise NotSupported(
                f"{record} has no device format to convert to {format!r}",
                hint="transpose the array; host tensors are stored in the layout the model used",
            )
        dtype = numpy_dtype(line.dtype)
        if not line.shard:
            if line.nbytes == 0 and not line.skipped:
                return np.empty(line.shape, dtype)
            raise NotSupported(
                f"{record} holds statistics only", hint="dump with data='full' or data='tensor' to keep values"
            )
        mapped = self._map(line, record)
        strides = tuple(
            stride * dtype.itemsize for stride in (line.stride if line.stored_stride is None else line.stored_stride)
        )
        begin, size = line.blob or (line.offset, 0)
        last = line.offset + sum((n - 1) * s for n, s in zip(line.shape, strides)) + dtype.itemsize
        inside = 0 <= begin <= line.offset and last <= begin + size <= len(mapped)
        if len(strides) != len(line.shape) or min(strides, default=0) < 0 or not inside:
            raise CorruptDump(
                f"{record.op_name}.{record.io}.{record.index} reaches to byte {last}, "
                f"its data ends at {min(begin + size, len(mapped))}",
                path=record.path,
                offset=line.offset,
                hint="the file was cut off or the index does not belong to it",
            )
        return np.ndarray(line.shape, dtype, buffer=mapped, offset=line.offset, strides=strides)

    def statistics(self, record: Record) -> Optional[Statistics]:
        from ascend_dump.analysis.statistics import Statistics

        line: Line = record._key
        if line.stats is None:
            return None
        values = [float(value) if isinstance(value, str) else value for value in line.stats]
        return Statistics(*values)  # type: ignore[arg-type]  # the order of the fields is the order on disk

    def _map(self, line: Line, record: Record) -> Any:
        mapped = self._maps.get(line.shard)
        if mapped is None:
            # The name comes from a file: only a shard beside this one may be meant.
            if not SHARD.fullmatch(line.shard):
                raise CorruptDump(f"{line.shard!r} is not a shard of this dump", path=record.path)
            mapped = self._maps[line.shard] = _map_file(self._root / line.shard)
        return mapped


def _map_file(path: Path) -> Any:
    import mmap

    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CorruptDump(
            "the shard is missing", path=path, hint="records of later steps may read from the shards of earlier ones"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptDump(f"the shard cannot be mapped: {error}", path=path) from None


def _levels(
    parts: tuple[str, ...],
) -> tuple[Optional[str], Optional[int], Optional[str], Optional[int], Optional[int]]:
    """(run, device, model, model_id, step) from `{time}/{device}/{model}/{model_id}/{step}`."""
    if len(parts) < 5 or not _TIME.fullmatch(parts[-5]):
        return None, None, None, None, _number(parts[-1]) if parts else None
    return parts[-5], _number(parts[-4]), parts[-3], _number(parts[-2]), _number(parts[-1])


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() else None


DIALECT = _HostDialect()
