"""Aligned text tables that begin to print before the last row is known."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from ascend_dump.common.units import counted, size

__all__ = ["PIPE_WIDTH", "Column", "counted", "escape", "escape_lines", "number", "size", "text_width", "write_table"]

#: Width of running text where the output is no terminal. Names are never cut there.
PIPE_WIDTH = 100
#: Rows read before the first is printed; they decide the widths of the columns.
_SAMPLE = 1000


class Column(NamedTuple):
    """A heading; numbers stand at the right.

    spare    the column may be left out to fit a terminal, the one with the highest number first; 0: never
    elastic  its names may lose their middle, where leaving out columns is not enough
    """

    name: str
    right: bool = False
    elastic: bool = False
    spare: int = 0


def write_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], out: TextIO, *, fit: bool = True) -> int:
    """Print the rows as they come and return their number.

    Widths come from the first 1000 rows; a wider cell pushes the rest of its line. On a terminal the heading is bold
    (NO_COLOR), and if `fit`, columns are left out to make lines fit, then elastic ones are cut, numbers never.
    """
    stream = iter(rows)
    sample = [[escape(cell) for cell in row] for row in itertools.islice(stream, _SAMPLE)]
    if not sample:
        return 0
    widths = [max(len(column.name), *(len(row[at]) for row in sample)) for at, column in enumerate(columns)]
    terminal = out.isatty()
    fit = fit and terminal
    kept = list(range(len(columns)))
    if fit:
        kept = _affordable(widths, columns, shutil.get_terminal_size().columns)
        left_out = [column.name for at, column in enumerate(columns) if at not in kept]
        columns, widths = [columns[at] for at in kept], [widths[at] for at in kept]
        _shrink(widths, columns, shutil.get_terminal_size().columns)
    heading = _line(columns, [column.name for column in columns], widths, cut=fit)
    bold = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    out.write(f"\x1b[1m{heading[:-1]}\x1b[0m\n" if bold else heading)
    count = 0
    rest = ([escape(cell) for cell in row] for row in stream)
    for row in itertools.chain(sample, rest):
        out.write(_line(columns, [row[at] for at in kept], widths, cut=fit))
        count += 1
    if fit and left_out:
        out.write(f"(no room for {', '.join(left_out)}: a wider terminal, a pipe and --json show all)\n")
    return count


def escape(text: str) -> str:
    """The text with control characters spelled out: names in a dump must not drive a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def escape_lines(text: str) -> str:
    """As `escape`, for a message of several lines."""
    return "\n".join(map(escape, text.split("\n")))


def number(value: Any) -> str:
    """A statistic as text: integers exactly, floats to 6 digits, `-` where it is not known."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def text_width(out: TextIO) -> int:
    """Columns for running text: the terminal's, else PIPE_WIDTH."""
    return shutil.get_terminal_size().columns if out.isatty() else PIPE_WIDTH


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], *, cut: bool) -> str:
    cells = []
    for column, cell, width in zip(columns, row, widths):
        text = _cut(cell, width) if cut and column.elastic else cell
        cells.append(text.rjust(width) if column.right else text.ljust(width))
    return "  ".join(cells).rstrip() + "\n"


def _cut(cell: str, width: int) -> str:
    """Keep both ends of a name: the model part and the operator part tell names apart."""
    if len(cell) <= width or width < 8:
        return cell
    head = (width - 1) // 2
    return f"{cell[:head]}…{cell[len(cell) - (width - 1 - head) :]}"


def _affordable(widths: Sequence[int], columns: Sequence[Column], limit: int) -> list[int]:
    """The positions of the columns that stay on a terminal so wide."""
    kept = list(range(len(columns)))
    for at in sorted(kept, key=lambda at: -columns[at].spare):
        if not columns[at].spare or sum(widths[one] + 2 for one in kept) - 2 <= limit:
            break
        kept.remove(at)
    return kept


def _shrink(widths: list[int], columns: Sequence[Column], limit: int) -> None:
    excess = sum(widths) + 2 * (len(widths) - 1) - limit
    elastic = sorted((at for at, column in enumerate(columns) if column.elastic), key=lambda at: -widths[at])
    for at in elastic:
        if excess <= 0:
            return
        taken = min(excess, max(widths[at] - 16, 0))
        widths[at] -= taken
        excess -= taken
