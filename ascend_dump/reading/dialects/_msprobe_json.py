"""The JSON files of msprobe: large, with bare NaN and Infinity, and cut off where the program was killed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascend_dump._errors import CorruptDump, StorageError
from ascend_dump._files import open_regular

__all__ = ["items_of", "items_of_data"]

#: Characters of one item; the largest known ones list the ranks of a process group.
_LONGEST = 1 << 26
_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*", re.ASCII)
_DECODER = json.JSONDecoder()


def items_of(path: Path) -> Iterator[tuple[str, Any]]:
    """The items of the object that a file holds, one after the other.

    Raises CorruptDump, where the file is cut off or damaged behind all the items that are whole.
    """
    with _JsonText(path) as text:
        for key in text.object_keys():
            yield key, text.value()


def items_of_data(path: Path) -> Iterator[tuple[str, Any]]:
    """The same of the object that is the item "data" of the file, which msprobe writes as the last one."""
    with _JsonText(path) as text:
        for key in text.object_keys():
            if key == "data" and text.next_is("{"):
                for name in text.object_keys():
                    yield name, text.value()
            else:
                text.value()


class _JsonText:
    """A JSON text that is read value by value, so that what is whole counts and only one value is in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text, self._at, self._dropped = "", 0, 0
        self._is_whole = False

    def __enter__(self) -> _JsonText:
        try:
            self._file = io.TextIOWrapper(open_regular(self._path, follow_links=False), encoding="utf-8")
        except StorageError:
            raise
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self._path) from None
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def next_is(self, mark: str) -> bool:
        """Pass over white space. Returns whether `mark` follows, which stays."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text.startswith(mark, self._at)

    def object_keys(self) -> Iterator[str]:
        """The keys of the object that follows. Whoever iterates reads the value of each before going on."""
        self._take("{")
        if self.next_is("}"):
            self._take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._damaged("a key that is no text")
            self._take(":")
            yield key
            if not self.next_is(","):
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:
        """Any value, made as Python objects."""
        self.next_is("")
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._damaged("nested too deep") from None
            except ValueError as error:
                if len(self._text) - self._at > _LONGEST or not self._read_more():
                    raise self._damaged(str(error)) from None
                continue
            # A number that ends where the text ends may go on.
            if end < len(self._text) or not self._read_more():
                self._at = end
                return found

    def _take(self, mark: str) -> None:
        if not self.next_is(mark):
            raise self._damaged(f"expected {mark!r}")
        self._at += len(mark)

    def _read_more(self) -> bool:
        """Read on, twice as much each time; what was taken goes. False at the end of the file."""
        if self._is_whole:
            return False
        try:
            more = self._file.read(max(_BLOCK, len(self._text) - self._at))
        except UnicodeDecodeError as error:
            raise CorruptDump(f"is no text in UTF-8: {error.reason}", path=self._path) from None
        except StorageError:
            raise
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self._path) from None
        self._dropped += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        self._is_whole = not more
        return bool(more)

    def _damaged(self, what: str) -> CorruptDump:
        at = self._dropped + self._at
        if self._is_whole and not self._text[self._at :].strip():
            what = "the file ends in the middle of its records"
        return CorruptDump(f"is no JSON from character {at} on: {what}", path=self._path)
