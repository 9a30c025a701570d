"""Writing host dumps: asynchronous, each distinct tensor once, readable after a kill."""

from __future__ import annotations

from ascend_dump.writing.run import Run
from ascend_dump.writing.writer import HostWriter, Op, Payload, Slot

__all__ = ["HostWriter", "Op", "Payload", "Run", "Slot"]
