"""The files of an index: plain while its step is written, compressed by gzip once the step is complete and large.

    index.jsonl      the lines as text; the index of a small step, of a step that is being written or was not completed
    index.jsonl.gz   the same lines in a gzip file, as `zcat` reads it

A step may have both for a moment, and after a kill at that moment. The compressed one is read then, because it is given
its name only when it is complete.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Optional, Protocol, cast

from ascend_dump.storage.files import open_regular, size_of

__all__ = [
    "COMPRESSED_INDEX",
    "GZIP",
    "INDEX",
    "INDEX_NAMES",
    "MOST_EXPANSION",
    "CompressedText",
    "DamagedIndex",
    "IndexText",
    "ends_at",
    "index_among",
    "line_count",
    "open_index",
    "text_size",
]

INDEX = "index.jsonl"
COMPRESSED_INDEX = "index.jsonl.gz"
#: The possible names of an index. If a step has several, the first one is read.
INDEX_NAMES = (COMPRESSED_INDEX, INDEX)
#: The `wbits` of zlib for the format of gzip files.
GZIP = zlib.MAX_WBITS | 16
#: The text of a compressed index has at most this many times the bytes of its file. Indexes have 5 to 30 times as many;
#: deflate allows 1032 times, and a small file could keep a reader busy for hours.
MOST_EXPANSION = 100
#: Usual size of a line in bytes, as text and in a compressed index.
_USUAL_LINE, _USUAL_COMPRESSED_LINE = 400, 60
#: Bytes that are read from the file at a time, and bytes of text that are made of them at a time. If the bytes turn out
#: to be damaged, the text that would have been made with them is lost.
_READ, _MADE = 1 << 16, 1 << 16
#: Bytes of text before the position that stay in memory: a line is read again from its start, and it has at most 1 MiB.
_BEHIND = 1 << 21
#: Bytes of text between two stored states from which decompression can continue, and the number of stored states.
_APART, _MOST_STATES = 1 << 23, 64


class DamagedIndex(OSError):
    """A compressed index that cannot be read further. The text before the damage can be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(0, reason, path)


class IndexText(Protocol):
    """The text of an index, open for reading: the methods of a binary file that readers of an index use."""

    def seek(self, position: int, /) -> int: ...
    def tell(self) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def readline(self, size: int, /) -> bytes: ...
    def __enter__(self) -> IndexText: ...
    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType], /
    ) -> Optional[bool]: ...


def index_among(names: Collection[str]) -> Optional[str]:
    """Return the name of the index to read among the names of the files of a directory; None if there is no index."""
    return next((name for name in INDEX_NAMES if name in names), None)


def open_index(path: Path) -> IndexText:
    """Open the text of an index for reading. Raises OSError; reading raises OSError too, as `CompressedText`.

    path: the index under one of its names. If it is missing, the file with the other name is opened: a writer may have
    compressed the index since its directory was listed.
    """
    try:
        return _opened(path)
    except FileNotFoundError:
        for name in INDEX_NAMES:
            if path.name in INDEX_NAMES and name != path.name:
                try:
                    return _opened(path.with_name(name), follow_links=False)
                except FileNotFoundError:
                    continue
        raise


def _opened(path: Path, *, follow_links: bool = True) -> IndexText:
    file = open_regular(path, follow_links=follow_links)
    return CompressedText(file, str(path)) if path.name == COMPRESSED_INDEX else file


def text_size(text: IndexText) -> int:
    """Return the position in an index at which a reader has to stop: lines that are appended later are not read.

    Nothing is appended to a compressed index, and its size is not known before it is read: its end is its only limit.
    """
    return sys.maxsize if isinstance(text, CompressedText) else size_of(cast(BinaryIO, text))


def ends_at(text: IndexText, position: int) -> bool:
    """Return True if nothing follows the position in an index. A compressed index has to be read up to it."""
    return text.is_over if isinstance(text, CompressedText) else size_of(cast(BinaryIO, text)) == position


def line_count(path: Path) -> int:
    """Return about how many lines an index has, from the size of its file; 0 if it is missing. Opens no file."""
    for name in (path.name, *INDEX_NAMES):
        try:
            size = path.with_name(name).stat().st_size
        except OSError:
            continue
        return size // (_USUAL_COMPRESSED_LINE if name == COMPRESSED_INDEX else _USUAL_LINE)
    return 0


class _InflaterState(NamedTuple):
    """A state of decompression: text up to a position, the bytes read beyond it, and where the next bytes are read."""

    position: int
    inflater: zlib._Decompress
    unused: bytes
    next_read: int


class CompressedText:
    """The text of a gzip file, of one or more members, open for reading at any position.

    Text is made in pieces, so the memory is bounded whatever the file contains; the amount of text is bounded by
    MOST_EXPANSION times the file's size. Some text before the position stays in memory, and from time to time the state
    of decompression is stored, so that a seek backwards does not begin at the start of the file.

    `read` and `readline` raise DamagedIndex where the text ends by damage, after they have returned the text before it,
    except for at most 64 KiB directly before damaged bytes.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        """Take over an open file; `path` is for messages. Raises OSError, and closes the file then."""
        self._file = file
        self._path = path
        try:
            self._most = MOST_EXPANSION * size_of(file)
        except OSError:
            file.close()
            raise
        self._position = 0
        self._apart = _APART
        self._states: list[_InflaterState] = []
        self._restore(_InflaterState(0, zlib.decompressobj(GZIP), b"", 0))

    def __enter__(self) -> CompressedText:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType], /
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, /) -> int:
        if position < self._begin:
            self._restore(
                max((state for state in self._states if state.position <= position), key=attrgetter("position"))
            )
        self._position = position
        return position

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes of text, or fewer at its end."""
        while not self._is_over and self._begin + len(self._text) < self._position + size:
            self._make()
        start = self._position - self._begin
        with memoryview(self._text) as text:
            part = bytes(text[start : start + size])
        if not part and size and self._damage:
            raise DamagedIndex(self._path, self._damage)
        self._position += len(part)
        return part

    def readline(self, size: int, /) -> bytes:
        """Return the text up to the next newline, or `size` bytes of it, or fewer at the end."""
        while True:
            start = self._position - self._begin
            length = self._text.find(b"\n", start, start + size) + 1 - start
            if length > 0:
                return self.read(length)
            if self._is_over or len(self._text) >= start + size:
                return self.read(size)
            self._make()

    @property
    def is_over(self) -> bool:
        """True if the end of the file was reached without damage, and the position is the end of the text."""
        is_at_end = self._position == self._begin + len(self._text)
        return self._is_over and not self._damage and is_at_end

    def _restore(self, state: _InflaterState) -> None:
        if not self._states:
            self._states.append(state)
        #: A part of the text, and its position in the whole text.
        self._text = bytearray()
        self._begin = state.position
        self._inflater = state.inflater.copy()
        self._unused = state.unused
        self._next_read = state.next_read
        self._is_over = False
        self._damage = ""

    def _make(self) -> None:
        """Make the next piece of text, or note that there is none. Raises OSError if the file cannot be read."""
        end = self._begin + len(self._text)
        if end >= self._states[-1].position + self._apart:
            self._store(_InflaterState(end, self._inflater.copy(), self._unused, self._next_read))
        if not self._unused:
            self._file.seek(self._next_read)
            self._unused = self._file.read(_READ)
            self._next_read += len(self._unused)
        if self._inflater.eof:
            self._begin_member()
            if self._is_over:
                return
        ends = not self._unused
        try:
            # Without more bytes, text may be left in the inflater.
            piece = self._inflater.decompress(self._unused, _MADE)
        except zlib.error as error:
            self._fail(f"its gzip data is damaged: {error}")
            return
        self._unused = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        if ends and not piece and not self._inflater.eof:
            self._fail("its gzip data is cut off")
        if end + len(piece) > self._most:
            self._fail(f"it has more than {MOST_EXPANSION} bytes of text for each of its bytes, which no index has")
            return
        self._text += piece
        surplus = min(self._position, end) - _BEHIND - self._begin
        if surplus > _BEHIND:
            del self._text[:surplus]
            self._begin += surplus

    def _begin_member(self) -> None:
        """Begin the next gzip member, or note that the file ends or has other bytes behind its members."""
        if not self._unused:
            self._is_over = True
        elif self._unused.startswith(b"\x1f"):
            self._inflater = zlib.decompressobj(GZIP)
        else:
            self._fail("other bytes follow its gzip data")

    def _fail(self, reason: str) -> None:
        self._is_over, self._damage = True, reason

    def _store(self, state: _InflaterState) -> None:
        self._states.append(state)
        if len(self._states) > _MOST_STATES:
            del self._states[1::2]
            self._apart *= 2
