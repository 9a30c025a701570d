"""`options={"spread": True}`: steps of a long run that stay few, and at equal distances."""

from __future__ import annotations

__all__ = ["SpreadSteps"]


class SpreadSteps:
    """Which of the selected steps are recorded, so that at most `most` of them stay.

    Where `most` have been recorded, every second of them is removed (by the writer), and from then on only every second
    of the following steps is recorded. It counts selected steps, so that all ranks record the same ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0
        self._stride = 1

    def records_next(self) -> bool:
        """Count a selected step that begins, and return True if it is recorded."""
        seen, self._seen = self._seen, self._seen + 1
        if seen == self._most * self._stride:
            self._stride *= 2
        return seen % self._stride == 0
