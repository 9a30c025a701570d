"""Dialect `host`: dumps that ascend_dump itself wrote, see `ascend_dump.dump_format`.

Each step has an index with a line of JSON per record. A line refers to a byte range in a shard, a file of tensors.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from ascend_dump.dump_format import INDEX_NAMES, MANIFEST, REMOVED, STATISTIC, index_among
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading.dialects.host._index import IndexEntry
from ascend_dump.reading.dialects.host._index_file import IndexFile
from ascend_dump.reading.dialects.host._loader import Shards
from ascend_dump.reading.dialects.host._lone_shard import LoneShard

__all__ = ["DIALECT"]

_SHARD_FILE = re.compile(r"tensors-\d{5,18}\.safetensors", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
#: Maximum number of digits of step and device numbers in directory names.
_MAX_DIGITS = 18


class _HostDialect:
    name = "host"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        names = directory.names
        shards = [name for name in names if _SHARD_FILE.fullmatch(name)]
        claimed = {*shards, *({MANIFEST, REMOVED, *INDEX_NAMES} & set(names))}
        index = index_among(names)
        if shards or index is not None or REMOVED in names:
            # Other formats have files of this name too, so it is claimed only next to a file of this format.
            claimed |= {STATISTIC} & set(names)
        if index is not None:
            return [_entry(directory, index)], claimed
        entries: list[Entry] = []
        for name in shards:
            index = index_among([name for name in INDEX_NAMES if (directory.path / name).is_file()])
            if index is not None:  # the path of a single shard was opened
                entries.append(_entry(directory, index, only=name))
            elif not (directory.path / REMOVED).is_file():  # the shard of a removed step is kept only for other steps
                fields = _levels(directory.parts)
                entries.append(LoneShard(directory.path / name, fields, Shards.of(directory.root)))
        return entries, claimed


def _entry(directory: Directory, name: str, *, only: str = "") -> IndexEntry:
    """Return the entry of an index. only: the name of the shard whose records are read, if a single one was opened"""
    path = directory.path
    return IndexEntry(
        IndexFile(
            path / name,
            # Lines may refer to shards of earlier steps, so paths are limited to the directory of the steps.
            path.parent,
            _levels(directory.parts),
            f"{path.name}/{only}" if only else "",
            Shards.of(directory.root),
        )
    )


def _levels(parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields in the levels `{time}/{device}/{model}/{model_id}/{step}`, and the rank from a level above."""
    levels: dict[str, Any] = {"step": _number(parts[-1]) if parts else None, "rank": rank_of(parts)}
    if len(parts) < 5 or not _TIME.fullmatch(parts[-5]):
        return levels
    run, device, model, model_id, _ = parts[-5:]
    return {**levels, "run": run, "device": _number(device), "model": model, "model_id": _number(model_id)}


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


DIALECT = _HostDialect()
