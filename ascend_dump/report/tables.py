"""Aligned text tables that are printed row by row; folded lines; escaped texts and numbers."""

from __future__ import annotations

import itertools
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional, TextIO

from ascend_dump.common.units import counted, size

__all__ = [
    "PIPE_WIDTH",
    "Column",
    "TableRows",
    "counted",
    "escape",
    "escape_lines",
    "folded",
    "number",
    "size",
    "text_width",
    "write_columns",
    "write_table",
]

#: Width in columns of texts, and of tables in answers, if the output is no terminal. Listings are then not shortened.
PIPE_WIDTH = 100
#: Number of rows that are read before the first one is printed, to determine the widths of the columns.
_SAMPLE = 1000
#: Number of lines that are written at a time.
_BLOCK = 1000


class Column(NamedTuple):
    """A column of a table.

    right    True to align the cells to the right, for numbers
    elastic  True if long cells may be cut in the middle to fit the width
    spare    order in which columns are left out to fit a terminal, highest number first; 0: it is never left out
    """

    name: str
    right: bool = False
    elastic: bool = False
    spare: int = 0


class TableRows(NamedTuple):
    """Rows of a table as columns of cells.

    columns  the cells of each column
    steps    the cells of the column `step` of each repetition, if all rows are repeated for several steps
    step     the index of that column; a column behind it has no empty cells
    """

    columns: Sequence[Sequence[str]]
    steps: Sequence[str] = ()
    step: int = 0

    @property
    def height(self) -> int:
        """The number of rows, all repetitions included."""
        return len(self.columns[0]) * max(len(self.steps), 1)

    def rows(self) -> Iterator[Sequence[str]]:
        if not self.steps:
            yield from zip(*self.columns)
        for step in self.steps:
            repeated = itertools.repeat(step, len(self.columns[0]))
            yield from zip(*self.columns[: self.step], repeated, *self.columns[self.step + 1 :])


def write_columns(columns: Sequence[Column], parts: Iterable[TableRows], out: TextIO) -> int:
    """Print the rows of all parts as `write_table` does, and return their number.

    This takes a fraction of the time, because each distinct cell is formatted once for a part.
    """
    later = iter(parts)
    first: list[TableRows] = []
    while sum(part.height for part in first) < _SAMPLE:
        part = next(later, None)
        if part is None:
            break
        first.append(part)
    parts = itertools.chain(first, later)
    if out.isatty():
        return write_table(columns, (row for part in parts for row in part.rows()), out)
    rows = itertools.islice((row for part in first for row in part.rows()), _SAMPLE)
    sample = [[escape(cell) for cell in row] for row in rows]
    if not sample:
        return 0
    widths = _widths(columns, sample)
    out.write(_line_maker(columns, widths, cut=False)([column.name for column in columns]))
    count = 0
    for part in parts:
        if not part.height:
            continue
        formatted = [_FormattedCells(column, width) for column, width in zip(columns, widths)]
        cells: list[Iterable[str]] = [map(text.__getitem__, column) for text, column in zip(formatted, part.columns)]
        if part.steps:
            # No cell contains this character, because it is escaped.
            cells[part.step] = itertools.repeat("\0", len(part.columns[0]))
        lines = map(str.rstrip, map("  ".join, zip(*cells)))
        if part.steps:
            text = "\n".join(lines)
            for step in part.steps:
                print(text.replace("\0", formatted[part.step][step]), file=out)
        else:
            while block := list(itertools.islice(lines, _BLOCK)):
                print("\n".join(block), file=out)
        count += part.height
    return count


class _FormattedCells(dict[str, str]):
    """The distinct cells of a column, escaped and with the width of the column."""

    def __init__(self, column: Column, width: int) -> None:
        self._justify = str.rjust if column.right else str.ljust
        self._width = width

    def __missing__(self, cell: str) -> str:
        self[cell] = text = self._justify(escape(cell), self._width)
        return text


def write_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    out: TextIO,
    *,
    fit: bool = True,
    pipe_width: Optional[int] = None,
) -> int:
    """Print rows as they arrive and return their number.

    The column widths are determined by the first 1000 rows; in later rows a wider cell shifts the cells after it. On a
    terminal the heading is bold, unless NO_COLOR is set. With `fit` the table fits the width of the terminal: spare
    columns are left out, then cells of elastic columns are cut.

    pipe_width: the width of the table if `out` is no terminal; elastic columns are cut to reach it. None to print all
    cells in full
    """
    stream = iter(rows)
    sample = [[escape(cell) for cell in row] for row in itertools.islice(stream, _SAMPLE)]
    if not sample:
        return 0
    widths = _widths(columns, sample)
    terminal = out.isatty()
    fit = fit and terminal
    shown = list(range(len(columns)))
    if fit:
        shown = _columns_that_fit(widths, columns, shutil.get_terminal_size().columns)
        left_out = [column.name for index, column in enumerate(columns) if index not in shown]
        columns, widths = [columns[index] for index in shown], [widths[index] for index in shown]
        _shrink(widths, columns, shutil.get_terminal_size().columns)
    elif pipe_width is not None and not terminal:
        _shrink(widths, columns, pipe_width)
    is_cut = fit or (pipe_width is not None and not terminal)
    line = _line_maker(columns, widths, cut=is_cut)
    heading = line([column.name for column in columns])
    bold = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    out.write(f"\x1b[1m{heading[:-1]}\x1b[0m\n" if bold else heading)
    count = 0
    # Almost no cell has a character to escape, so a row is checked as a whole.
    later = (row if "".join(row).isprintable() else [escape(cell) for cell in row] for row in stream)
    for row in itertools.chain(sample, later):
        out.write(line([row[index] for index in shown] if fit else row))
        count += 1
    if fit and left_out:
        out.write(f"(no room for {', '.join(left_out)}: a wider terminal, a pipe and --json show all)\n")
    return count


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(column.name), *(len(row[index]) for row in rows)) for index, column in enumerate(columns)]


def escape(text: str) -> str:
    """Write control characters as escape sequences, because names in a dump must not control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def escape_lines(text: str) -> str:
    """Write control characters as escape sequences, but keep the line breaks."""
    return "\n".join(map(escape, text.split("\n")))


def number(value: Any) -> str:
    """Return a statistic as text: integers exactly, floats to 6 digits, `-` for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def text_width(out: TextIO) -> int:
    """Return the width for text, in columns: the width of the terminal, or PIPE_WIDTH if `out` is no terminal."""
    return shutil.get_terminal_size().columns if out.isatty() else PIPE_WIDTH


def folded(line: str, out: TextIO, indent: int) -> Iterator[str]:
    """Fold a line to the width of the terminal or to PIPE_WIDTH. All parts but the first are indented.

    Names and paths are not broken.
    """
    width = max(text_width(out), 3 * indent)
    parts = textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [line]
    # If the first part is only the label, put the long path that follows into the same line.
    if len(parts) > 1 and len(parts[0].rstrip()) <= indent:
        parts[:2] = [parts[0].rstrip().ljust(indent) + parts[1].lstrip()]
    yield from parts


def _line_maker(columns: Sequence[Column], widths: Sequence[int], *, cut: bool) -> Callable[[Sequence[str]], str]:
    """Return a function that makes the line of a row."""
    # One format string for the whole line is fast, which matters for a million rows.
    layout = "  ".join(f"%{'' if column.right else '-'}{width}s" for column, width in zip(columns, widths))
    if not cut:
        return lambda row: (layout % tuple(row)).rstrip() + "\n"

    def line(row: Sequence[str]) -> str:
        cells = [_cut(cell, width) if column.elastic else cell for column, cell, width in zip(columns, row, widths)]
        return (layout % tuple(cells)).rstrip() + "\n"

    return line


def _cut(cell: str, width: int) -> str:
    """Cut a cell in the middle, because names are distinguished by their begin (the model) and end (the operator)."""
    if len(cell) <= width or width < 8:
        return cell
    head = (width - 1) // 2
    return f"{cell[:head]}…{cell[len(cell) - (width - 1 - head) :]}"


def _columns_that_fit(widths: Sequence[int], columns: Sequence[Column], limit: int) -> list[int]:
    """Return the indices of the columns to show, so that they fit into `limit` characters if possible."""
    shown = list(range(len(columns)))
    for index in sorted(shown, key=lambda index: -columns[index].spare):
        if not columns[index].spare or sum(widths[number] + 2 for number in shown) - 2 <= limit:
            break
        shown.remove(index)
    return shown


def _shrink(widths: list[int], columns: Sequence[Column], limit: int) -> None:
    excess = sum(widths) + 2 * (len(widths) - 1) - limit
    elastic = sorted(
        (index for index, column in enumerate(columns) if column.elastic), key=lambda index: -widths[index]
    )
    for index in elastic:
        if excess <= 0:
            return
        taken = min(excess, max(widths[index] - 16, 0))
        widths[index] -= taken
        excess -= taken
