"""The compact version of a page for notebooks: verdict, findings and a small chart of all rows, without JavaScript."""

from __future__ import annotations

import math
from collections import Counter

from ascend_dump.report.findings import LABELS
from ascend_dump.report.page._content import STATES, PageContent, PageRow
from ascend_dump.report.page._static import text
from ascend_dump.report.page.rows import RowTable

__all__ = ["compact"]

#: Maximum number of findings listed, and of columns in the chart (the strip).
_MOST_FINDINGS = 5
_COLUMNS = 240
#: Maximum number of bytes read from the dump: the output of a notebook cell has to appear at once.
_MOST_READ = 64 << 20
#: Maximum height of the bars, and height of the band below them, which shows the states as colours.
_HEIGHT, _RIBBON = 48, 6
_COLOURS = {
    "noise": "#86b7d9",
    "undecided": "#b79f00",
    "unmatched": "#a35c99",
    "structure": "#e69f00",
    "non-finite": "#9c3d00",
    "suspect": "#d55e00",
    "different": "#d55e00",
    "unreadable": "#1b2430",
}
_QUIET_COLOUR = "#c3ccd5"
_FORWARD, _BACKWARD, _OTHER = "#0072b2", "#e69f00", "#7f8b98"


def compact(content: PageContent) -> str:
    """Return the page as HTML for the output of a notebook cell."""
    # For a comparison the strip shows the errors, which need no statistics. For a single dump it shows magnitudes.
    most_read = 0 if content.compared else _MOST_READ
    table = RowTable(content.rows, [finding.record for finding in content.findings], most_read=most_read)
    counts = Counter[int]()
    for state, covers in zip(table.state, table.covers):
        counts[state] += covers
    summary = ", ".join(f"{counts[state]} {STATES[state].name}" for state in sorted(counts, reverse=True))
    facts = "".join(f"<br>{text(name)}: {text(value)}" for name, value in content.facts)
    items = "".join(_item(finding.title, dict(finding.lines)) for finding in content.findings[:_MOST_FINDINGS])
    further = len(content.findings) - _MOST_FINDINGS
    note = f"<div>and {further} more</div>" if further > 0 else ""
    command = f"<div>run next: <code>{text(content.command)}</code></div>" if content.command else ""
    return (
        f"<div><div><b>{text(content.verdict)}</b> ({text(summary)})<br>{text(content.sentence)}{facts}</div>"
        f"{_strip(table, content.compared)}"
        f"{f'<ol>{items}</ol>' if items else ''}{note}{command}</div>"
    )


def _item(title: str, lines: dict[str, str]) -> str:
    return f"<li><code>{text(title)}</code> {text(lines.get(LABELS['evidence'], ''))}</li>"


def _strip(table: RowTable, compared: bool) -> str:
    """Return the strip as SVG. Each column shows the largest value, and the worst state, of some neighbouring rows."""
    rows = len(table.rows)
    if not rows:
        return ""
    width = min(rows, _COLUMNS)
    columns = [range(index * rows // width, (index + 1) * rows // width) for index in range(width)]
    heights = [max((_height(table, row, compared) for row in column), default=0.0) for column in columns]
    logarithms = [math.log10(height) for height in heights if 0 < height < math.inf]
    low, high = (min(logarithms), max(logarithms)) if logarithms else (0.0, 1.0)
    # The axis has 1 to 12 decades, and half a decade below them, so that the smallest value has a visible bar. Values
    # below the axis have a bar of height 1.
    low, high = max(low, high - 12) - 0.5, max(high, low + 1)
    parts = []
    for index, (column, height) in enumerate(zip(columns, heights)):
        worst = max(column, key=lambda row: table.state[row])
        phase = table.rows[worst].record.phase
        colour = _FORWARD if phase == "forward" else _BACKWARD if phase == "backward" else _OTHER
        if height > 0:
            share = 1.0 if height == math.inf else (max(math.log10(height), low) - low) / (high - low)
            bar_height = max(1.0, share * _HEIGHT)
            parts.append(
                f'<rect x="{index}" y="{_HEIGHT - bar_height:.1f}" width="1" height="{bar_height:.1f}" '
                f'fill="{colour}"></rect>'
            )
        ribbon_colour = _COLOURS.get(STATES[table.state[worst]].name, _QUIET_COLOUR)
        parts.append(f'<rect x="{index}" y="{_HEIGHT + 2}" width="1" height="{_RIBBON}" fill="{ribbon_colour}"></rect>')
    quantity = "relative error" if compared else "root mean square"
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT + 2 + _RIBBON}" width="640" height="96" preserveAspectRatio="none" '
        f'role="img" aria-label="{quantity} of the rows in execution order"><title>{quantity} of the rows in execution '
        f"order, logarithmic; the band below shows the states</title>{''.join(parts)}</svg>"
    )


def _height(table: RowTable, row: int, compared: bool) -> float:
    value = _error_of(table.rows[row]) if compared else table.root_mean_square(row)
    return 0.0 if value is None else math.inf if math.isnan(value) else abs(value)


def _error_of(row: PageRow) -> float:
    return 0.0 if row.error is None else row.error.rel_l2
