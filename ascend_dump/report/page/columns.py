"""The encoding of the columns in a page's data: texts are front-coded, numbers split into byte planes, all gzipped.

Layout before gzip: the length of the head as uint32, the head as JSON in UTF-8, then the columns. The head lists the
name, the kind and the number of bytes of each column. The kinds are:

    texts       a JSON list [common, suffix, common, suffix, …]: each text is the first `common` characters (UTF-16
                units) of the text before it, and `suffix`
    u1 u2 u4    unsigned integers in byte planes: first the lowest byte of every number, then the next byte of every
                number, and so on
    f4          float32 in byte planes; an unknown number is 0x7fa00000
    f8          float64 in byte planes; an unknown number is -1
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

#: The bits of unknown numbers: a signalling NaN, which no known number has.
NULL = 0x7FA00000
#: Maximum number of characters of a text on a page.
LONGEST_TEXT = 12_000


class TextTable:
    """A table of distinct texts, numbered in the order of their first use. Number 0 is the empty text.

    cut: number of texts that were shortened to LONGEST_TEXT
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self.cut = 0

    def number(self, text: Optional[str]) -> int:
        if not text:
            return 0
        number = self._numbers.get(text)
        if number is None:
            if len(text) > LONGEST_TEXT:
                self.cut += 1
                return self.number(f"{text[: LONGEST_TEXT - 20]}… ({len(text)} characters)")
            number = self._numbers[text] = len(self._numbers)
        return number

    def __len__(self) -> int:
        return len(self._numbers)

    def texts(self) -> list[str]:
        return list(self._numbers)


def front_coded(texts: Iterable[str]) -> list[Any]:
    """Return the texts as [common, suffix, …], as described at the top of this file."""
    out: list[Any] = []
    before = ""
    for text in texts:
        common = _common(before, text)
        out += (common, text[common:])
        before = text
    return out


def _common(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts, in characters.

    The prefix ends before the first character above U+D7FF, so that characters are UTF-16 units.
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    if not first[:low].isascii():
        return next((index for index, character in enumerate(first[:low]) if character > "\ud7ff"), low)
    return low


class ColumnPack:
    """A builder of the encoded columns of a page."""

    def __init__(self) -> None:
        self._columns: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def texts(self, name: str, texts: Iterable[str]) -> None:
        self._add(name, "texts", json.dumps(front_coded(texts), separators=(",", ":")).encode())

    def numbers(self, name: str, values: Sequence[int]) -> None:
        """Add numbers from 0 to 2**32 - 1, in as many bytes as the largest needs."""
        import numpy as np

        array = np.asarray(values, dtype=np.uint32)
        largest = int(array.max()) if array.size else 0
        width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
        self._add(name, f"u{width}", _planes(array.astype(f"<u{width}")))

    def floats(self, name: str, values: Sequence[Optional[float]]) -> None:
        """Add numbers as float32; None: unknown."""
        import numpy as np

        is_known = np.array([value is not None for value in values], dtype=bool)
        with np.errstate(all="ignore"):
            array = np.array([0.0 if value is None else value for value in values], dtype=np.float64).astype("<f4")
        bits = array.view("<u4")
        bits[np.isnan(array)] = 0x7FC00000
        bits[~is_known] = NULL
        self._add(name, "f4", _planes(array))

    def doubles(self, name: str, values: Sequence[Optional[float]]) -> None:
        """Add numbers of at least 0 as float64, such as counts and sizes; None: unknown."""
        import numpy as np

        array = np.array([-1.0 if value is None else float(value) for value in values], dtype="<f8")
        self._add(name, "f8", _planes(array))

    def packed(self, head: dict[str, Any]) -> str:
        """Return head and columns, gzipped and as base64."""
        text = json.dumps({**head, "columns": self._columns}, separators=(",", ":"), allow_nan=False).encode()
        content = b"".join((len(text).to_bytes(4, "little"), text, *self._parts))
        return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")

    def _add(self, name: str, kind: str, content: bytes) -> None:
        self._columns.append({"name": name, "kind": kind, "bytes": len(content)})
        self._parts.append(content)


def _planes(array: np.ndarray) -> bytes:
    import numpy as np

    return array.view(np.uint8).reshape(-1, array.itemsize).T.tobytes() if array.size else b""
