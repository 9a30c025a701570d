"""Limit the number of invalid lines that are reported: a megabyte of random bytes can have half a million lines."""

from __future__ import annotations

from typing import Optional

__all__ = ["UnreadableLines"]

_MOST_LISTED = 1000


class UnreadableLines:
    """A counter of the invalid lines of a file. The first thousand are reported; the last report names the limit.

    broken = UnreadableLines()
    broken.reason("line 3: no number")      # "line 3: no number"; None once a thousand are listed
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def are_enough(self) -> bool:
        """True if no further line will be reported."""
        return self._count >= _MOST_LISTED

    def reason(self, why: str) -> Optional[str]:
        """Count a line, and return the text to report; None after the limit. why: the reason why it is invalid."""
        if self.are_enough:
            return None
        self._count += 1
        return f"{why}, as {_MOST_LISTED - 1} before it; no others after it are listed" if self.are_enough else why
