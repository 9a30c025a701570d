"""Convert the rows of a page to columns: names, states, statistics of both sides, and producers."""

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

__all__ = ["MOST_ROWS", "STATE_NUMBER", "RowTable"]

#: Maximum number of rows on a page. If there are more, neighbouring rows without a finding are joined.
MOST_ROWS = 100_000
#: Maximum number of bytes of tensors that are read to compute statistics that a dump did not record.
MOST_READ = 2 << 30

STATE_NUMBER = {state.name: number for number, state in enumerate(STATES)}
#: The worst state that needs no attention. States are numbered from best to worst.
_QUIET = STATE_NUMBER["noise"]
_TEXTS = (
    *("name", "type", "kernel", "module", "scope", "source", "stack", "phase"),
    *("io", "model", "run", "dtype", "shape"),
)
_PAIR_TEXTS = ("reason", "how", "transformation", "partner")
_STATISTICS = ("max", "min", "mean", "rms", "zero")
_ERRORS = ("rel_l2", "max_abs", "max_rel", "rmse", "cosine", "unequal")
#: Number of functions shown of a call stack, starting with the innermost, and number of characters of each.
_MOST_FRAMES, _LONGEST_FRAME = 40, 280
_NUMBERS = ("step", "rank", "device", "index")


class _StatisticsReader:
    """A reader of the statistics of records. Statistics that the dump lacks are computed from the tensors.

    most_read: maximum number of bytes that are read for all records together
    skipped: number of records that have no statistics because the limit was reached
    """

    def __init__(self, most_read: int) -> None:
        self._budget = most_read
        self._computed: dict[Any, Statistics] = {}
        self.skipped = 0

    def statistics(self, record: Record) -> Optional[Statistics]:
        """Return the statistics of a record; None if the limit does not allow reading it. Raises errors of reading."""
        statistics = record.recorded_statistics()
        if statistics is not None:
            return statistics
        content = record.content
        if content is not None and content in self._computed:
            return self._computed[content]
        nbytes = record.nbytes or 0
        if nbytes > self._budget:
            self.skipped += 1
            return None
        statistics = record.statistics()
        self._budget -= nbytes
        if content is not None:
            self._computed[content] = statistics
        return statistics


class RowTable:
    """The rows of a page, with the data of its columns. The lists have one entry per row.

    rows        the rows that are shown on the page
    state       index of the row's state in STATES
    covers      number of original rows that are joined in the row, 1 if none are joined
    operator    number of the operator execution that the row belongs to, counted from 0
    producer    index of the row whose output this row reads, -1 if unknown
    count       number of rows before rows were joined or left out
    notes       sentences about what the page omits
    unreadable  label and error message of each record that could not be read
    """

    def __init__(
        self,
        rows: Iterable[PageRow],
        suspects: Sequence[Record],
        *,
        most: int = MOST_ROWS,
        most_read: int = MOST_READ,
    ) -> None:
        """Read the rows, and the statistics of their records.

        suspects   the records that a finding names
        most       maximum number of rows
        most_read  maximum number of bytes of tensors that are read, first for operators with findings
        """
        self.rows: list[PageRow] = []
        self.state: list[int] = []
        self.covers: list[int] = []
        self.notes: list[str] = []
        self.unreadable: list[tuple[str, str]] = []
        self._reader = _StatisticsReader(most_read)
        self._suspects = set(suspects)
        self._texts = {name: TextTable() for name in (*_TEXTS, *_PAIR_TEXTS)}
        self._sides: list[tuple[Optional[Statistics], Optional[Statistics]]] = []
        self.operator: list[int] = []
        self.producer: list[int] = []
        self.count = 0
        self._collect(rows)
        self._shorten(most)
        if self._reader.skipped:
            self.notes.append(
                f"statistics of {self._reader.skipped} tensors: the dump did not record them, and no more than "
                f"{size(most_read)} are read for them, first for operators with findings"
            )

    def _collect(self, rows: Iterable[PageRow]) -> None:
        producers = _Producers()
        last_key: Any = None
        operator = -1
        for number, row in enumerate(rows):
            record = row.record
            key = record.execution
            if key != last_key:
                operator, last_key = operator + 1, key
            self.rows.append(row)
            self.operator.append(operator)
            self.producer.append(producers.producer_of(record, number))
        self.count = len(self.rows)
        self.covers = [1] * self.count
        self.state = [0] * self.count
        self._sides = [(None, None)] * self.count
        for number in self._findings_first():
            self._sides[number], self.state[number] = self._read_sides(self.rows[number])

    def _findings_first(self) -> Iterator[int]:
        """Yield the numbers of all rows, beginning with the rows of operators that have a finding."""
        operators = {
            operator
            for row, operator in zip(self.rows, self.operator)
            if row.record in self._suspects or (row.state and STATE_NUMBER[row.state] > _QUIET)
        }
        for has_finding in (True, False):
            yield from (
                number for number, operator in enumerate(self.operator) if (operator in operators) is has_finding
            )

    def _read_sides(self, row: PageRow) -> tuple[tuple[Optional[Statistics], Optional[Statistics]], int]:
        sides: list[Optional[Statistics]] = []
        is_unreadable = row.state == "unreadable"
        for record in (row.actual, row.reference):
            statistics = None
            # The reference is not read if it is equal: the page uses the statistics of actual for both sides.
            if record is not None and not (row.state == "equal" and sides and sides[0] is not None):
                try:
                    statistics = None if record.error is not None else self._reader.statistics(record)
                    if record.error is not None:
                        raise record.error
                except NotImplementedError:  # NotSupported: no values
                    pass
                except AscendDumpError as error:
                    is_unreadable = True
                    self.unreadable.append((record.label, f"{error.message} [{error.code}]"))
            sides.append(statistics)
        return (sides[0], sides[1]), self._state(row, sides[0], is_unreadable)

    def _state(self, row: PageRow, statistics: Optional[Statistics], is_unreadable: bool) -> int:
        if row.state:
            return STATE_NUMBER[row.state]
        if is_unreadable:
            return STATE_NUMBER["unreadable"]
        if row.record in self._suspects:
            return STATE_NUMBER["suspect"]
        if statistics is None:
            return STATE_NUMBER["no values"]
        return STATE_NUMBER["non-finite" if is_nonfinite(statistics) else "nothing found"]

    def _shorten(self, most: int) -> None:
        """Reduce the rows to at most `most`: join neighbours without a finding, then drop rows with the best states."""
        if self.count <= most:
            return
        shown: list[int] = []
        last_key: Any = None
        for number, (row, state) in enumerate(zip(self.rows, self.state)):
            key = (row.record.step, row.record.rank, state) if state <= _QUIET else None
            if key is not None and key == last_key:
                self.covers[shown[-1]] += 1
                continue
            last_key = key
            shown.append(number)
        joined = self.count - len(shown)
        if joined:
            self.notes.append(
                f"{joined} of {self.count} rows without a finding are joined with the row before them, to keep the "
                f"page at {most} rows"
            )
        if len(shown) > most:
            shown = sorted(sorted(shown, key=lambda number: (-self.state[number], number))[:most])
            covered = sum(self.covers[number] for number in shown)
            self.notes.append(f"{self.count - covered} rows with the best states: a page has at most {most}")
        position = {old: new for new, old in enumerate(shown)}
        self.rows = [self.rows[number] for number in shown]
        self.state = [self.state[number] for number in shown]
        self.covers = [self.covers[number] for number in shown]
        self.operator = [self.operator[number] for number in shown]
        self.producer = [position.get(self.producer[number], -1) for number in shown]
        self._sides = [self._sides[number] for number in shown]

    def statistics(self, row: int) -> Optional[Statistics]:
        """Return the statistics of the first side of a row: of actual, or of a single record."""
        return self._sides[row][0]

    def root_mean_square(self, row: int) -> Optional[float]:
        """Return the root mean square of the first side of a row: of actual, or of a single record."""
        return _statistic(self._sides[row][0], "rms")

    def pack(self, pack: ColumnPack) -> None:
        """Add the columns to the pack."""
        for name in _TEXTS:
            table = self._texts[name]
            pack.numbers(name, [table.number(_text(row.record, name)) for row in self.rows])
        for name in _PAIR_TEXTS:
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
        pack.numbers("producer", [number + 1 for number in self.producer])
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
    """Finds the row that produced a tensor, among the earlier rows of the same step and rank.

    A tensor is found by its storage and version, or by its content if the storage is unknown.
    """

    def __init__(self) -> None:
        self._step: Any = None
        self._numbers: dict[Any, int] = {}

    def producer_of(self, record: Record, number: int) -> int:
        """Return the row that produced an input, -1 if unknown. For an output, remember `number` and return -1."""
        step = (record.run, record.rank, record.device, record.model, record.step)
        if step != self._step:
            self._step, self._numbers = step, {}
        attrs = record.attrs
        storage, version = attrs.get("storage"), attrs.get("version")
        keys: list[tuple[Any, ...]] = [("at", storage, version)] if storage is not None and storage >= 0 else []
        # Equal content of small tensors, such as flags and counters, proves nothing: they may be equal by chance.
        content = record.content if not keys and (record.nbytes or 0) >= 64 else None
        keys += [("content", content)] if content is not None else []
        if record.io != "input":
            for key in keys:
                self._numbers[key] = number
            return -1
        return next((self._numbers[key] for key in keys if key in self._numbers), -1)


def _text(record: Record, name: str) -> str:
    if name == "name":
        return record.op_name or record.op_type or record.path.name
    if name == "scope":  # in frameworks without modules, it is the operator's name up to the last slash
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
    if name == "cosine":  # 1 - cosine, because most cosines are 0.999…
        return None if error.cosine is None else max(1.0 - error.cosine, 0.0)
    if name == "unequal":
        return error.unequal / error.count if error.count else 0.0
    return float(getattr(error, name))


def _statistic(statistics: Optional[Statistics], name: str) -> Optional[float]:
    if statistics is None:
        return None
    if name == "rms":
        if not statistics.count or statistics.l2norm is None:
            return None
        return float(statistics.l2norm) / math.sqrt(statistics.count)
    if name == "zero":
        return None if statistics.zero is None or not statistics.count else statistics.zero / statistics.count
    value = getattr(statistics, name)
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


def _nonfinite(statistics: Optional[Statistics], name: str) -> Optional[float]:
    if statistics is None:
        return None
    if name == "nan":
        return statistics.nan
    counts = [count for count in (statistics.posinf, statistics.neginf) if count is not None]
    return float(sum(counts)) if counts else None
