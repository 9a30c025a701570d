"""Read values of an expected type from a JSON object whose values may have any type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["encode", "items_of", "objects_of", "text_of", "texts_of"]


def text_of(holder: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return the text at `key`; the default if it is absent, empty or of another type, as in adump."""
    value = holder.get(key)
    return value if isinstance(value, str) and value else default


def texts_of(holder: Mapping[str, Any], key: str) -> list[str]:
    """Return the strings of the array at `key`; empty if it is absent or of another type."""
    items = holder.get(key)
    return [text for text in items if isinstance(text, str)] if isinstance(items, list) else []


def objects_of(holder: Mapping[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects in the array at `key`, each with its index."""
    items = holder.get(key)
    return (
        [(index, item) for index, item in enumerate(items) if isinstance(item, dict)] if isinstance(items, list) else []
    )


def items_of(dump: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the items of `dump_list` that are objects, each with its index."""
    return objects_of(dump, "dump_list")


def encode(text: str) -> bytes:
    """Return the UTF-8 bytes of a text: CANN's limits count bytes. Never fails, even for unpaired surrogates."""
    return text.encode("utf-8", "surrogatepass")
