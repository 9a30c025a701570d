"""What a writer asks of those who help it with tensors: `ascend_dump.analysis.team` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Protocol

import numpy as np

if TYPE_CHECKING:
    from ascend_dump.analysis.statistics import Statistics

__all__ = ["Memory", "Team"]

#: Address and size of bytes, and the same bytes for Python, which keeps them where they are.
Memory = tuple[int, int, Any]


class Team(Protocol):
    """Hashes tensors and computes their statistics, several at once."""

    @property
    def ready(self) -> bool:
        """Whether `prepare` succeeded; it may run in another thread."""

    def prepare(self) -> None: ...

    def hash(self, memory: Sequence[Memory]) -> list[bytes]:
        """The xxh3-128 digests."""

    def statistics(self, memory: Sequence[Memory], dtypes: Sequence[np.dtype[Any]]) -> list[Optional[Statistics]]:
        """The statistics of elements that follow each other; None where it leaves them to others."""
