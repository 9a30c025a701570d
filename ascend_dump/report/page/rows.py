"""The rows of a page as columns: names, states, numbers of both sides, and which row made what another one reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record
from ascend_dump.report.page._content import STATES, PageError, PageRow
from ascend_dump.report.page.columns import ColumnPack, TextTable
from ascend_dump.report.tables import size
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import is_nonfinite

__all__ = ["MOST_READ", "MOST_ROWS", "RowTable", "TensorReader"]

#: Rows on a page; of more, neighbours without a finding are shown as one.
MOST_ROWS = 100_000
#: Bytes of tensors that are read for statistics that a dump did not record.
MOST_READ = 2 << 30

STATE_NUMBER = {state.name: number for number, state in enumerate(STATES)}
#: Up to this state nothing has to be looked at.
_QUIET = STATE_NUMBER["noise"]
_TEXTS = ("name", "type", "module", "scope", "source", "stack", "phase", "io", "model", "run", "dtype", "shape")
_OF_PAIRS = ("reason", "how", "transformation", "partner")
_STATISTICS = ("max", "min", "mean", "rms", "zero")
_ERRORS = ("rel_l2", "max_abs", "max_rel", "rmse", "cosine", "unequal")
#: Functions of a call stack, from the innermost, and characters of each.
_MOST_FRAMES, _LONGEST_FRAME = 40, 280
_NUMBERS = ("step", "rank", "device", "index")


class TensorReader:
    """Statistics of records: as the dump recorded them, else computed as long as not too much has been read."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: dict[Any, Statistics] = {}
        self.left_out = 0

    def statistics(self, record: Record) -> Optional[Statistics]:
        """None where there are none, or no more is to be read. Raises what reading raises but for these."""
        found = record.recorded_statistics()
        if found is not None:
            return found
        content = record.content
        if content is not None and content in self._known:
            return self._known[content]
        nbytes = record.nbytes or 0
        if nbytes > self._left:
            self.left_out += 1
            return None
        found = record.statistics()
        self._left -= nbytes
        if content is not None:
            self._known[content] = found
        return found


class RowTable:
    """Goes through the rows once and keeps what the page needs of each.

    rows      those that are shown
    state     of each the number in STATES, and in `covers` how many rows it stands for
    operator  of each the number of the run of an operator that it belongs to
    producer  of each the row that made what it reads, -1 where none is known
    count     how many rows there are, those that are not shown too
    notes     what was left out, in sentences
    """

    def __init__(
        self,
        rows: Iterable[PageRow],
        suspects: Sequence[Record],
        *,
        most: int = MOST_ROWS,
        most_read: int = MOST_READ,
    ) -> None:
        """most_read: bytes of tensors that are read for statistics, those of findings and their operators first."""
        self.rows: list[PageRow] = []
        self.state: list[int] = []
        self.covers: list[int] = []
        self.notes: list[str] = []
        self.unreadable: list[tuple[str, str]] = []
        self._reader = TensorReader(most_read)
        self._suspects = set(suspects)
        self._texts = {name: TextTable() for name in (*_TEXTS, *_OF_PAIRS)}
        self._sides: list[tuple[Optional[Statistics], Optional[Statistics]]] = []
        self.operator: list[int] = []
        self.producer: list[int] = []
        self.count = 0
        self._collect(rows)
        self._shorten(most)
        if self._reader.left_out:
            self.notes.append(
                f"statistics of {self._reader.left_out} tensors: the dump did not record them, and no more than "
                f"{size(most_read)} are read for them, first those of what is to be looked at"
            )

    def _collect(self, rows: Iterable[PageRow]) -> None:
        makers = _Producers()
        last: Any = None
        operator = -1
        for number, row in enumerate(rows):
            record = row.record
            key = record.execution
            if key != last:
                operator, last = operator + 1, key
            self.rows.append(row)
            self.operator.append(operator)
            self.producer.append(makers.maker_of(record, number))
        self.count = len(self.rows)
        self.covers = [1] * self.count
        self.state = [0] * self.count
        self._sides = [(None, None)] * self.count
        for number in self._findings_first():
            self._sides[number], self.state[number] = self._look_at(self.rows[number])

    def _findings_first(self) -> Iterator[int]:
        """All rows, those of operators with a finding first."""
        found = {
            operator
            for row, operator in zip(self.rows, self.operator)
            if row.record in self._suspects or (row.state and STATE_NUMBER[row.state] > _QUIET)
        }
        for wanted in (True, False):
            yield from (number for number, operator in enumerate(self.operator) if (operator in found) is wanted)

    def _look_at(self, row: PageRow) -> tuple[tuple[Optional[Statistics], Optional[Statistics]], int]:
        found: list[Optional[Statistics]] = []
        broken = row.state == "unreadable"
        for record in (row.actual, row.reference):
            one = None
            # Equal bytes have equal statistics: the page takes those of the other side.
            if record is not None and not (row.state == "equal" and found and found[0] is not None):
                try:
                    one = None if record.error is not None else self._reader.statistics(record)
                    if record.error is not None:
                        raise record.error
                except NotImplementedError:  # NotSupported: no values here
                    pass
                except AscendDumpError as error:
                    broken = True
                    self.unreadable.append((record.label, f"{error.message} [{error.code}]"))
            found.append(one)
        return (found[0], found[1]), self._state(row, found[0], broken)

    def _state(self, row: PageRow, found: Optional[Statistics], broken: bool) -> int:
        if row.state:
            return STATE_NUMBER[row.state]
        if broken:
            return STATE_NUMBER["unreadable"]
        if row.record in self._suspects:
            return STATE_NUMBER["suspect"]
        if found is None:
            return STATE_NUMBER["no values"]
        return STATE_NUMBER["non-finite" if is_nonfinite(found) else "nothing found"]

    def _shorten(self, most: int) -> None:
        """Of too many rows, runs of those without a finding become one row each; then the best are left out."""
        if self.count <= most:
            return
        kept: list[int] = []
        last: Any = None
        for number, (row, state) in enumerate(zip(self.rows, self.state)):
            key = (row.record.step, row.record.rank, state) if state <= _QUIET else None
            if key is not None and key == last:
                self.covers[kept[-1]] += 1
                continue
            last = key
            kept.append(number)
        joined = self.count - len(kept)
        if joined:
            self.notes.append(
                f"{joined} of {self.count} rows without a finding are joined with the row before them, to keep the "
                f"page at {most} rows"
            )
        if len(kept) > most:
            kept = sorted(sorted(kept, key=lambda at: (-self.state[at], at))[:most])
            shown = sum(self.covers[at] for at in kept)
            self.notes.append(f"{self.count - shown} rows that show the least: a page has at most {most}")
        place = {old: new for new, old in enumerate(kept)}
        self.rows = [self.rows[at] for at in kept]
        self.state = [self.state[at] for at in kept]
        self.covers = [self.covers[at] for at in kept]
        self.operator = [self.operator[at] for at in kept]
        self.producer = [place.get(self.producer[at], -1) for at in kept]
        self._sides = [self._sides[at] for at in kept]

    def statistics(self, row: int) -> Optional[Statistics]:
        """Of the values of a row, those of actual where it has two sides."""
        return self._sides[row][0]

    def root_mean_square(self, row: int) -> Optional[float]:
        """The same of its values."""
        return _statistic(self._sides[row][0], "rms")

    def pack(self, pack: ColumnPack) -> None:
        """Put the columns into the pack."""
        for name in _TEXTS:
            table = self._texts[name]
            pack.numbers(name, [table.number(_text(row.record, name)) for row in self.rows])
        for name in _OF_PAIRS:
            table = self._texts[name]
            values = (_partner(row) if name == "partner" else str(getattr(row, name)) for row in self.rows)
            pack.numbers(name, [table.number(value) for value in values])
        for name, table in self._texts.items():
            pack.texts(f"{name}s", table.texts())
        cut = sum(table.cut for table in self._texts.values())
        if cut:
            self.notes.append(f"the ends of {cut} names that are too long for a page")
        pack.numbers("state", self.state)
        pack.numbers("covers", self.covers)
        pack.numbers("operator", self.operator)
        pack.numbers("producer", [at + 1 for at in self.producer])
        pack.numbers("explained", [int(row.explained) for row in self.rows])
        for name in _NUMBERS:
            pack.doubles(name, [_natural(getattr(row.record, name)) for row in self.rows])
        pack.doubles("nbytes", [_natural(row.record.nbytes) for row in self.rows])
        for name in _ERRORS:
            pack.floats(name, [_error(row.error, name) for row in self.rows])
        for side, prefix in enumerate(("a", "b")):
            for name in _STATISTICS:
                pack.floats(f"{prefix}_{name}", [_statistic(sides[side], name) for sides in self._sides])
            for name in ("nan", "inf"):
                pack.doubles(f"{prefix}_{name}", [_nonfinite(sides[side], name) for sides in self._sides])


class _Producers:
    """Which row made a tensor: by its place in memory, else by its content, within one step of one rank."""

    def __init__(self) -> None:
        self._step: Any = None
        self._made: dict[Any, int] = {}

    def maker_of(self, record: Record, number: int) -> int:
        """The row that made what an input reads, -1 where none is known; an output is noted."""
        step = (record.run, record.rank, record.device, record.model, record.step)
        if step != self._step:
            self._step, self._made = step, {}
        attrs = record.attrs
        storage, version = attrs.get("storage"), attrs.get("version")
        keys: list[tuple[Any, ...]] = [("at", storage, version)] if storage is not None and storage >= 0 else []
        # Small tensors have equal bytes by chance, as flags and counters have.
        content = record.content if not keys and (record.nbytes or 0) >= 64 else None
        keys += [("content", content)] if content is not None else []
        if record.io != "input":
            for key in keys:
                self._made[key] = number
            return -1
        return next((self._made[key] for key in keys if key in self._made), -1)


def _text(record: Record, name: str) -> str:
    if name == "name":
        return record.op_name or record.op_type or record.path.name
    if name == "scope":  # frameworks without modules have scopes in the names of operators
        return record.module or record.op_name.rpartition("/")[0]
    if name == "type":
        return record.op_type
    if name == "shape":
        return "" if record.shape is None else f"[{', '.join(map(str, record.shape))}]"
    if name == "stack":
        try:
            return "\n".join(line[:_LONGEST_FRAME].replace("\n", " ") for line in record.stack[:_MOST_FRAMES])
        except AscendDumpError:
            return ""
    return str(getattr(record, name) or "")


def _partner(row: PageRow) -> str:
    if row.actual is None:
        return "only in the reference"
    if row.reference is None:
        return "only in actual" if row.state == "unmatched" else ""
    return "" if row.actual.label == row.reference.label else row.reference.label


def _natural(value: Optional[int]) -> Optional[float]:
    return None if value is None or value < 0 or value >= 1 << 63 else float(value)


def _error(error: Optional[PageError], name: str) -> Optional[float]:
    if error is None:
        return None
    if name == "cosine":  # its distance from 1, which has digits where the cosine has only nines
        return None if error.cosine is None else max(1.0 - error.cosine, 0.0)
    if name == "unequal":
        return error.unequal / error.count if error.count else 0.0
    return float(getattr(error, name))


def _statistic(found: Optional[Statistics], name: str) -> Optional[float]:
    if found is None:
        return None
    if name == "rms":
        if not found.count or found.l2norm is None:
            return None
        return float(found.l2norm) / math.sqrt(found.count)
    if name == "zero":
        return None if found.zero is None or not found.count else found.zero / found.count
    value = getattr(found, name)
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


def _nonfinite(found: Optional[Statistics], name: str) -> Optional[float]:
    if found is None:
        return None
    if name == "nan":
        return found.nan
    known = [one for one in (found.posinf, found.neginf) if one is not None]
    return float(sum(known)) if known else None
