"""Readers with a fault each, which a campaign must find. In a module of their own, because workers import them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from subjects import Subject

from ascend_dump import CorruptDump

__all__ = ["PLANTED"]

_WHOLE = b'{"name": 1}'


def _typed(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        raise CorruptDump("changed", path=path)


def _untyped(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        raise KeyError("name")


def _slow(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        end = time.process_time() + 1.05
        while time.process_time() < end:
            pass


def _large(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        bytearray(b"\1") * (400 << 20)


def _endless(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        time.sleep(60)


def _deadly(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        os._exit(3)


def _deep(path: Path) -> None:
    if path.read_bytes() != _WHOLE:
        _deep(path)


#: By what is said of each; empty for a reader without a fault.
PLANTED = {
    "": _typed,
    "KeyError at planted.py": _untyped,
    "RecursionError at planted.py": _deep,
    "took too long": _slow,
    "took too much memory": _large,
    "it hung for 8 s": _endless,
    "the process ended with 3": _deadly,
}


def planted(what: str) -> Subject:
    return Subject(what or "sound", PLANTED[what], {"a.json": _WHOLE})
