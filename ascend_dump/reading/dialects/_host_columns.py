"""Convert lines of a host dump's index to columns of a catalog, without creating records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import msgspec
from msgspec.structs import astuple

from ascend_dump.host import Line
from ascend_dump.statistics import COUNTS, Statistics

if TYPE_CHECKING:
    from pathlib import Path

    import polars

__all__ = ["LineColumns", "PlainLine", "count_objects", "line_places"]

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class PlainBlob(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """`Line.blob`."""

    begin: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


_KINDS = {name: Optional[int] if name in COUNTS else Union[int, float, str, None] for name in Statistics._fields[1:]}
#: `Line.stats` where nothing else than elements is counted, and in whole numbers.
_PlainStatistics: Any = msgspec.defstruct(
    "_PlainStatistics",
    [("count", _Natural), *((name, kind, None) for name, kind in _KINDS.items())],
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
)


class PlainLine(Line, omit_defaults=True, gc=False):
    """A line that has structs instead of tuples for lists of fixed length.

    Unlike tuples, these structs are not tracked by the garbage collector, which saves time when millions of lines are
    decoded.
    """

    blob: Optional[PlainBlob] = None  # type: ignore[assignment]  # nobody takes these lines for others
    stats: Optional[_PlainStatistics] = None


_FIELDS = PlainLine.__struct_fields__
_LISTS = ("shape", "stride")
_SAME = ("op_type", "op_name", "io", "index", "dtype", "nbytes", "phase", "module", "seq", "hash")
_PLACE = ("storage_offset", "storage", "address", "storage_nbytes", "version")
#: Fields that few records have; their columns are null otherwise.
_RARE = ("skipped", "unmeasured", "argument", "origin")
#: Rare fields that are encoded together in one column.
_PACKED = ("parameter", "quantization", "collective", "placement")
_OTHERS = ("time", "source", "device", "shard", "stats")
_TOLD = {name: _FIELDS.index(name) for name in (*_SAME, *_PLACE, *_RARE, *_PACKED, *_OTHERS)}
_TEXTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_UNKNOWN = (None,) * len(Statistics._fields)


class LineColumns:
    """Collects the columns of lines.

    Lines are added some hundred at a time, while they are in the processor's cache; tables are created of more lines,
    because each takes a fixed time.
    """

    def __init__(self, known: dict[str, Any], index: Path, root: Path) -> None:
        """known: fields of all lines, from the names of directories. root: the directory of the steps."""
        self._known = known
        self._index = index
        self._root = root
        self._clear()

    def _clear(self) -> None:
        self._places: list[int] = []
        self._told: dict[str, list[Any]] = {name: [] for name in _TOLD}
        #: For each list field: the number of each distinct list, and the number for each line.
        self._lists: dict[str, tuple[dict[Any, int], list[int]]] = {name: ({}, []) for name in _LISTS}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, lines: Sequence[Line], places: Sequence[int]) -> None:
        """Add lines, as `PlainLine`, whose shards are known to be shards of this dump.

        places: where in the index each of them begins
        """
        # One flat list of all values, sliced into columns: one pass over the lines instead of one per column.
        values = list(chain.from_iterable(map(astuple, lines)))
        for name, first in _TOLD.items():
            self._told[name] += values[first :: len(_FIELDS)]
        for name, (numbers, where) in self._lists.items():
            where += [numbers.setdefault(one, len(numbers)) for one in values[_FIELDS.index(name) :: len(_FIELDS)]]
        self._places += places

    def frame(self) -> polars.DataFrame:
        """The columns of the lines added since the last call."""
        from ascend_dump.reading.catalog import PLACE, lists, of_columns

        told = self._told
        paths = {shard: str(self._root / shard) for shard in set(told["shard"])}
        if "" in paths:
            paths[""] = str(self._index)
        shards = [*paths.values()] if len(paths) == 1 else list(map(paths.__getitem__, told["shard"]))
        columns: dict[str, Any] = {name: told[name] for name in (*_SAME, *_PLACE)}
        columns.update({name: lists(name, [*numbers], where) for name, (numbers, where) in self._lists.items()})
        columns.update(self._known)
        columns[PLACE] = self._places
        columns["nth"] = told["seq"]
        columns["timestamp"] = told["time"]
        columns["source"] = [source or None for source in told["source"]]
        columns["placed_on"] = told["device"]
        columns["path"] = shards[0] if len(paths) == 1 else shards
        columns["format"] = "ND"
        for name in _RARE:
            columns[name] = [value or None for value in told[name]] if any(told[name]) else None
        packed = {name: told[name] for name in _PACKED if any(told[name])}
        if packed:
            rare = ({name: value for name, value in zip(packed, values) if value} for values in zip(*packed.values()))
            columns["attrs"] = [json.dumps(one, default=msgspec.to_builtins) if one else None for one in rare]
        columns.update(_of_statistics(told["stats"]))
        made = of_columns(columns, len(self))
        self._clear()
        return made


def line_places(text: bytes, offset: int) -> list[int]:
    """The offsets of the lines of a text that begins at `offset`."""
    import numpy as np

    ends: list[int] = (np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + (offset + 1)).tolist()
    return [offset, *ends[:-1]] if ends else []


def count_objects(text: bytes) -> int:
    """The number of lines, if all begin with `{` and end with `}`; else 0.

    In JSON `{` cannot follow `}`, and strings have no newlines, so no object spans two of these lines: if there are as
    many objects as lines, each line is one object.
    """
    import numpy as np

    found = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(found == ord("\n"))
    regular = (
        text.startswith(b"{")
        and text.endswith(b"}\n")
        and (found[ends[:-1] - 1] == ord("}")).all()
        and (found[ends[:-1] + 1] == ord("{")).all()
    )
    return len(ends) if regular else 0


def _of_statistics(rows: list[Any]) -> dict[str, list[Any]]:
    """The columns of the statistics of all lines; empty if no line has statistics."""
    if not any(rows):
        return {}
    values = list(chain.from_iterable(_UNKNOWN if row is None else astuple(row) for row in rows))
    columns = {name: values[first :: len(_UNKNOWN)] for first, name in enumerate(Statistics._fields)}
    if any(str in set(map(type, columns[name])) for name in Statistics._fields if name not in COUNTS):
        values = list(chain.from_iterable(_UNKNOWN if row is None else _statistics(astuple(row)) for row in rows))
        columns = {name: values[first :: len(_UNKNOWN)] for first, name in enumerate(Statistics._fields)}
    return columns


def _statistics(stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """Statistics with texts (NaN, Inf) converted to numbers; empty if the loader would refuse them."""
    found = tuple([_TEXTS.get(value, value) if type(value) is str else value for value in stats])
    return _UNKNOWN if str in map(type, found) else found
