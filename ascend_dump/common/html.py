"""Small static HTML tables for notebooks: escaped, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["ROWS", "html_table"]

#: More rows than this are not shown in a notebook.
ROWS = 50


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table of these rows; None is an empty cell."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if cell is None else escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: Any) -> str:
    return str(list(cell)) if isinstance(cell, tuple) else str(cell)
