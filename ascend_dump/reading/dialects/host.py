"""Dialect `host`: what the host adapters write, see `ascend_dump.host`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import msgspec

from ascend_dump._errors import CorruptDump
from ascend_dump._files import open_regular
from ascend_dump.host import INDEX, MANIFEST, SHARD, STATISTIC, Line
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._host_loader import LineLoader, Shards
from ascend_dump.reading.dialects._host_lone_shard import LoneShard

__all__ = ["DIALECT"]

_SHARD_FILE = re.compile(r"tensors-\d{5,18}\.safetensors", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
#: Longer numbers in names are no numbers of steps or devices.
_MAX_DIGITS = 18
#: A line holds names and numbers of one tensor, some hundred bytes.
_LONGEST_LINE = 1 << 20


class _HostDialect:
    name = "host"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        names = directory.names
        shards = [name for name in names if _SHARD_FILE.fullmatch(name)]
        claimed = {*shards, *({MANIFEST} & set(names))}
        if shards or INDEX in names:
            # Others have a file of this name too.
            claimed |= {STATISTIC} & set(names)
        if INDEX in names:
            return [_Index(directory)], {*claimed, INDEX}
        entries: list[Entry] = []
        for name in shards:
            if (directory.path / INDEX).is_file():  # one shard was opened by itself
                entries.append(_Index(directory, only=name))
            else:
                known = _levels(directory.parts)
                entries.append(LoneShard(directory.path / name, known, Shards.of(directory.root)))
        return entries, claimed


class _Index(Entry):
    """The index of one step. It is decoded anew each time: that is cheaper than keeping the records of a large dump."""

    __slots__ = ("_known", "_only", "_root", "_shards")

    def __init__(self, directory: Directory, *, only: str = "") -> None:
        known = _levels(directory.parts)
        super().__init__(directory.path / INDEX, **{name: value for name, value in known.items() if name != "model_id"})
        self._known = known
        # Shards of earlier steps are read too, so the limit is the directory of the steps.
        self._root = directory.path.parent
        self._only = f"{directory.path.name}/{only}" if only else ""
        self._shards = Shards.of(directory.root)

    def records(self) -> Iterator[Record]:
        loader = LineLoader(self._root, self._shards)
        # Most texts come many times; each is kept once.
        texts: dict[str, str] = {}
        once = texts.setdefault
        decode = msgspec.json.Decoder(Line).decode
        paths: dict[str, Path] = {"": self.path}
        offset = 0
        try:
            with open_regular(self.path) as file:
                # What is appended from now on is left to the next reader.
                size = os.fstat(file.fileno()).st_size
                while offset < size:
                    raw = file.readline(_LONGEST_LINE)
                    if not raw:
                        break
                    if len(raw) == _LONGEST_LINE and not raw.endswith(b"\n"):
                        yield self._broken(f"a line is longer than {_LONGEST_LINE} bytes", offset)
                        # Passed over piece by piece: it may be a hole of any size.
                        while raw and not raw.endswith(b"\n"):
                            offset += len(raw)
                            raw = file.readline(_LONGEST_LINE)
                        offset += len(raw)
                        continue
                    try:
                        line = decode(raw)
                        if not self._only or line.shard == self._only:
                            yield self._record(line, loader, paths, once, offset)
                    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                        # A writer that was killed leaves at most one incomplete line behind.
                        if raw.endswith(b"\n") and raw.strip():
                            yield self._broken(f"not a record: {error}", offset)
                    offset += len(raw)
        except OSError as error:
            yield self._broken(f"cannot be read: {error.strerror}", offset)

    def _record(
        self, line: Line, loader: LineLoader, paths: dict[str, Path], once: Callable[[str, str], str], offset: int
    ) -> Record:
        module, source, dtype = line.module, line.source, line.dtype
        line.module, line.source, line.dtype = once(module, module), once(source, source), once(dtype, dtype)
        shard = line.shard
        path = paths.get(shard)
        error = None
        if path is None:
            # The name comes from a file: only a shard beside this one may be meant.
            if SHARD.fullmatch(shard):
                path = paths[shard] = self._root / shard
            else:
                path = self.path
                error = CorruptDump(f"{shard[:200]!r} is not a shard of this dump", path=path, offset=offset)
        readable = shard or line.stats is not None or line.unmeasured or (line.nbytes == 0 and not line.skipped)
        return Record(
            loader if readable else None,
            path=path,
            op_type=line.op_type,
            op_name=line.op_name,
            io=line.io,
            index=line.index,
            key=line,
            error=error,
            attrs=_attrs,
            timestamp=line.time,
            dtype=line.dtype,
            shape=line.shape,
            format="ND",
            nbytes=line.nbytes,
            phase=line.phase,
            module=line.module,
            source=line.source or None,
            nth=line.seq,
            **self._known,
        )

    def _broken(self, reason: str, offset: int) -> Record:
        error = CorruptDump(reason, path=self.path, offset=offset, hint="the other records of the dump stay readable")
        return Record(None, path=self.path, error=error, **self._known)


def _attrs(line: Line) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "seq": line.seq,
        "hash": line.hash,
        "stride": line.stride,
        "storage_offset": line.storage_offset,
        "storage": line.storage,
        "address": line.address,
        "storage_nbytes": line.storage_nbytes,
        "version": line.version,
        "device": line.device,
    }
    if line.skipped:
        attrs["skipped"] = line.skipped
    if line.unmeasured:
        attrs["unmeasured"] = line.unmeasured
    if line.origin:
        attrs["origin"] = line.origin
    if line.argument:
        attrs["argument"] = line.argument
    if line.quantization:
        attrs["quantization"] = line.quantization
    return attrs


def _levels(parts: tuple[str, ...]) -> dict[str, Any]:
    """What the directories say: `{time}/{device}/{model}/{model_id}/{step}` below that of the rank."""
    known: dict[str, Any] = {"step": _number(parts[-1]) if parts else None, "rank": rank_of(parts)}
    if len(parts) < 5 or not _TIME.fullmatch(parts[-5]):
        return known
    run, device, model, model_id, _ = parts[-5:]
    return {**known, "run": run, "device": _number(device), "model": model, "model_id": _number(model_id)}


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


DIALECT = _HostDialect()
