"""Lines of a host dump's index as columns of a catalog, without a Record for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Optional

import msgspec
from msgspec.structs import astuple

from ascend_dump.host import Line
from ascend_dump.statistics import COUNTS, Statistics

if TYPE_CHECKING:
    from pathlib import Path

    import polars

__all__ = ["frame_of_lines"]

_FIELDS = Line.__struct_fields__
_SAME = ("op_type", "op_name", "io", "index", "dtype", "shape", "nbytes", "phase", "module", "seq", "hash", "stride")
#: Attributes that few records have.
_PACKED = ("parameter", "quantization", "collective", "placement")
_PLACE = ("storage_offset", "storage", "address", "storage_nbytes", "version")
_TEXTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_UNKNOWN = (None,) * len(Statistics._fields)
_WHOLE = {int, type(None)}
_PLACES_OF_COUNTS = [Statistics._fields.index(name) for name in COUNTS]


def frame_of_lines(
    lines: list[Line], places: Sequence[int], known: dict[str, Any], index: Path, root: Path
) -> polars.DataFrame:
    """The columns of some lines, whose shards are known to be shards of this dump.

    places: where in the index each of them begins.
    known: what the directories say of all of them. root: the directory of the steps, which shards are named from.
    """
    from ascend_dump.reading.catalog import PLACE, of_columns

    # All values in one list, of which each column is cut: one pass over the lines instead of one for each column.
    values = list(chain.from_iterable(map(astuple, lines)))
    told = {name: values[first :: len(_FIELDS)] for first, name in enumerate(_FIELDS)}
    paths = {shard: str(root / shard) for shard in set(told["shard"])}
    paths[""] = str(index)
    columns: dict[str, Any] = {name: told[name] for name in (*_SAME, *_PLACE)}
    columns.update(known)
    columns[PLACE] = list(places)
    columns["nth"] = told["seq"]
    columns["timestamp"] = told["time"]
    columns["source"] = [source or None for source in told["source"]]
    columns["placed_on"] = told["device"]
    columns["path"] = list(map(paths.__getitem__, told["shard"]))
    columns["format"] = "ND"
    for name in ("skipped", "unmeasured", "argument", "origin"):
        columns[name] = [value or None for value in told[name]] if any(told[name]) else None
    packed = {name: told[name] for name in _PACKED if any(told[name])}
    if packed:
        rare = ({name: value for name, value in zip(packed, values) if value} for values in zip(*packed.values()))
        columns["attrs"] = [json.dumps(one, default=msgspec.to_builtins) if one else None for one in rare]
    columns.update(_of_statistics(told["stats"]))
    return of_columns(columns, len(lines))


def _of_statistics(rows: list[Optional[tuple[Any, ...]]]) -> dict[str, list[Any]]:
    """The columns of the statistics of all lines; none where no line has any."""
    if not any(rows):
        return {}
    values = list(chain.from_iterable(_UNKNOWN if row is None else row for row in rows))
    if len(values) != len(_UNKNOWN) * len(rows) or not _are_as_written(values, rows):
        values = list(chain.from_iterable(_UNKNOWN if row is None else _statistics(row) for row in rows))
    return {name: values[first :: len(_UNKNOWN)] for first, name in enumerate(Statistics._fields)}


def _are_as_written(values: list[Any], rows: list[Optional[tuple[Any, ...]]]) -> bool:
    """Whether they are finite numbers throughout, whole ones where elements are counted."""
    counts = [row[0] for row in rows if row is not None]
    if set(map(type, counts)) != {int} or min(counts) < 0:
        return False
    kinds = [set(map(type, values[place :: len(_UNKNOWN)])) for place in range(len(_UNKNOWN))]
    return str not in set().union(*kinds) and all(kinds[place] <= _WHOLE for place in _PLACES_OF_COUNTS)


def _statistics(stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the loader of these records makes of them; nothing where it would refuse them."""
    if type(stats[0]) is not int or stats[0] < 0:
        return _UNKNOWN
    if any(type(value) is str for value in stats):
        if any(type(value) is str and value not in _TEXTS for value in stats):
            return _UNKNOWN
        stats = tuple(_TEXTS[value] if type(value) is str else value for value in stats)
    stats = stats if len(stats) == len(_UNKNOWN) else (*stats, *_UNKNOWN[len(stats) :])
    return stats if all(type(stats[place]) in _WHOLE for place in _PLACES_OF_COUNTS) else _UNKNOWN
