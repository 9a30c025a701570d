"""The process-group call to which a record of a collective operator of PyTorch belongs."""

from __future__ import annotations

from typing import Optional

import msgspec

from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import Record

__all__ = ["collective_of", "is_contribution", "is_contribution_to"]


def collective_of(record: Record) -> Optional[tuple[CollectiveCall, tuple[int, ...]]]:
    """Return the collective call of a record and the ranks of its group; None if it belongs to no valid call."""
    # Attributes are decoded on access, and few operators are collectives.
    if record.error is not None or record.rank is None or "c10d" not in record.op_type:
        return None
    attribute = record.attrs.get("collective")
    if attribute is None:
        return None
    try:
        call = msgspec.convert(attribute, CollectiveCall)
        return call, call.members
    except (msgspec.ValidationError, ValueError):
        return None


def is_contribution(record: Record) -> Optional[bool]:
    """Return True if an input is data that its rank contributes to a collective call; None if it belongs to no call."""
    collective = collective_of(record)
    return None if collective is None else is_contribution_to(record, collective[0])


def is_contribution_to(record: Record, call: CollectiveCall) -> bool:
    """Return True if an input is data that its rank contributes to the call.

    False for a tensor that the operator only writes to, and for ranks other than the root of a broadcast or scatter.
    """
    if call.kind == "recv" or (call.kind in ("broadcast", "scatter") and call.root not in (None, record.rank)):
        return False
    return not is_unread(record)
