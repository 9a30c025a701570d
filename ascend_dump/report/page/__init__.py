"""The report: one HTML file, without requests to a network.

`write_page` writes a `PageContent`. The sources of script and style are in this folder. Names from dumps are inserted
as text only, and the content policy lets the browser run no script except the page's own.

>>> from ascend_dump.report.page import PageContent, PageRow, build_page
>>> page = build_page(PageContent("two dumps", rows=(), verdict="equal", sentence="Both dumps are the same."))
>>> page.html.startswith("<!DOCTYPE html>"), len(page.rows)
(True, 0)
"""

from __future__ import annotations

from ascend_dump.report.page._compact import compact
from ascend_dump.report.page._content import (
    STATES,
    PageContent,
    PageCurve,
    PageError,
    PageFinding,
    PageRow,
    PageState,
)
from ascend_dump.report.page._write import BuiltPage, build_page, save_page, write_page

__all__ = [
    "STATES",
    "BuiltPage",
    "PageContent",
    "PageCurve",
    "PageError",
    "PageFinding",
    "PageRow",
    "PageState",
    "build_page",
    "compact",
    "save_page",
    "write_page",
]
