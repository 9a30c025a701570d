"""Lines of a host dump's index as columns of a catalog, without a Record for each."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from ascend_dump.host import Line
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    from pathlib import Path

    import polars

__all__ = ["frame_of_lines"]

_SAME = ("op_type", "op_name", "io", "index", "dtype", "shape", "nbytes", "phase", "module", "seq", "hash", "stride")
#: Attributes that few records have.
_PACKED = ("parameter", "quantization", "collective", "placement")
_PLACE = ("storage_offset", "storage", "address", "storage_nbytes", "version")
_TEXTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_UNKNOWN = (None,) * len(Statistics._fields)


def frame_of_lines(
    lines: list[Line], places: list[int], known: dict[str, Any], index: Path, root: Path
) -> polars.DataFrame:
    """The columns of some lines, whose shards are known to be shards of this dump.

    places: where in the index each of them begins.
    known: what the directories say of all of them. root: the directory of the steps, which shards are named from.
    """
    from ascend_dump.reading.catalog import PLACE, of_columns

    paths = {shard: str(root / shard) for shard in {line.shard for line in lines}}
    paths[""] = str(index)
    columns: dict[str, Any] = {name: list(map(attrgetter(name), lines)) for name in (*_SAME, *_PLACE)}
    columns.update(known)
    columns[PLACE] = places
    columns["nth"] = columns["seq"]
    columns["timestamp"] = list(map(attrgetter("time"), lines))
    columns["source"] = [source or None for source in map(attrgetter("source"), lines)]
    columns["placed_on"] = list(map(attrgetter("device"), lines))
    columns["path"] = [paths[line.shard] for line in lines]
    columns["format"] = "ND"
    for name in ("skipped", "unmeasured", "argument"):
        values = list(map(attrgetter(name), lines))
        columns[name] = [value or None for value in values] if any(values) else None
    origins = list(map(attrgetter("origin"), lines))
    columns["origin"] = [origin or None for origin in origins] if any(origins) else None
    packed = {name: values for name in _PACKED if any(values := list(map(attrgetter(name), lines)))}
    if packed:
        rare = ({name: value for name, value in zip(packed, values) if value} for values in zip(*packed.values()))
        columns["attrs"] = [json.dumps(one, default=msgspec.to_builtins) if one else None for one in rare]
    if any(line.stats is not None for line in lines):
        rows = [_UNKNOWN if line.stats is None else _statistics(line.stats) for line in lines]
        columns.update((name, list(values)) for name, values in zip(Statistics._fields, zip(*rows)))
    return of_columns(columns, len(lines))


def _statistics(stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the loader of these records makes of them; nothing where it would refuse them."""
    if type(stats[0]) is not int or stats[0] < 0:
        return _UNKNOWN
    if any(type(value) is str for value in stats):
        if any(type(value) is str and value not in _TEXTS for value in stats):
            return _UNKNOWN
        stats = tuple(_TEXTS[value] if type(value) is str else value for value in stats)
    return stats if len(stats) == len(_UNKNOWN) else (*stats, *_UNKNOWN[len(stats) :])
