"""Writing host dumps: asynchronous, each distinct tensor once, readable after a kill."""

from __future__ import annotations

from ascend_dump.writing.layout import Line
from ascend_dump.writing.run import Run
from ascend_dump.writing.writer import HostWriter, Item, Payload

__all__ = ["HostWriter", "Item", "Line", "Payload", "Run"]
