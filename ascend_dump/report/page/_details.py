"""Details of single rows of a page: histograms, heat maps, arguments, and lines of the source."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

from ascend_dump.errors import AscendDumpError
from ascend_dump.report.page._content import PageRow
from ascend_dump.report.page.tensors import read_tensor, titled_heat_map, value_histogram
from ascend_dump.storage.files import read_small

__all__ = ["MOST_DETAILS", "details_of", "excerpts_of"]

#: Maximum number of rows with histograms and heat maps.
MOST_DETAILS = 200
#: Maximum number of bytes of tensors that are read for histograms and heat maps.
_MOST_READ = 1 << 30
#: Number of source lines shown before and after a call. Limits of what is read: bytes of a source file, characters of a
#: line, and number of files.
_AROUND = 3
_MOST_SOURCE = 2 << 20
_MOST_LINE = 400
_MOST_FILES = 200


def details_of(rows: Sequence[PageRow], chosen: Iterable[int]) -> tuple[dict[int, dict[str, Any]], int]:
    """Return the details of the chosen rows by row number, and the number of rows beyond the limits."""
    details: dict[int, dict[str, Any]] = {}
    budget, skipped = _MOST_READ, 0
    for number in chosen:
        row = rows[number]
        size = sum(side.nbytes or 0 for side in (row.actual, row.reference) if side is not None)
        if len(details) >= MOST_DETAILS or size > budget:
            skipped += 1
            continue
        budget -= size
        detail = _detail(row)
        if detail:
            details[number] = detail
    return details, skipped


def _detail(row: PageRow) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    actual, reference = (None if side is None else read_tensor(side) for side in (row.actual, row.reference))
    if actual is not None or reference is not None:
        comparable = row.transformation in ("", "identity", "cast")
        detail["values"] = value_histogram(actual, reference)
        detail["heat"] = titled_heat_map(actual, reference, comparable=comparable)
    if row.error is not None:
        if any(row.error.ulp):
            last = max(position for position, count in enumerate(row.error.ulp) if count)
            detail["ulp"] = list(row.error.ulp[: last + 1])
        if row.error.position is not None:
            detail["at"] = list(row.error.position)
    record = row.record
    arguments = None
    with contextlib.suppress(AscendDumpError):
        arguments = record.arguments
    if arguments is not None:
        detail["arguments"] = str(arguments)[:2000]
    return {name: value for name, value in detail.items() if value is not None}


def excerpts_of(sources: Iterable[str], below: Union[str, os.PathLike[str], None]) -> dict[str, dict[str, Any]]:
    """Return, for each `file:line`, the source lines around it.

    Only Python files inside the directory `below` are read, because a malicious dump may name any file.
    """
    if below is None:
        return {}
    root = Path(below).resolve()
    excerpts: dict[str, dict[str, Any]] = {}
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
        lines = [text[:_MOST_LINE] for text in texts[path][first - 1 : line + _AROUND]]
        excerpts[source] = {"first": first, "line": line, "lines": lines}
    return excerpts
