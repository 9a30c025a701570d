"""What a writer asks of those who help it with tensors: `ascend_dump.statistics.team` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

import numpy as np

if TYPE_CHECKING:
    from ascend_dump.statistics._statistics import Statistics

__all__ = ["Measured", "Memory", "Team"]

#: Address and size of bytes, which stay there until all is done, and what gives them to Python.
Memory = tuple[int, int, Callable[[], Any]]


class Measured(Protocol):
    """What was found in several tensors, whose memory is not needed any more."""

    def digests(self) -> list[bytes]:
        """The xxh3-128 of each."""

    def has_statistics(self, i: int) -> bool:
        """Whether one was asked for, and is not left to others."""

    def statistics(self, i: int) -> Statistics:
        """Those of such a one."""


class Team(Protocol):
    """Hashes tensors and computes their statistics, several at once."""

    @property
    def ready(self) -> bool:
        """Whether `prepare` succeeded; it may run in another thread."""

    def prepare(self) -> None: ...

    def measure(
        self,
        memory: Sequence[Memory],
        dtypes: Sequence[Optional[np.dtype[Any]]],
        *,
        hashes: bool = True,
        meanwhile: Optional[Callable[[], None]] = None,
    ) -> Measured:
        """Hash them, unless told not to, and compute the statistics of those that have a dtype.

        meanwhile: called once on this thread while others begin. What it raises is raised when they have ended.
        """
