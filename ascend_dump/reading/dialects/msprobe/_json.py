"""Parse the JSON files of msprobe. They are large, contain NaN and Infinity, and are truncated if the program died."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.storage.files import open_regular

__all__ = ["items_of", "items_of_data"]

#: Maximum number of characters of one item; the largest known items list the ranks of a process group.
_LONGEST = 1 << 26
_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*", re.ASCII)
_DECODER = json.JSONDecoder()


def items_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the (key, value) pairs of the JSON object in a file.

    If the file is truncated or damaged, all complete pairs are yielded before CorruptDump is raised.
    """
    with _JsonText(path) as text:
        for key in text.object_keys():
            yield key, text.value()


def items_of_data(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the (key, value) pairs of the object under the key "data", which is the last one in the file."""
    with _JsonText(path) as text:
        for key in text.object_keys():
            if key == "data" and text.next_is("{"):
                for name in text.object_keys():
                    yield name, text.value()
            else:
                text.value()


class _JsonText:
    """A parser of a JSON file that has only one value in memory at a time, and works on truncated files."""

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
        """Skip white space. Return True if `mark` follows; it is not consumed."""
        while True:
            spaces = _SPACE.match(self._text, self._at)
            self._at = spaces.end() if spaces else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text.startswith(mark, self._at)

    def object_keys(self) -> Iterator[str]:
        """Yield the keys of the object that follows. The caller has to read each value before the next key."""
        self._take("{")
        if self.next_is("}"):
            self._take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._damaged("a key is not a string")
            self._take(":")
            yield key
            if not self.next_is(","):
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:
        """Parse and return the value that follows, of any type."""
        self.next_is("")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._damaged("nested too deep") from None
            except ValueError as error:
                if len(self._text) - self._at > _LONGEST or not self._read_more():
                    raise self._damaged(str(error)) from None
                continue
            # A number at the end of the buffer may be incomplete.
            if end < len(self._text) or not self._read_more():
                self._at = end
                return value

    def _take(self, mark: str) -> None:
        if not self.next_is(mark):
            raise self._damaged(f"expected {mark!r}")
        self._at += len(mark)

    def _read_more(self) -> bool:
        """Drop the parsed text, and read at least as much as the unparsed text. Return False at the end of the file."""
        if self._is_whole:
            return False
        try:
            text = self._file.read(max(_BLOCK, len(self._text) - self._at))
        except UnicodeDecodeError as error:
            raise CorruptDump(f"is not UTF-8 text: {error.reason}", path=self._path) from None
        except StorageError:
            raise
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self._path) from None
        # A part of a file that was never written to disk reads as zero bytes. The text ends before them.
        text, hole, _ = text.partition("\0")
        self._dropped += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        self._is_whole = bool(hole) or not text
        return bool(text)

    def _damaged(self, what: str) -> CorruptDump:
        position = self._dropped + self._at
        if self._is_whole and not self._text[self._at :].strip():
            what = "the file ends in the middle of its records"
        return CorruptDump(f"is no JSON from character {position} on: {what}", path=self._path)
