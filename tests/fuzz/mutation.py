"""Mutants: what a broken disk, a foreign tool or an enemy may make of a file."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

__all__ = ["LARGEST", "mutate"]

#: Bytes of the largest mutant.
LARGEST = 1 << 20

_INTEGERS = (0, 1, 2, 63, 64, 65, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62)
_SIZES = {1: "b", 2: "h", 4: "i", 8: "q"}
_DIGITS = b"9" * 400
_NUMBERS = (
    *(b"NaN", b"-Infinity", b"1e400", b"-1e400", b"1e-400", b"-1", b"0", b"-0.0", b"0.1", b"1_0", b"0x10"),
    *(_DIGITS, b"9" * 5000, b"-" + _DIGITS, _DIGITS + b"." + _DIGITS, b"1e999999999", b"9223372036854775808"),
    *(b"18446744073709551616", b"\xd9\xa3", b"", b"null", b"true", b'"3"', b"[]", b"{}", b"4611686018427387904"),
)
_TEXTS = (
    *(b"", b"\\u0000", b"\\ud800", b"../../../etc/passwd", b"/dev/zero", b"a" * 70_000, b"\xff\xfe", b"\\", b"%s%n"),
    *(b"$HOME", b"~nobody/x", b"re:(a+)+$", b"0-9999999999", b"0|" * 300, b"\n", b"\x1b[31m", b"*" * 500),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64, 10**400, -(10**400), 1e300, float("nan"), float("inf")),
    *("", "0", "\x00", "\ud800", "../x", "a" * 70_000, "9" * 5000, [], {}, [[]], [None], {"": None}, [0] * 3000),
)


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A mutant of a file. others: files whose parts it may take."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        data = draw.choice(_WAYS)(data, others, draw)[:LARGEST]
    return data


def _flip(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    out = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        out[_place(out, draw)] ^= 1 << draw.randrange(8)
    return bytes(out)


def _set(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    out = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 2, 4))):
        out[_place(out, draw)] = draw.choice((0, 1, 0x0A, 0x22, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    return bytes(out)


def _integer(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A field of some width, as if it were a length or an offset."""
    width = draw.choice(tuple(_SIZES))
    value = draw.choice((*_INTEGERS, len(data), len(data) + 1, max(0, len(data) - 1)))
    if draw.random() < 0.2:
        value = -value
    field = struct.pack(draw.choice("<>") + _SIZES[width].upper(), value % (1 << (8 * width)))
    at = _place(data, draw)
    return data[:at] + field + data[at + width :]


def _varint(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    at = _place(data, draw)
    field = b"\xff" * draw.choice((1, 3, 4, 8, 9, 11)) + draw.choice((b"\x01", b"\x7f", b""))
    return data[:at] + field + data[at + draw.choice((0, 1)) :]


def _cut(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)] if draw.random() < 0.8 else data[draw.randrange(len(data) + 1) :]


def _remove(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    at, until = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:at] + data[until:]


def _splice(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(others) if others else data
    at, until = sorted(draw.randrange(len(other) + 1) for _ in range(2))
    place = draw.randrange(len(data) + 1)
    return data[:place] + other[at:until] + data[place + draw.choice((0, until - at)) :]


def _repeat(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    block = data[at : at + draw.choice((1, 2, 8, 64, 500))] or b"\0"
    most = LARGEST // len(block)
    return data[:at] + block * min(most, draw.choice((2, 3, 10, 100, 1000, most) if draw.random() < 0.1 else (2, 9)))


def _lines(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = draw.randrange(len(lines))
    many = [lines[at]] * min(300, LARGEST // len(lines[at] or b"\n") + 1)
    lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, many, [draw.choice(lines)], [b"\n", lines[at]]))
    return b"".join(lines)


def _number(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    return _replace(_NUMBER, data, draw.choice(_NUMBERS), draw)


def _text(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    return _replace(_QUOTED, data, b'"%s"' % draw.choice(_TEXTS), draw)


def _nest(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A value within so many others that a reader which calls itself falls over."""
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"a.", b""), (b"\x0a\x7f", b"")))
    depth = draw.choice((10, 990, 5000, 50_000))
    nested = opening * depth + b"0" + closing * draw.choice((depth, depth, 0))
    return _replace(draw.choice((_NUMBER, _QUOTED)), data, nested, draw) if draw.random() < 0.8 else nested


def _document(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Another value, name or place within a document of JSON, or within one line of it."""
    lines = data.splitlines() if b"\n{" in data else [data]
    at = draw.randrange(len(lines)) if lines else 0
    try:
        document = json.loads(lines[at])
        lines[at] = json.dumps(_change(document, draw), ensure_ascii=draw.random() < 0.8).encode(
            "utf-8", "surrogatepass"
        )
    except (ValueError, IndexError, RecursionError):
        return _flip(data, others, draw)
    return b"\n".join(lines)


def _change(value: Any, draw: random.Random) -> Any:
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.1:
        return draw.choice(_VALUES)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return draw.choice(([*value[:at], _change(value[at], draw), *value[at + 1 :]], value[:at], value * 3))
    name = draw.choice(list(value))
    way = draw.random()
    if way < 0.7:
        return {**value, name: _change(value[name], draw)}
    rest = {key: one for key, one in value.items() if key != name}
    if way < 0.8:
        return rest
    changed = draw.choice((name.upper(), name + " ", name[:-1], "", "x" * 5000, name.swapcase(), "__class__"))
    return {**rest, changed: value[name]}


def _inside(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A change behind a checksum or a length that is made to fit again."""
    if data[:2] == b"PK":
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = {name: archive.read(name) for name in archive.namelist()[:20]}
        except Exception:  # a mutant of a mutant; zipfile raises whatever it likes
            return _flip(data, others, draw)
        name = draw.choice(list(members) or [""])
        members[name] = draw.choice(_SIMPLE)(members.get(name, b""), list(members.values()), draw)[:LARGEST]
        out = io.BytesIO()
        with zipfile.ZipFile(
            out, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        ) as new:
            for one, content in members.items() if all(members) else ():
                new.writestr(one, content)
        return out.getvalue()
    if data[:6] == b"\x93NUMPY" and len(data) > 10:
        end = 10 + int.from_bytes(data[8:10], "little")
        header = draw.choice(_SIMPLE)(data[10:end], others, draw)[: 2**16 - 1]
        return data[:8] + len(header).to_bytes(2, "little") + header + data[end:]
    if data[8:9] == b"{" and len(data) > 10:  # safetensors
        end = 8 + int.from_bytes(data[:8], "little")
        header = draw.choice(_SIMPLE)(data[8:end], others, draw)
        return len(header).to_bytes(8, "little") + header + data[end:]
    return draw.choice(_SIMPLE)(data, others, draw)


def _place(data: Sequence[int], draw: random.Random) -> int:
    """Somewhere, oftener in the header."""
    return draw.randrange(max(1, min(len(data), 200) if draw.random() < 0.5 else len(data)))


def _replace(pattern: re.Pattern[bytes], data: bytes, new: bytes, draw: random.Random) -> bytes:
    found = list(pattern.finditer(data[: 1 << 16]))
    if not found:
        return data + new
    one = draw.choice(found)
    return data[: one.start()] + new + data[one.end() :]


_SIMPLE = (_flip, _set, _integer, _varint, _cut, _remove, _splice, _repeat, _number, _text, _nest, _lines, _document)
_WAYS = (*_SIMPLE, _number, _document, _document, _inside, _inside)
