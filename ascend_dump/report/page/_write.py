"""Build a page and write it as one HTML file, with a content security policy that allows only its own script."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, Optional, Union

from ascend_dump._version import __version__
from ascend_dump.report.page import _static
from ascend_dump.report.page._content import STATES, PageContent, PageRow
from ascend_dump.report.page._curves import strip_of
from ascend_dump.report.page._details import details_of, excerpts_of
from ascend_dump.report.page.columns import ColumnPack
from ascend_dump.report.page.rows import STATE_NUMBER, RowTable
from ascend_dump.report.saving import check_suffix, writing

__all__ = ["BuiltPage", "build_page", "save_page", "write_page"]

_QUIET = STATE_NUMBER["noise"]
_Path = Union[str, os.PathLike[str]]


class BuiltPage(NamedTuple):
    """The HTML of a page, its rows (a row's number is its index), and the number of unreadable records."""

    html: str
    rows: list[PageRow]
    unreadable: int


def write_page(content: PageContent, path: _Path, *, sources: Optional[_Path] = None) -> BuiltPage:
    """Write a page to a file that only its owner can read. An existing file is replaced as a whole.

    sources: directory of Python files, for excerpts of the source. Raises WriteError.
    """
    built = build_page(content, sources=sources)
    target = Path(path)
    with writing(target, "the page"):
        # mkstemp creates a file with mode 0600; it is in the target's directory, so that the rename is atomic.
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:80]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(built.html)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    return built


def save_page(content: PageContent, path: _Path, what: str, sources: Optional[_Path]) -> Path:
    """Write a page if its name ends in .html or .htm. what: a noun for the message.

    Raises ConfigError for another suffix, WriteError if it cannot be written.
    """
    target = Path(path)
    check_suffix(target, (".html", ".htm"), what)
    write_page(content, target, sources=sources)
    return target


def build_page(content: PageContent, *, sources: Optional[_Path] = None, live: bool = False) -> BuiltPage:
    """Build a page. sources: see `write_page`. live: True if a server answers requests for tensors."""
    table = RowTable(content.rows, [finding.record for finding in content.named])
    numbers = _rows_of_findings(content, table)
    order = list(dict.fromkeys([*(number for number in numbers if number is not None), *_worst_first(table)]))
    uninteresting = {STATE_NUMBER[name] for name in ("no values", "unmatched", "unreadable")}
    notable = [number for number in order if table.state[number] > _QUIET and table.state[number] not in uninteresting]
    details, without = details_of(table.rows, notable)
    excerpts = excerpts_of((row.record.source for row in table.rows if row.record.source), sources)
    pack = ColumnPack()
    table.pack(pack)
    left_out = [*content.unchecked, *table.notes, *_without_drawings(details, 0 if live else without)]
    records = [row.record for row in table.rows]
    head = {
        "rows": len(table.rows),
        "compared": content.compared,
        "live": live,
        "quiet": STATE_NUMBER["undecided"],
        "finding": _first_finding(content, table),
        "first": next(iter(order), -1),
        "states": [state._asdict() for state in STATES],
        "steps": len({record.step for record in records if record.step is not None}),
        "ranks": len({record.rank for record in records if record.rank is not None}),
        "details": details,
        "excerpts": excerpts,
    }
    counts = Counter[int]()
    for state, covers in zip(table.state, table.covers):
        counts[state] += covers
    alone = [_why_alone(row) for row in table.rows if row.state == "unmatched"]
    facts = (
        ("made by", f"ascend-dump {__version__}"),
        *content.provenance,
        ("rows", f"{len(table.rows)} of {table.count}"),
    )
    script, style = _script(), _asset("style.css")
    html = Template(_asset("page.html")).substitute(
        policy=_policy(script, style, live=live),
        title=_static.text(content.title),
        style=style,
        script=script,
        verdict=_static.verdict(content, sorted(counts.items(), reverse=True)),
        findings=_static.findings(content, numbers),
        rows_title="Pairs" if content.compared else "Records",
        example_state="different" if content.compared else "suspect",
        height_legend=(
            "Height: relative error ‖actual − reference‖ / ‖reference‖, logarithmic."
            if content.compared
            else "Height: root mean square of the values, logarithmic."
        ),
        first_rows=_static.first_rows(table, order[: _static.FIRST_ROWS], content.compared),
        curves=strip_of(content.curves),
        unmatched=_static.unmatched(alone, table.unreadable, content.compared),
        made=_static.provenance(facts, left_out),
        data=pack.packed(head),
    )
    return BuiltPage(html, table.rows, len(table.unreadable))


def _without_drawings(details: Mapping[Any, Mapping[str, Any]], without: int) -> Iterator[str]:
    """Yield a note if some rows have no histograms and heat maps. without: number of rows beyond the limits."""
    drawn = sum("values" in detail for detail in details.values())
    if details and not drawn:
        yield "histograms and heat maps: the dump has no values of the rows to look at first"
    elif without:
        yield f"histograms and heat maps of {without} rows: they are drawn only for the {drawn} rows to look at first"


def _policy(script: str, style: str, *, live: bool) -> str:
    """Return the Content-Security-Policy, which lets the browser load nothing from outside the page.

    live: the page may also send requests to its own server
    """
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        f"{'connect-src ' + chr(39) + 'self' + chr(39) + '; ' if live else ''}base-uri 'none'; form-action 'none'"
    )


def _worst_first(table: RowTable) -> list[int]:
    def size(number: int) -> float:
        error = table.rows[number].error
        return 0.0 if error is None else float("inf") if error.nonfinite else error.rel_l2

    def key(number: int) -> tuple[Any, ...]:
        # Rows that need attention come first. Among them those without an explanation come first, then the worst
        # states, then the largest errors.
        quiet = table.state[number] <= _QUIET
        return (quiet, table.rows[number].explained, -table.state[number], -size(number) if not quiet else 0.0, number)

    return sorted(range(len(table.rows)), key=key)


def _first_finding(content: PageContent, table: RowTable) -> int:
    """Return the index in STATES of the least severe state that the button "next finding" stops at."""
    if content.compared:
        return STATE_NUMBER["unmatched"]
    suspect = STATE_NUMBER["suspect"]
    return suspect if suspect in table.state else STATE_NUMBER["non-finite"]


def _rows_of_findings(content: PageContent, table: RowTable) -> list[Optional[int]]:
    """Return the row number of each finding and of each changed call; None if its row is not on the page."""
    records = [finding.record for finding in content.named]
    distinct = set(records)
    sides = ((number, side) for number, row in enumerate(table.rows) for side in (row.actual, row.reference))
    numbers = {side: number for number, side in sides if side is not None and side in distinct}
    return [numbers.get(record) for record in records]


def _why_alone(row: PageRow) -> str:
    side = "actual" if row.actual is not None else "the reference"
    step = "" if row.record.step is None else f"step {row.record.step}: "
    return f"{step}{row.record.label}: only in {side}{'; ' + row.reason if row.reason else ''}"


@cache
def _asset(name: str) -> str:
    return (files("ascend_dump.report.page") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return the script: all .js files, in the order of the numbers in their names, inside one function."""
    folder = files("ascend_dump.report.page") / "script"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".js"))
    parts: Sequence[str] = [(folder / name).read_text(encoding="utf-8") for name in names]
    return '(() => {\n"use strict";\n' + "".join(parts) + "})();\n"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
