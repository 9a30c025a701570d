"""Keep few steps of a long run, at equal distances: `options={"spread": True}` with `keep=`.

Each time `keep` steps are complete, every second of them is removed from the disk. From then on the distance between
recorded steps is twice as large. The recording session decides which steps are recorded (`SpreadSteps`), and the writer
decides which steps are removed (`steps_between`).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SpreadSteps", "steps_between"]


class SpreadSteps:
    """Decides which of the selected steps are recorded, so that at most `keep` of them stay on disk.

    The decision depends only on the number of selected steps so far, so all ranks record the same steps.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._seen = 0
        self._stride = 1

    def records_next(self) -> bool:
        """Count a selected step that begins, and return True if it must be recorded."""
        seen, self._seen = self._seen, self._seen + 1
        if seen == self._keep * self._stride:
            self._stride *= 2
        return seen % self._stride == 0


def steps_between(complete: Sequence[int], keep: int) -> Sequence[int]:
    """Return every second complete step, to be removed before the next step is recorded.

    Returns an empty sequence if fewer than `keep` steps are complete.
    """
    return complete[1::2] if len(complete) >= keep else ()
