"""What a page keeps of single rows: histograms, the map of the error, arguments, and lines of the source."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

from ascend_dump.errors import AscendDumpError
from ascend_dump.report.page._content import PageRow
from ascend_dump.report.page.tensors import heat_map, read_tensor, value_histogram
from ascend_dump.storage.files import read_small

__all__ = ["MOST_DETAILS", "details_of", "excerpts_of"]

#: Rows of which histograms and maps are kept.
MOST_DETAILS = 200
#: Bytes of tensors that are read for them.
_MOST_READ = 1 << 30
#: Lines of the source before and after the one that called the operator, and how long a file and a line may be.
_AROUND = 3
_MOST_SOURCE = 2 << 20
_MOST_LINE = 400
_MOST_FILES = 200


def details_of(rows: Sequence[PageRow], chosen: Iterable[int]) -> tuple[dict[int, dict[str, Any]], int]:
    """By the number of a row what is kept of it, and how many rows had to be left out."""
    found: dict[int, dict[str, Any]] = {}
    left, left_out = _MOST_READ, 0
    for number in chosen:
        row = rows[number]
        size = sum(side.nbytes or 0 for side in (row.actual, row.reference) if side is not None)
        if len(found) >= MOST_DETAILS or size > left:
            left_out += 1
            continue
        left -= size
        one = _detail(row)
        if one:
            found[number] = one
    return found, left_out


def _detail(row: PageRow) -> dict[str, Any]:
    found: dict[str, Any] = {}
    actual, reference = (None if side is None else read_tensor(side) for side in (row.actual, row.reference))
    if actual is not None or reference is not None:
        comparable = row.transformation in ("", "identity", "cast")
        found["values"] = value_histogram(actual, reference)
        if actual is not None and reference is not None and comparable and actual.shape == reference.shape:
            heat, what = heat_map(actual, reference), "|actual − reference|"
        else:
            one = actual if actual is not None else reference
            assert one is not None
            heat, what = heat_map(one), "|value|" if reference is None else "|actual|"
        if heat is not None:
            found["heat"] = {"what": what, **heat}
    if row.error is not None:
        if any(row.error.ulp):
            last = max(at for at, count in enumerate(row.error.ulp) if count)
            found["ulp"] = list(row.error.ulp[: last + 1])
        if row.error.at is not None:
            found["at"] = list(row.error.at)
    record = row.record
    arguments = None
    with contextlib.suppress(AscendDumpError):
        arguments = record.arguments
    if arguments is not None:
        found["arguments"] = str(arguments)[:2000]
    return {name: value for name, value in found.items() if value is not None}


def excerpts_of(sources: Iterable[str], below: Union[str, os.PathLike[str], None]) -> dict[str, dict[str, Any]]:
    """By `file:line` the lines around it, of Python files below a directory only: a dump may name any file."""
    if below is None:
        return {}
    root = Path(below).resolve()
    found: dict[str, dict[str, Any]] = {}
    texts: dict[Path, list[str]] = {}
    for source in dict.fromkeys(sources):
        name, colon, number = source.rpartition(":")
        if not colon or not number.isascii() or not number.isdigit() or len(number) > 9:
            continue
        try:
            path = Path(root, name).resolve()
            if path.suffix != ".py" or root not in path.parents:
                continue
            if path not in texts:
                if len(texts) >= _MOST_FILES:
                    break
                texts[path] = read_small(path, _MOST_SOURCE).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
        line = int(number)
        if not 1 <= line <= len(texts[path]):
            continue
        first = max(1, line - _AROUND)
        lines = [one[:_MOST_LINE] for one in texts[path][first - 1 : line + _AROUND]]
        found[source] = {"first": first, "line": line, "lines": lines}
    return found
