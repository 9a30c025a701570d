"""The reasons why a record in the dump format has no values (`Line.skipped`)."""

from __future__ import annotations

__all__ = ["FREED", "META", "NO_VALUES", "UNINITIALISED", "UNWAITED", "ZERO"]

UNINITIALISED = "uninitialised memory"
UNWAITED = "a collective writes it still"
FREED = "memory that is freed, or packed"
META = "meta tensor"
ZERO = "zero tensor without memory"

#: The reasons for which nothing is lost: the tensor had no valid values then, or another record has them.
NO_VALUES = (UNINITIALISED, UNWAITED, FREED, META, ZERO)
