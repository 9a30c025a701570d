"""Convert lines of an index to columns of a catalog, without creating records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import msgspec
from msgspec.structs import astuple, fields

from ascend_dump.dump_format import Line
from ascend_dump.reading._record import arguments_of
from ascend_dump.reading.dialects.host._calls import NO_CALL, Call
from ascend_dump.statistics import COUNTS, TABLE, Statistics

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import polars

__all__ = ["LineColumns", "PlainLine", "are_objects", "line_ends", "line_starts"]

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class PlainBlob(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """`Line.blob` as a struct: the byte range of the stored tensor in its shard."""

    begin: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


_KINDS = {name: Optional[int] if name in COUNTS else Union[int, float, str, None] for name in Statistics._fields[1:]}
#: `Line.stats` as a struct: the number of elements and the other fields of Statistics. Counts have to be integers.
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

    blob: Optional[PlainBlob] = None  # type: ignore[assignment]  # these lines are only used in this module
    stats: Optional[_PlainStatistics] = None


_FIELDS = PlainLine.__struct_fields__
_LISTS = ("shape", "stride")
#: Fields that become a column with the same name and values. `_PLACE` has the fields about the tensor's memory.
_SAME = ("op_type", "op_name", "io", "index", "dtype", "nbytes", "phase", "module", "seq", "hash")
_PLACE = ("storage_offset", "storage", "address", "storage_nbytes", "version")
#: Fields that few lines have. A column without any value is null and not converted.
_RARE = ("skipped", "unmeasured", "origin")
#: Rare fields that are encoded together as JSON in the column `attrs`.
_PACKED = ("parameter", "quantization", "collective", "placement")
_VIEW = ("blob", "offset", "stored_stride")
_OTHERS = ("argument", "time", "source", "device", "shard", "stats", "call")
_DEFAULTS = {field.name: field.default for field in fields(Line)}
#: The index in `_FIELDS` of each field whose values `LineColumns` collects.
_TOLD = {name: _FIELDS.index(name) for name in (*_SAME, *_PLACE, *_RARE, *_PACKED, *_VIEW, *_OTHERS)}
_TEXTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_UNKNOWN = (None,) * len(Statistics._fields)
_OPTIONAL = tuple(entry.name for entry in TABLE if entry.is_optional)
_FLOATS = tuple(name for name in Statistics._fields if name not in COUNTS)


class _Numbers(dict[Any, int]):
    """A dictionary that numbers its keys from 0, in the order in which they are first looked up."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class LineColumns:
    """A collector of lines that converts them to columns.

    `add` gets some hundred lines at a time, while they are in the processor's cache. `frame` is called for a few
    thousand lines, because creating a table takes a fixed time.
    """

    def __init__(self, shared: dict[str, Any], index: Path, root: Path) -> None:
        """Create an empty collector.

        shared: the fields that all lines have, from directory names. root: the directory of the steps.
        """
        self._known = shared
        self._index = index
        self._root = root
        self._before = NO_CALL
        self._clear()

    def _clear(self) -> None:
        self._places: list[np.ndarray] = []
        self._told: dict[str, list[Any]] = {name: [] for name in _TOLD}
        #: For each field of `_LISTS`: the numbers of its distinct lists, and for each line the number of its list.
        self._lists: dict[str, tuple[_Numbers, list[int]]] = {name: (_Numbers(), []) for name in _LISTS}

    def __len__(self) -> int:
        return len(self._told["seq"])

    def add(self, lines: Sequence[Line], offsets: np.ndarray, before: Call) -> None:
        """Add lines of the class `PlainLine`. Their shard names have to be checked already.

        offsets: the position of each line in the index. before: the call of the line above
        """
        if not self:
            self._before = before
        # One flat list of all values, sliced into columns: one pass over the lines instead of one per column.
        values = list(chain.from_iterable(map(astuple, lines)))
        for name, first in _TOLD.items():
            self._told[name] += values[first :: len(_FIELDS)]
        for name, (numbers, where) in self._lists.items():
            where += map(numbers.__getitem__, values[_FIELDS.index(name) :: len(_FIELDS)])
        self._places.append(offsets)

    def frame(self) -> polars.DataFrame:
        """Return the columns of the lines added since the last call."""
        import numpy as np
        import polars as pl

        from ascend_dump.reading.catalog import PLACE, lists, of_columns

        by_field = self._told
        paths = {shard: str(self._root / shard) for shard in set(by_field["shard"])}
        if "" in paths:
            paths[""] = str(self._index)
        shards = [*paths.values()] if len(paths) == 1 else list(map(paths.__getitem__, by_field["shard"]))
        columns: dict[str, Any] = {name: by_field[name] for name in (*_SAME, *_PLACE)}
        columns.update({name: lists(name, [*numbers], where) for name, (numbers, where) in self._lists.items()})
        columns.update(_of_views(by_field, columns["stride"]))
        columns.update(self._known)
        columns[PLACE] = pl.Series(PLACE, np.concatenate(self._places), dtype=pl.Int64)
        columns["nth"] = by_field["seq"]
        columns["timestamp"] = by_field["time"]
        columns["source"] = by_field["source"]
        if "" in by_field["source"]:
            columns["source"] = [source or None for source in by_field["source"]]
        columns["placed_on"] = by_field["device"]
        columns["path"] = shards[0] if len(paths) == 1 else shards
        columns["format"] = "ND"
        columns["argument"] = self._arguments()
        for name in _RARE:
            columns[name] = [value or None for value in by_field[name]] if _any_given(name, by_field[name]) else None
        packed = {name: by_field[name] for name in _PACKED if _any_given(name, by_field[name])}
        if list(packed) == ["parameter"]:
            # A hundred thousand lines have the names of a hundred parameters.
            names = packed["parameter"]
            texts = {name: json.dumps({"parameter": name}) for name in set(names) if name}
            columns["attrs"] = list(map(texts.get, names))
        elif packed:
            rare = ({name: value for name, value in zip(packed, values) if value} for values in zip(*packed.values()))
            columns["attrs"] = [json.dumps(attrs, default=msgspec.to_builtins) if attrs else None for attrs in rare]
        columns.update(_of_statistics(by_field["stats"]))
        frame = of_columns(columns, len(self))
        self._clear()
        return frame

    def _arguments(self) -> Optional[list[Optional[str]]]:
        """Return the names of the arguments, see `Record.argument`; None if no line has one."""
        told, names = self._told, _names_in(self._before.text)
        if not names and not any(told["argument"]) and not any(told["call"]):
            return None
        operator = self._before.operator
        found = []
        lines = zip(told["seq"], told["op_name"], told["time"], told["call"])
        tensors = zip(told["argument"], told["io"], told["index"])
        for (seq, op_name, time, call), (argument, io, index) in zip(lines, tensors):
            # As in `call_after`: only the first line of an operator has its call.
            if call or operator != (seq, op_name, time):
                operator, names = (seq, op_name, time), _names_in(call)
            found.append(argument or names.get((io, index)))
        return found


def _names_in(call: bytes) -> Mapping[tuple[str, int], str]:
    return arguments_of(bytes(call)) if call else {}


def _of_views(by_field: dict[str, list[Any]], strides: polars.Series) -> dict[str, Any]:
    """Return the columns of `dump_format.StoredView`: the byte range and strides with which each tensor is stored.

    strides: the column of the tensors' own strides. Most tensors are stored with these.
    """
    blobs, stored_strides = by_field["blob"], by_field["stored_stride"]
    stored: Any = strides.alias("stored_stride")
    if stored_strides.count(None) < len(stored_strides):
        # Without a stored stride, the tensor's own stride is taken. It is None if it is outside the range of int64.
        pairs = zip(strides.to_list(), stored_strides)
        stored = [
            stored_stride if stored_stride is not None else stride if stride is None else tuple(stride)
            for stride, stored_stride in pairs
        ]
    if blobs.count(None) == len(blobs):
        return {"blob_offset": 0, "stored_stride": stored}
    begins = [None if blob is None else blob.begin for blob in blobs]
    return {
        "blob": begins,
        "blob_nbytes": [None if blob is None else blob.size for blob in blobs],
        "blob_offset": [0 if begin is None else offset - begin for begin, offset in zip(begins, by_field["offset"])],
        "stored_stride": stored,
    }


def _any_given(name: str, values: list[Any]) -> bool:
    """Return True if a value of the field differs from the default and is not empty."""
    return values.count(_DEFAULTS[name]) < len(values) and any(values)


def line_ends(text: bytes) -> np.ndarray:
    """Return the positions of the newlines in a text."""
    import numpy as np

    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))


def line_starts(ends: np.ndarray, offset: int) -> np.ndarray:
    """Return the positions of lines in a file.

    ends: the positions of their newlines in a text; offset: the position of that text in the file
    """
    import numpy as np

    starts = np.full(len(ends), offset, np.int64)
    starts[1:] += ends[:-1] + 1
    return starts


def are_objects(text: bytes, ends: np.ndarray) -> bool:
    """Return True if all lines begin with `{` and end with `}`.

    A JSON object that spans two such lines would contain `}`, a newline and `{`. That is impossible: JSON needs a comma
    between two objects, and its strings contain no newlines. So if a decoder finds as many objects as there are lines,
    each line is one object.
    """
    import numpy as np

    characters = np.frombuffer(text, np.uint8)
    return bool(
        text.startswith(b"{")
        and text.endswith(b"}\n")
        and (characters[ends[:-1] - 1] == ord("}")).all()
        and (characters[ends[:-1] + 1] == ord("{")).all()
    )


def _of_statistics(rows: list[Any]) -> dict[str, Any]:
    """Return the columns of the statistics of all lines; empty if no line has statistics."""
    import polars as pl

    without = rows.count(None)
    if without == len(rows):
        return {}
    all_rows = map(astuple, rows) if not without else (_UNKNOWN if row is None else astuple(row) for row in rows)
    columns: dict[str, Any] = _by_name(all_rows)
    try:
        for name in _FLOATS:
            if name in columns:
                columns[name] = pl.Series(name, columns[name], dtype=pl.Float64, strict=True)
    except (
        TypeError,
        OverflowError,
        ValueError,
        pl.exceptions.PolarsError,
    ):  # a text such as "nan", or a number outside the range of float64
        columns = _by_name(_UNKNOWN if row is None else _statistics(astuple(row)) for row in rows)
    return columns


def _by_name(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Any]]:
    values = list(chain.from_iterable(rows))
    columns = {name: values[first :: len(_UNKNOWN)] for first, name in enumerate(Statistics._fields)}
    # Optional columns without values are left out, because converting them takes time.
    missing = [name for name in _OPTIONAL if columns[name].count(None) == len(columns[name])]
    return {name: column for name, column in columns.items() if name not in missing}


def _statistics(stats: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the texts "nan", "inf" and "-inf" to numbers. Return `_UNKNOWN` if there is another text."""
    numbers = tuple([_TEXTS.get(value, value) if type(value) is str else value for value in stats])
    return _UNKNOWN if str in map(type, numbers) else numbers
