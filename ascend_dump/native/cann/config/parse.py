"""Read and parse an acl.json like CANN, with the same limits and errors.

Sources: acl `json_parser` (limits of the file, nesting counted in the undecoded text, error codes) and nlohmann::json's
strict parser (no comments; UTF-8 only; a byte-order mark is skipped; if a key is repeated, its last value is used;
numbers must fit into a double; escapes must form whole characters).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.storage.files import NotRegularFile, open_regular

__all__ = ["MAX_BYTES", "MAX_DEPTH", "JsonRefusal", "Parsed", "Source", "parse_text", "read_config", "read_source"]

Source = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any]]

MAX_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 10

_BOM = b"\xef\xbb\xbf"
#: An escape in a JSON text. In valid JSON every backslash starts an escape, so the text need not be split into tokens.
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class JsonRefusal(NamedTuple):
    """A refusal of acl: its return code, the error manager's code ("" if it reports none), and the reason."""

    acl_error: int
    native: str
    reason: str


class Parsed(NamedTuple):
    """A parsed configuration.

    value       the JSON value
    duplicates  the paths of repeated keys
    empty       True if the file has zero bytes: acl accepts it and configures nothing
    refusal     acl's refusal; None if acl accepts the file
    """

    value: Any = None
    duplicates: tuple[str, ...] = ()
    empty: bool = False
    refusal: Optional[JsonRefusal] = None


class _Repeated(dict[str, Any]):
    """A JSON object whose text has a key several times."""

    keys_given_twice: tuple[str, ...] = ()


def read_source(source: Source) -> Parsed:
    """Read a configuration from a path, from a text, or from its decoded value."""
    if isinstance(source, Mapping):
        return Parsed(dict(source))
    if isinstance(source, bytes) or (isinstance(source, str) and _is_text(source)):
        return parse_text(source)
    return read_config(source)


def _is_text(source: str) -> bool:
    return not source or "\n" in source or source.lstrip("\ufeff \t\r")[:1] in ("{", "[")


def read_config(path: Union[str, os.PathLike[str]]) -> Parsed:
    """Read and parse a configuration file within acl's limits. A refusal is returned, not raised.

    (assumption acl.missing_file)
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                return _refused(AclError.INVALID_FILE, "", f"it has {size} bytes, the limit is {MAX_BYTES}")
            data = file.read(MAX_BYTES + 1)
    except NotRegularFile:
        return _refused(AclError.INVALID_FILE, "", "it is not a regular file")
    except OSError as error:
        return _refused(AclError.INVALID_FILE, "", f"it cannot be read: {error}")
    return parse_text(data)


def parse_text(text: Union[str, bytes]) -> Parsed:
    """Parse the content of a configuration file as acl and nlohmann::json do. (assumption acl.deep_file)"""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if not data:
        return Parsed(empty=True)
    # Both acl, which counts the nesting, and nlohmann's parser stop at a zero byte.
    data = data.split(b"\0", 1)[0]
    objects, arrays = _depths(data)
    if max(objects, arrays) > MAX_DEPTH:
        reason = f"objects are nested {objects} levels deep and arrays {arrays}, the limit is {MAX_DEPTH}"
        return _refused(AclError.PARSE_FILE, "", reason)
    try:
        decoded = data[len(_BOM) :].decode() if data.startswith(_BOM) else data.decode()
        _check_escapes(decoded)
        value = json.loads(
            decoded,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_number,
            parse_int=_integer,
        )
        duplicates: list[str] = []
        return Parsed(_plain(value, "", duplicates), tuple(duplicates))
    except UnicodeDecodeError as error:
        return _refused(AclError.INVALID_DUMP_CONFIG, "EP0004", f"it is not UTF-8: {error}")
    except RecursionError:
        # Possible in spite of the check above, because closing brackets inside strings reduce that count.
        return _refused(AclError.INVALID_DUMP_CONFIG, "EP0004", "it is nested too deep")
    except ValueError as error:
        return _refused(AclError.INVALID_DUMP_CONFIG, "EP0004", str(error))


def _refused(acl_error: int, native: str, reason: str) -> Parsed:
    return Parsed(refusal=JsonRefusal(acl_error, native, reason))


def _depths(data: bytes) -> tuple[int, int]:
    """Return the greatest depths of objects and of arrays. Brackets inside strings count too, as in acl."""
    return _depth(data, b"{}"), _depth(data, b"[]")


def _depth(data: bytes, brackets: bytes) -> int:
    opening = brackets[0]
    depth = deepest = 0
    for mark in data.translate(None, bytes(set(range(256)) - set(brackets))):
        if mark == opening:
            depth += 1
            if depth > deepest:
                deepest = depth
        elif depth:
            depth -= 1
    return deepest


def _check_escapes(text: str) -> None:
    """Raise ValueError for half a surrogate pair, which Python's JSON parser accepts."""
    high_ends = -1
    for escape in _ESCAPE.finditer(text):
        unit = int(escape[1], 16) if escape[1] else 0
        low = 0xDC00 <= unit <= 0xDFFF
        if low != (escape.start() == high_ends):
            raise ValueError(f"half a surrogate pair at character {escape.start()}")
        high_ends = escape.end() if 0xD800 <= unit <= 0xDBFF else -1
    if high_ends != -1:
        raise ValueError(f"half a surrogate pair at character {high_ends}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    counts = Counter(name for name, _ in pairs)
    repeated = _Repeated(values)
    repeated.keys_given_twice = tuple(name for name in values if counts[name] > 1)
    return repeated


def _plain(value: Any, where: str, duplicates: list[str]) -> Any:
    """Return a copy with a dict in place of each `_Repeated`, and add the paths of repeated keys to `duplicates`."""
    if isinstance(value, dict):
        if isinstance(value, _Repeated):
            duplicates.extend(_join(where, name) for name in value.keys_given_twice)
        return {name: _plain(inner, _join(where, name), duplicates) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, f"{where}[{index}]", duplicates) for index, inner in enumerate(value)]
    return value


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


def _integer(text: str) -> Union[int, float]:
    # nlohmann::json converts an integer of more than 64 bits to a double. Doing the same also avoids Python's slow
    # conversion of very long integers.
    if len(text) <= 20:
        value = int(text)
        if -(2**63) <= value < 2**64:
            return value
    return _number(text)
