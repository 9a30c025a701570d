"""Names of operations in each framework, from the file `operators.json`."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["continues", "is_source", "is_view", "operation"]


class _Names(msgspec.Struct, forbid_unknown_fields=True):
    """The file.

    views       operations that return the elements of their input in another shape, order, type or memory
    sources     operations that bring data into a program and compute nothing
    continues   operations that another framework fuses with the one before
    same        names of one operation
    """

    about: str
    views: frozenset[str]
    sources: frozenset[str]
    continues: dict[str, frozenset[str]]
    same: dict[str, frozenset[str]]


@functools.lru_cache(maxsize=1)
def _names() -> _Names:
    return msgspec.json.decode((Path(__file__).parent / "operators.json").read_bytes(), type=_Names)


@functools.lru_cache(maxsize=1)
def _operations() -> dict[str, str]:
    return {name: operation for operation, names in _names().same.items() for name in names}


@functools.lru_cache(maxsize=4096)
def operation(op_type: str) -> str:
    """Return the name that an operation has in all frameworks here; the operator's own name if it is unknown."""
    name = operator_class(op_type)
    return _operations().get(name, name)


@functools.lru_cache(maxsize=4096)
def is_view(op_type: str) -> bool:
    return operator_class(op_type) in _names().views


@functools.lru_cache(maxsize=4096)
def is_source(op_type: str) -> bool:
    return operator_class(op_type) in _names().sources


def continues(op_type: str) -> frozenset[str]:
    """Return the operators that other frameworks fuse with an operator of this type if it directly follows them."""
    return _names().continues.get(operator_class(op_type), frozenset())
