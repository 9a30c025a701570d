"""Reasons why a record of a host dump has no values."""

from __future__ import annotations

__all__ = ["FREED", "META", "NO_VALUES", "UNINITIALISED", "UNWAITED", "ZERO"]

UNINITIALISED = "uninitialised memory"
UNWAITED = "a collective writes it still"
FREED = "memory that is freed, or packed"
META = "meta tensor"
ZERO = "zero tensor without memory"

#: The tensor had no values that could be wrong, or has them in another record.
NO_VALUES = (UNINITIALISED, UNWAITED, FREED, META, ZERO)
