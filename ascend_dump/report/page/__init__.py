"""The report: one HTML file that opens anywhere and asks no network for anything.

`PageContent` says what is on it, `write_page` writes it. What its script and style are made of lies beside this file.
Names come from dumps: they reach the page as text only, and its content policy runs nothing but its own script.

>>> from ascend_dump.report.page import PageContent, PageRow, build_page
>>> page = build_page(PageContent("two dumps", rows=(), verdict="equal", sentence="Both dumps are the same."))
>>> page.html.startswith("<!DOCTYPE html>"), len(page.rows)
(True, 0)
"""

from __future__ import annotations

from ascend_dump.report.page._compact import compact
from ascend_dump.report.page._content import STATES, PageContent, PageError, PageFinding, PageRow, PageState
from ascend_dump.report.page._write import BuiltPage, build_page, save_page, write_page

__all__ = [
    "STATES",
    "BuiltPage",
    "PageContent",
    "PageError",
    "PageFinding",
    "PageRow",
    "PageState",
    "build_page",
    "compact",
    "save_page",
    "write_page",
]
