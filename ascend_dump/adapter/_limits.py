"""Limits that a framework which writes its dump itself has no setting for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump._problem import Problem

if TYPE_CHECKING:
    from ascend_dump._request import DumpRequest

__all__ = ["size_is_unlimited"]


def size_is_unlimited(request: DumpRequest, writer: str = "CANN") -> list[Problem]:
    """The problems to report for the limits of a request that `writer`, which writes the dump, has no setting for."""
    found = []
    if request.max_bytes is not None:
        message = f"max_bytes= changes nothing: {writer} has no limit on the size of a dump"
        found.append(Problem("AD211", "silent", message, "select fewer steps or layers", "max_bytes"))
    if request.keep is not None:
        message = f"keep= changes nothing: {writer} removes no step that it has written"
        found.append(Problem("AD211", "silent", message, "select the steps with steps=", "keep"))
    if request.until is not None:
        message = f"until= changes nothing: {writer} dumps until the capture ends"
        found.append(Problem("AD211", "silent", message, "select the steps with steps=", "until"))
    return found
