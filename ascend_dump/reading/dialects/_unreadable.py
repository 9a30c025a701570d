"""Limit the number of reported invalid lines of a file: a megabyte of noise would have half a million."""

from __future__ import annotations

from typing import Optional

__all__ = ["UnreadableLines"]

_MOST_LISTED = 1000


class UnreadableLines:
    """Counts the invalid lines of a file; the first thousand are reported, the last of them with the limit.

    broken = UnreadableLines()
    broken.reason("line 3: no number")      # "line 3: no number"; None once a thousand are listed
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def are_enough(self) -> bool:
        """Return True if no further line is reported."""
        return self._count >= _MOST_LISTED

    def reason(self, why: str) -> Optional[str]:
        """Return the text to report for another line; None after the limit."""
        if self.are_enough:
            return None
        self._count += 1
        return f"{why}, as {_MOST_LISTED - 1} before it; no others after it are listed" if self.are_enough else why
