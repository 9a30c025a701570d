"""A cache of bounded size that forgets what was used least recently."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Generic, Optional, TypeVar

__all__ = ["LRUCache"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LRUCache(Generic[_Key, _Value]):
    """A mapping of at most `size` entries. `functools.lru_cache` takes no values from outside.

    Threads may use it together, with keys that Python compares without running code of theirs.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> Optional[_Value]:
        found = self._entries.get(key)
        if found is not None:
            with contextlib.suppress(KeyError):  # another thread has put more than there is room for
                self._entries.move_to_end(key)
        return found

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        with contextlib.suppress(KeyError):
            self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
