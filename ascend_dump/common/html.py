"""Create small static HTML tables for notebooks. All text is escaped; there are no scripts and no links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["ROWS", "html_table"]

#: Maximum number of rows that callers show.
ROWS = 50


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table. A cell that is None becomes empty."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if cell is None else escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: Any) -> str:
    return str(list(cell)) if isinstance(cell, tuple) else str(cell)
