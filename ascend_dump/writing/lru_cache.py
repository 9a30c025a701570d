"""A cache of bounded size that evicts the least recently used entry."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Generic, Optional, TypeVar

__all__ = ["LRUCache"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LRUCache(Generic[_Key, _Value]):
    """A mapping of at most `size` entries. Unlike `functools.lru_cache`, values are put by the caller.

    Safe to share between threads if the keys are of built-in types.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> Optional[_Value]:
        found = self._entries.get(key)
        if found is not None:
            # contextlib.suppress would take longer than all the rest.
            try:  # noqa: SIM105
                self._entries.move_to_end(key)
            except KeyError:  # another thread has evicted it
                pass
        return found

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        with contextlib.suppress(KeyError):
            self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
