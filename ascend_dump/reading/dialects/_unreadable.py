"""How many lines of one file are listed that are no records: a megabyte of noise would be half a million."""

from __future__ import annotations

from typing import Optional

__all__ = ["UnreadableLines"]

_MOST_LISTED = 1000


class UnreadableLines:
    """Counts the lines of one file that are no records; a thousand are listed, and the last of these says so.

    broken = UnreadableLines()
    broken.reason("line 3: no number")      # "line 3: no number"; None once a thousand are listed
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def are_enough(self) -> bool:
        """True once no further line is listed."""
        return self._count >= _MOST_LISTED

    def reason(self, why: str) -> Optional[str]:
        """What to report of one more line, None for one that is not listed any more."""
        if self.are_enough:
            return None
        self._count += 1
        return f"{why}, as {_MOST_LISTED - 1} before it; no others after it are listed" if self.are_enough else why
