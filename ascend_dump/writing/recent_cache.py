"""A cache of bounded size that drops entries not used recently."""

from __future__ import annotations

from typing import Generic, Optional, TypeVar

__all__ = ["RecentCache"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RecentCache(Generic[_Key, _Value]):
    """A mapping of about `size` entries at most.

    When more than half of that number were used since the last call of `age`, the other entries are dropped.
    Safe to share between threads if the keys are of built-in types.
    """

    def __init__(self, size: int) -> None:
        self._half = size // 2
        #: Entries used since the last call of `age`, and entries used between the two last calls of `age`.
        self._recent: dict[_Key, _Value] = {}
        self._older: dict[_Key, _Value] = {}

    def __len__(self) -> int:
        return len(self._recent.keys() | self._older.keys())

    def get(self, key: _Key) -> Optional[_Value]:
        value = self._recent.get(key)
        if value is None:
            value = self._older.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        self._recent[key] = value
        if len(self._recent) > self._half:
            self.age()

    def age(self) -> None:
        """Drop the entries that were not used since the last call."""
        self._recent, self._older = {}, self._recent
