"""A step whose lines are the template for the lines of later steps, which differ in numbers only.

A line of a later step has to be equal to its line of the template, byte by byte, but for the values of some fields. So
all columns of a catalog but those of these fields are those of the template.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ascend_dump.dump_format import Line, read_call
from ascend_dump.reading.dialects.host import _field_kinds as kinds
from ascend_dump.statistics import COUNTS, Statistics

if TYPE_CHECKING:
    import polars

__all__ = ["MatchLines", "StepReading", "StepTemplate"]

_STRING = rb'"(?:[^"\\]|\\.)*"'
_INTEGERS = rb"\[[-\d,]*\]"
#: A line as ascend_dump writes it, up to its statistics. Its groups are fields whose values may change.
_LINE = re.compile(
    rb'\{"seq":\d+,"op_type":%s,"op_name":%s,"io":%s,"index":\d+,"time":(?P<time>\d+),"dtype":%s,"shape":%s,"nbytes":\d+'
    rb'(?:,"device":%s)?(?:,"phase":%s)?(?:,"module":%s)?(?:,"source":%s)?(?:,"stride":%s)?(?:,"storage_offset":\d+)?'
    rb'(?:,"storage":-?\d+)?(?:,"address":(?P<address>-?\d+))?(?:,"storage_nbytes":\d+)?'
    rb'(?:,"version":(?P<version>-?\d+))?(?:,"offset":(?P<offset>\d+))?(?:,"stored_stride":%s)?(?:,"skipped":%s)?'
    rb'(?:,"origin":true)?(?:,"argument":%s)?(?:,"hash":"(?P<hash>[0-9a-f]{32})")?'
    rb'(?:,"shard":"(?P<shard>\d+)/tensors-(?P<number>\d{5})\.safetensors")?'
    rb'(?:,"blob":\[(?P<begin>\d+),(?P<size>\d+)\])?(?:,"stats":\[(?P<stats>[^\]]*)\])?[,}]'
    % (*[_STRING] * 4, _INTEGERS, *[_STRING] * 4, _INTEGERS, _INTEGERS, _STRING, _STRING)
)
#: The groups of `_LINE` that are integers. The index is the row in the array of integers.
_INTEGERS_READ = ("time", "address", "version", "offset", "begin", "size", "shard", "number")
_ROW_OF = {name: row for row, name in enumerate(_INTEGERS_READ)}
#: The groups of `_LINE` with one value, in their order, with their kinds.
_KINDS = {"time": kinds.TIME, "address": kinds.NATURAL, "version": kinds.INTEGER, "offset": kinds.NATURAL}
_KINDS.update(hash=kinds.HASH, shard=kinds.NATURAL, number=kinds.DIGITS, begin=kinds.NATURAL, size=kinds.NATURAL)
#: Columns of a catalog whose values are those of one row of the array of integers.
_SAME = {"timestamp": "time", "address": "address", "version": "version", "blob": "begin", "blob_nbytes": "size"}
#: Strings and numbers in the arguments of an operator.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*')
_GENERATOR = re.compile(
    rb'"generator":\{"device":"[^"\\]*","hash":"([0-9a-f]{32})"(?:,"seed":(\d+))?(?:,"offset":(\d+))?\}'
)
#: The compiled function.
MatchLines = Callable[..., tuple[int, int, bool]]
_NAMES = Statistics._fields
_FLOATS = tuple(name for name in _NAMES if name not in COUNTS)
_COUNTS = tuple(name for name in _NAMES if name in COUNTS)
#: For each statistic: its kind, and the row of its array.
_STATISTICS = [
    (kinds.ELEMENTS if name == _NAMES[0] else kinds.COUNT, _COUNTS.index(name))
    if name in COUNTS
    else (kinds.NUMBER, _FLOATS.index(name))
    for name in _NAMES
]
#: The largest number of consecutive lines that may differ.
_MOST_DIFFERENT = 32


#: The bytes of a value in a line of the template, its kind, and the row of its array; -1 if it is not stored.
_Field = tuple[int, int, int, int]


class StepTemplate:
    """The lines of a step, and arrays for the values of the fields of a step that repeats it."""

    def __init__(self, text: bytes, frame: polars.DataFrame, index: str) -> None:
        """Create a template. text: lines; frame: their rows of a catalog; index: the path of their index."""
        self._text, self.frame = text, frame
        starts = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
        self._starts = np.concatenate([np.zeros(1, np.int64), starts])
        if len(starts) != frame.height:
            raise ValueError(f"{len(starts)} lines have {frame.height} rows")
        self._numbers, self._op_names = frame["seq"].to_numpy(), frame["op_name"].to_list()
        self._runs()
        self._fields()
        self._defaults()
        of_index = frame["path"].eq(index).to_numpy()
        #: False if the paths of later steps cannot be told: a line with a shard is not in the usual form.
        self.is_usable = bool((of_index != self.given["shard"]).all())

    def __len__(self) -> int:
        return self.frame.height

    @property
    def size(self) -> int:
        """Number of bytes of its text."""
        return len(self._text)

    def operator(self, line: int) -> tuple[int, str]:
        """Return number and name of the operator of a line."""
        return int(self._numbers[line]), self._op_names[line]

    def _runs(self) -> None:
        """Find the consecutive lines of each operator, and lines with the time of the line above."""
        import polars as pl

        same = (pl.col("seq").eq(pl.col("seq").shift()) & pl.col("op_name").eq(pl.col("op_name").shift())).fill_null(
            False
        )
        rows = self.frame.select(same.alias("same"), pl.col("timestamp").eq(pl.col("timestamp").shift()).alias("tied"))
        is_same, is_tied = (rows[name].fill_null(False).to_numpy() for name in ("same", "tied"))
        firsts = np.flatnonzero(~is_same)
        self._run_ends = np.zeros(len(self), np.int64)
        self._run_ends[firsts] = np.append(firsts[1:], len(self))
        self._ties = np.where(is_same, np.where(is_tied, 1, 2), 0).astype(np.uint8)

    def _fields(self) -> None:
        fields = array("q")
        first_fields = [0]
        #: By name of a field: True for each line that has it.
        self.given = {name: np.zeros(len(self), bool) for name in (*_INTEGERS_READ, "hash")}
        decode, encode = msgspec.json.Decoder(Line).decode, msgspec.json.Encoder().encode
        for number, (start, end) in enumerate(zip(self._starts[:-1].tolist(), self._starts[1:].tolist())):
            raw = self._text[start:end]
            line = decode(raw)
            # Only of a line in the usual form the place of each value is known; others have to be equal as a whole.
            if encode(line) == raw[:-1]:
                for name, (begin, behind, kind, row) in _fields_of(raw, line):
                    fields.extend((start + begin, start + behind, kind, row))
                    if name in self.given:
                        self.given[name][number] = True
            first_fields.append(len(fields) // 4)
        #: The template as the compiled function needs it.
        self.arrays = (
            np.frombuffer(self._text, np.uint8),
            self._starts,
            np.array(first_fields, np.int64),
            np.array(fields, np.int64).reshape(-1, 4),
            self._run_ends,
            self._ties,
        )

    def _defaults(self) -> None:
        """Create the arrays with the values of the template, which lines without a field keep."""
        frame = self.frame
        count = len(self)
        integers = np.zeros((len(_INTEGERS_READ), count), np.int64)
        for column, name in _SAME.items():
            known = frame[column].fill_null(0)
            integers[_ROW_OF[name]] = known.to_numpy().astype(np.int64)
        floats, counts = np.zeros((len(_FLOATS), count)), np.zeros((len(_COUNTS), count), np.int64)
        nulls = np.zeros((len(_NAMES), count), np.uint8)
        for names, values, first in ((_FLOATS, floats, 0), (_COUNTS, counts, len(_FLOATS))):
            for row, name in enumerate(names):
                values[row] = frame[name].fill_null(0).to_numpy()
                nulls[first + row] = frame[name].is_null().to_numpy()
        self.values = integers, floats, counts, nulls, np.zeros((count, 4), np.uint64)

    def column(self, name: str, of_line: np.ndarray, values: np.ndarray) -> polars.Series:
        """Return a column with these values where `of_line` is True, and with the template's own elsewhere."""
        import polars as pl

        own = self.frame[name].head(len(values))
        # Of a line that differs, which is decoded later, the number may not fit.
        column: polars.Series = pl.Series(name, values).cast(own.dtype, strict=False)
        if not of_line.all():
            column = column.zip_with(pl.Series(of_line), own)
        return column


class StepReading:
    """The values of a step that repeats a template, read part by part."""

    def __init__(self, template: StepTemplate) -> None:
        self.template = template
        self._arrays = tuple(array.copy() for array in template.values)
        #: The position of each line in the index.
        self.places = np.zeros(len(template), np.int64)
        self._differs = np.zeros(len(template), np.bool_)
        #: Number of lines that were read.
        self.lines = 0

    def match(self, text: bytes, offset: int, match_lines: MatchLines, powers: np.ndarray) -> tuple[int, bool]:
        """Read the lines at the beginning of a text that fit the next lines of the template.

        Return their end, and True if the text ended between the lines of an operator.
        offset: position of the text in the index
        """
        template = *self.template.arrays, self.lines, _MOST_DIFFERENT
        of_lines = self.places, self._differs, *self._arrays
        self.lines, end, is_cut = match_lines(np.frombuffer(text, np.uint8), *template, offset, *of_lines, powers)
        return end, is_cut

    def different(self, first: int) -> np.ndarray:
        """Return the numbers of the lines from `first` on that differ from the template in other fields."""
        return np.flatnonzero(self._differs[first : self.lines]) + first

    def frame(self, shared: Mapping[str, Any], index: Path, root: Path) -> polars.DataFrame:
        """Return the rows of the lines. shared: the fields that all lines have; root: the directory of the steps."""
        import polars as pl

        from ascend_dump.reading.catalog import PLACE, of_constant

        count = self.lines
        frame = self.template.frame.head(count)
        given = {name: of_line[:count] for name, of_line in self.template.given.items()}
        integers, *_, hashes = self._arrays
        rows = {name: integers[row, :count] for row, name in enumerate(_INTEGERS_READ)}
        columns = {
            column: self.template.column(column, given[name], rows[name])
            for column, name in _SAME.items()
            if given[name].any()
        }
        if given["begin"].any():
            distances = rows["offset"] - rows["begin"]
            columns["blob_offset"] = self.template.column("blob_offset", given["begin"], distances)
        texts = pl.Series("hash", hashes[:count].reshape(-1).view("S32")).cast(pl.Utf8)
        columns["hash"] = texts if given["hash"].all() else texts.zip_with(pl.Series(given["hash"]), frame["hash"])
        columns.update(self._statistics())
        columns["path"] = self._paths(given["shard"], index, root)
        columns[PLACE] = pl.Series(PLACE, self.places[:count])
        columns.update((name, of_constant(name, value, count)) for name, value in shared.items())
        for name, column in columns.items():
            frame.replace_column(frame.get_column_index(name), column.alias(name))
        return frame

    def _statistics(self) -> Iterator[tuple[str, polars.Series]]:
        """Yield the columns of the statistics that differ from those of the template."""
        import polars as pl

        count = self.lines
        _, floats, counts, nulls, _ = self._arrays
        _, template_floats, template_counts, template_nulls, _ = self.template.values
        is_null = nulls[:, :count].astype(bool)
        nulls_differ = (nulls != template_nulls).any(axis=1)
        differ = np.concatenate([(floats != template_floats).any(axis=1), (counts != template_counts).any(axis=1)])
        for row, name in enumerate((*_FLOATS, *_COUNTS)):
            if differ[row] or nulls_differ[row]:
                values = floats[row] if row < len(_FLOATS) else counts[row - len(_FLOATS)]
                column = pl.Series(name, values[:count])
                yield name, column.set(pl.Series(is_null[row]), None) if is_null[row].any() else column

    def _paths(self, has_shard: np.ndarray, index: Path, root: Path) -> polars.Series:
        import polars as pl

        from ascend_dump.reading.catalog import of_constant

        if not has_shard.any():
            return of_constant("path", str(index), self.lines)
        steps, numbers = (self._arrays[0][_ROW_OF[name], : self.lines] for name in ("shard", "number"))
        shards, where = np.unique(np.stack([steps, numbers, has_shard]), axis=1, return_inverse=True)
        paths = [
            str(root / f"{step}/tensors-{number:05d}.safetensors") if is_shard else str(index)
            for step, number, is_shard in shards.T.tolist()
        ]
        return pl.Series("path", paths, dtype=pl.Utf8)[pl.Series(where.reshape(-1), dtype=pl.UInt32)]


def _fields_of(raw: bytes, line: Line) -> Iterator[tuple[str, _Field]]:
    """Yield the fields of a line whose values may change, each with its name, in their order."""
    match = _LINE.match(raw)
    if match is None:
        return
    spans = ((name, *match.span(name), kind) for name, kind in _KINDS.items())
    for name, begin, end, kind in spans:
        if begin >= 0:
            yield name, (begin, end, kind, _ROW_OF.get(name, 0))
    begin = match.start("stats")
    for (kind, row), text in zip(_STATISTICS, match["stats"].split(b",") if begin >= 0 else ()):
        yield "stats", (begin, begin + len(text), kind, row)
        begin += len(text) + 1
    if line.call:
        call = bytes(line.call)
        start = raw.index(b',"call":' + call, match.end() - 1) + len(b',"call":')
        for begin, end, kind, row in _fields_of_call(call):
            yield "call", (start + begin, start + end, kind, row)


def _fields_of_call(call: bytes) -> list[_Field]:
    """Return the floats in the arguments of an operator, and the state of its generator: no column depends on them."""
    try:
        read_call(call)
    except ValueError:
        return []  # with other numbers it may be readable
    fields = [
        (*token.span(), kinds.SKIPPED_FLOAT, -1)
        for token in _TOKEN.finditer(call)
        if not token[0].startswith(b'"') and not token[0].lstrip(b"-").isdigit()
    ]
    generator = _GENERATOR.search(call)
    if generator is not None:
        for group, kind in ((1, kinds.SKIPPED_HASH), (2, kinds.SKIPPED_INTEGER), (3, kinds.SKIPPED_INTEGER)):
            fields.append((*generator.span(group), kind, -1))
    return sorted(field for field in fields if field[0] >= 0)
