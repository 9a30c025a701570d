"""Collective operators of PyTorch: the call of the process group that a record belongs to."""

from __future__ import annotations

from typing import Optional

import msgspec

from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import Record

__all__ = ["collective_of", "is_given", "is_put_in"]


def collective_of(record: Record) -> Optional[tuple[CollectiveCall, tuple[int, ...]]]:
    """What a record tells of its call, and the ranks of the group; None where it tells none."""
    # Attributes are made when they are asked for, and few operators are collectives.
    if record.error is not None or record.rank is None or "c10d" not in record.op_type:
        return None
    told = record.attrs.get("collective")
    if told is None:
        return None
    try:
        call = msgspec.convert(told, CollectiveCall)
        return call, call.members
    except (msgspec.ValidationError, ValueError):
        return None


def is_given(record: Record) -> Optional[bool]:
    """Whether an input is what its rank puts into a call; None where it belongs to none."""
    found = collective_of(record)
    return None if found is None else is_put_in(record, found[0])


def is_put_in(record: Record, told: CollectiveCall) -> bool:
    """Whether an input is what the rank puts in: operators of c10d are given the tensors that they write to, too."""
    if told.kind == "recv" or (told.kind in ("broadcast", "scatter") and told.root not in (None, record.rank)):
        return False
    return not is_unread(record)
