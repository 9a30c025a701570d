"""Steps of a long run that stay few and at equal distances: `options={"spread": True}` with `keep=`.

Where `keep` steps are complete, every second of them is removed from the disk, and from then on only every second of
the following selected steps is recorded. The recording session and the writer apply this rule apart, each to its own
steps.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SpreadSteps", "steps_between"]


class SpreadSteps:
    """A choice of the selected steps that are recorded, so that at most `keep` of them stay.

    It counts selected steps, so that all ranks record the same ones.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._seen = 0
        self._stride = 1

    def records_next(self) -> bool:
        """Count a selected step that begins, and return True if it is recorded."""
        seen, self._seen = self._seen, self._seen + 1
        if seen == self._keep * self._stride:
            self._stride *= 2
        return seen % self._stride == 0


def steps_between(complete: Sequence[int], keep: int) -> Sequence[int]:
    """Return the complete steps to remove before the next one is recorded: every second; none while there is room."""
    return complete[1::2] if len(complete) >= keep else ()
