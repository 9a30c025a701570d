"""Inputs that their operator overwrites without reading, so that their recorded values mean nothing.

Source: the schemas of PyTorch 2.13 (`c10d/Ops.cpp`, FSDP2). In operators of c10d, arguments that are written are named
`output`, `output_tensor`, `output_tensors`, `output_lists` or `outputs`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ascend_dump.dump_format import OVERWRITES_FIRST

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Record

__all__ = ["has_unread_inputs", "is_unread", "unread_rows"]

_COLLECTIVES, _WRITTEN = "c10d::", "output"
#: An operator of FSDP2, and the argument into which it copies the part of this rank.
_GATHERS, _GATHERED = "fsdp::all_gather_copy_in", "all_gather_output"
#: An operator that copies a list of tensors, and the argument into which it copies them.
_COPIES, _COPIED = "aten::_foreach_copy_", "self"


@functools.lru_cache(maxsize=4096)
def has_unread_inputs(op_type: str) -> bool:
    """Return True if `is_unread` is true of some input of operators of this type."""
    return op_type in OVERWRITES_FIRST or op_type.startswith(_COLLECTIVES) or op_type in (_COPIES, _GATHERS)


def is_unread(record: Record) -> bool:
    """Return True if a record is an input that its operator overwrites without reading."""
    if record.io != "input":
        return False
    op_type = record.op_type
    if record.index == 0 and op_type in OVERWRITES_FIRST:
        return True
    if op_type.startswith(_COLLECTIVES):
        return (record.argument or "").startswith(_WRITTEN)
    if op_type == _COPIES:
        return (record.argument or "").startswith(_COPIED)
    return op_type == _GATHERS and record.argument == _GATHERED


def unread_rows() -> polars.Expr:
    """Return an expression for the rows of a catalog that are unread inputs.

    Catalogs have no argument names, so only the first inputs of operators in OVERWRITES_FIRST are found.
    """
    import polars as pl

    return (pl.col("io") == "input") & (pl.col("index") == 0) & pl.col("op_type").is_in(sorted(OVERWRITES_FIRST))
