"""Problems for settings that limit a dump, with frameworks that write their dumps themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump.common.problem import Problem

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["size_is_unlimited", "steps_are_no_directories"]


def size_is_unlimited(request: DumpRequest, writer: str = "CANN") -> list[Problem]:
    """Return the problem of `max_bytes=` for a dump by `writer`, which has no such limit."""
    if request.max_bytes is None:
        return []
    message = f"max_bytes= changes nothing: {writer} has no limit on the size of a dump"
    return [Problem("AD211", "silent", message, "select fewer steps, or keep the last ones only: keep=", "max_bytes")]


def steps_are_no_directories(request: DumpRequest, why: str) -> list[Problem]:
    """Return the problems of `keep=` and `until=` if steps of a dump cannot be distinguished on disk.

    why: a sentence without its full stop
    """
    return [
        Problem("AD213", "silent", f"{name}= changes nothing: {why}", "select the steps with steps=", name)
        for name in ("keep", "until")
        if getattr(request, name) is not None
    ]
