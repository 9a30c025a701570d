"""Columns as a page carries them: texts front-coded, numbers in planes of bytes, all of it packed by gzip.

Layout of the bytes before they are packed: the length of the head as uint32, the head as JSON in UTF-8, then the
columns one after the other. The head names each column, its kind and its number of bytes:

    texts       a JSON list [common, rest, common, rest, …]: each text is the first `common` characters of the one
                before it (UTF-16 units) and `rest`
    u1 u2 u4    unsigned numbers, the lowest bytes of all of them, then the next bytes …
    f4          float32 in planes; null is 0x7fa00000
    f8          float64 in planes; null is -1
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NULL", "ColumnPack", "TextTable", "front_coded"]

#: A signalling NaN that no value has, where a number is not known.
NULL = 0x7FA00000
#: Characters of a name that a page keeps.
LONGEST_TEXT = 12_000


class TextTable:
    """Distinct texts in the order they are first seen; number 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self.cut = 0

    def number(self, text: Optional[str]) -> int:
        if not text:
            return 0
        found = self._numbers.get(text)
        if found is None:
            if len(text) > LONGEST_TEXT:
                self.cut += 1
                return self.number(f"{text[: LONGEST_TEXT - 20]}… ({len(text)} characters)")
            found = self._numbers[text] = len(self._numbers)
        return found

    def __len__(self) -> int:
        return len(self._numbers)

    def texts(self) -> list[str]:
        return list(self._numbers)


def front_coded(texts: Iterable[str]) -> list[Any]:
    """The texts as [common, rest, …], see the head of this file."""
    out: list[Any] = []
    before = ""
    for text in texts:
        common = _common(before, text)
        out += (common, text[common:])
        before = text
    return out


def _common(one: str, other: str) -> int:
    """How many characters both begin with; none beyond U+D7FF, where a character may be two units of UTF-16."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    if not one[:low].isascii():
        return next((at for at, character in enumerate(one[:low]) if character > "\ud7ff"), low)
    return low


class ColumnPack:
    """Collects the columns of a page."""

    def __init__(self) -> None:
        self._columns: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def texts(self, name: str, texts: Iterable[str]) -> None:
        self._add(name, "texts", json.dumps(front_coded(texts), separators=(",", ":")).encode())

    def numbers(self, name: str, values: Sequence[int]) -> None:
        """Numbers from 0 to 2**32 - 1, in as many bytes as the largest needs."""
        import numpy as np

        array = np.asarray(values, dtype=np.uint32)
        largest = int(array.max()) if array.size else 0
        width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
        self._add(name, f"u{width}", _planes(array.astype(f"<u{width}")))

    def floats(self, name: str, values: Sequence[Optional[float]]) -> None:
        """Numbers as float32; None: not known."""
        import numpy as np

        known = np.array([one is not None for one in values], dtype=bool)
        with np.errstate(all="ignore"):
            array = np.array([0.0 if one is None else one for one in values], dtype=np.float64).astype("<f4")
        bits = array.view("<u4")
        bits[np.isnan(array)] = 0x7FC00000
        bits[~known] = NULL
        self._add(name, "f4", _planes(array))

    def doubles(self, name: str, values: Sequence[Optional[float]]) -> None:
        """Exact numbers from 0 on; None: not known."""
        import numpy as np

        array = np.array([-1.0 if one is None else float(one) for one in values], dtype="<f8")
        self._add(name, "f8", _planes(array))

    def packed(self, head: dict[str, Any]) -> str:
        """All of it, as base64."""
        text = json.dumps({**head, "columns": self._columns}, separators=(",", ":"), allow_nan=False).encode()
        content = b"".join((len(text).to_bytes(4, "little"), text, *self._parts))
        return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")

    def _add(self, name: str, kind: str, content: bytes) -> None:
        self._columns.append({"name": name, "kind": kind, "bytes": len(content)})
        self._parts.append(content)


def _planes(array: np.ndarray) -> bytes:
    import numpy as np

    return array.view(np.uint8).reshape(-1, array.itemsize).T.tobytes() if array.size else b""
