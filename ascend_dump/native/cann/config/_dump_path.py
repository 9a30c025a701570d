"""Interpret dump paths like adump and GE: a directory of this machine, or the address of another machine and a path."""

from __future__ import annotations

import os
import re

from ascend_dump.native.cann.config._access import encode
from ascend_dump.native.cann.config.keys import MAX_PATH_BYTES

__all__ = ["has_plain_characters", "is_ip_path", "place_of"]

_WHITELIST = re.compile(rb"[A-Za-z0-9\-=\[\];\\,./!@#$%^&*()_+{}:?]+")
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def is_ip_path(path: str) -> bool:
    """Return True if the text before the first colon is an IPv4 address and there is text after the colon."""
    address, colon, path_part = path.partition(":")
    if not colon or not path_part:
        return False
    parts = address.split(".")
    if parts[-1] == "":
        parts.pop()
    if len(parts) != 4:
        return False
    for part in parts:
        number = _STOI.match(part)
        if number is None or not 0 <= int(number[1][:MAX_PATH_BYTES]) <= 255:
            return False
    return True


def has_plain_characters(path: str) -> bool:
    """Return True if a path has only characters that GE accepts. adump requires them in a path after an address."""
    return _WHITELIST.fullmatch(encode(path)) is not None


def place_of(path: str, cwd: str, planned: str) -> bytes:
    """Return the directory that a rule has to examine for `path`: `path` itself.

    If `path` is the planned directory, which is created later, return its nearest existing parent.
    """
    # CANN reads a C string, which ends at its first zero byte.
    encoded = os.path.join(encode(cwd), encode(path).split(b"\0", 1)[0])
    if path and path == planned:
        while not os.path.isdir(encoded) and encoded != os.path.dirname(encoded):
            encoded = os.path.dirname(encoded)
        encoded = os.path.realpath(encoded)
    return encoded
