"""A dict that forgets what was not used for long."""

from __future__ import annotations

from typing import Generic, Optional, TypeVar

__all__ = ["Recent"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """Remember at least the `size` entries used last, and at most twice as many."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[_Key, _Value] = {}
        self._old: dict[_Key, _Value] = {}

    def get(self, key: _Key) -> Optional[_Value]:
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: _Key, value: _Value) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def drop(self, key: _Key) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)
