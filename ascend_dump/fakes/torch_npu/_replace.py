"""Attributes that are set for the duration of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["replace"]

_ABSENT = object()


@contextlib.contextmanager
def replace(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, given as owner, name and value, for the duration of the block."""
    with contextlib.ExitStack() as undo:
        for owner, name, value in attributes:
            undo.callback(_put, owner, name, owner.__dict__.get(name, _ABSENT))
            setattr(owner, name, value)
        yield


def _put(owner: Any, name: str, value: Any) -> None:
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in owner.__dict__:
        delattr(owner, name)
