"""Typed reads of a JSON object whose values may be of any type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["encode", "items_of", "objects_of", "text_of", "texts_of"]


def text_of(holder: Mapping[str, Any], key: str, default: str = "") -> str:
    """The text at `key`; absent, empty and other types read as the default, as adump reads them."""
    value = holder.get(key)
    return value if isinstance(value, str) and value else default


def texts_of(holder: Mapping[str, Any], key: str) -> list[str]:
    """The texts of an array of string; empty when absent or of another type."""
    found = holder.get(key)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def objects_of(holder: Mapping[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    """The objects of an array of objects with their indices."""
    found = holder.get(key)
    return (
        [(index, item) for index, item in enumerate(found) if isinstance(item, dict)] if isinstance(found, list) else []
    )


def items_of(dump: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The usable items of `dump_list` with their indices."""
    return objects_of(dump, "dump_list")


def encode(text: str) -> bytes:
    """The bytes CANN counts and hands to the system; takes any Python text."""
    return text.encode("utf-8", "surrogatepass")
