"""JSON documents: one per command, with a versioned schema, readable by any JSON parser."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

__all__ = ["VERSION", "plain", "write_document"]

#: The version in the schemas of all documents. It increases when a field is removed or its meaning changes.
VERSION = 1


def plain(value: Any) -> Any:
    """Convert a value to the types of JSON: NaN, Inf and paths to text, complex numbers to [re, im].

    The texts for NaN and Inf are "NaN", "Infinity" and "-Infinity", which float() reads back.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _non_finite(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def write_document(out: TextIO, verb: str, fields: Mapping[str, Any]) -> None:
    """Write a document. If the value of a field is an iterator, its items are written one by one as they arrive.

    Fields are written in their order. A value that is known only after an earlier iterator has ended, such as a total,
    is passed as a function without arguments.
    """
    out.write(f'{{"schema": "ascend-dump/{verb}/{VERSION}"')
    for name, value in fields.items():
        out.write(f",\n {json.dumps(name)}: ")
        if isinstance(value, Iterator):
            lead = "["
            for item in value:
                out.write(f"{lead}\n  {_encode(item)}")
                lead = ","
            out.write("[]" if lead == "[" else "\n ]")
        else:
            out.write(_encode(value() if callable(value) else value))
    out.write("}\n")


def _encode(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False)


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
