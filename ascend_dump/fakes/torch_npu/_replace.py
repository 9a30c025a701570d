"""A context manager that sets attributes for the duration of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["replace"]

_ABSENT = object()


@contextlib.contextmanager
def replace(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes for the duration of the block. attributes: tuples of owner, name and value.

    At the end an attribute gets its old value back; one that the owner itself did not have is deleted.
    """
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
