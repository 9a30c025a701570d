"""Follow the rows of an all_to_all of one tensor, of which each rank sends another number of rows to each member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.ranks.collective_calls import CallPart
from ascend_dump.common.units import counted
from ascend_dump.errors import NotSupported

if TYPE_CHECKING:
    import numpy as np

__all__ = ["other_room", "received_rows", "sent_rows"]


def sent_rows(part: CallPart) -> Sequence[int]:
    """Return the number of rows that a rank sends to each member; empty if it is not recorded, or the same for all.

    Raises NotSupported if the dump has only the beginning of these numbers.
    """
    return _rows(part, "input_split_sizes")


def _rows(part: CallPart, name: str) -> Sequence[int]:
    arguments = part.first.arguments
    sizes = () if arguments is None else arguments.values.get(name, ())
    if not isinstance(sizes, (list, tuple)):
        raise NotSupported(f"the dump has only the beginning of its {name}: {sizes}")
    return sizes


def other_room(part: CallPart, splits: Mapping[int, Sequence[int]]) -> Optional[str]:
    """Return the reason if a rank has room for another number of rows than a member sends to it; else None.

    Some backends complete such a call and leave rows unset.

    splits: the numbers of rows that each member sends
    """
    members = part.members
    room = _rows(part, "output_split_sizes")
    position = members.index(part.rank)
    for member, rows in zip(members, room if len(room) == len(members) else ()):
        sent = splits[member]
        if len(sent) == len(members) and sent[position] != rows:
            start = f"{part.outputs[0].label} of rank {part.rank} has room for {counted(rows, 'row')} of rank {member}"
            return f"{start}, which sends {sent[position]}; {part.named}"
    return None


def received_rows(
    inputs: Mapping[int, Sequence[np.ndarray]],
    splits: Mapping[int, Sequence[int]],
    members: tuple[int, ...],
    rank: int,
) -> dict[int, np.ndarray]:
    """Return the rows that a rank has to receive, by sender.

    inputs  the one tensor that each member sends
    splits  the numbers of rows that each member sends to each member; empty if all are the same

    Raises NotSupported if the numbers do not add up to the rows of the tensor.
    """
    position = members.index(rank)
    chunks = {}
    for member in members:
        [array], rows = inputs[member], splits[member]
        if not rows and len(array) % len(members) == 0:
            rows = [len(array) // len(members)] * len(members)
        if len(rows) != len(members) or sum(rows) != len(array):
            raise NotSupported(f"the parts that rank {member} sends have {sum(rows)} rows of {len(array)}")
        chunks[member] = array[sum(rows[:position]) : sum(rows[: position + 1])]
    return chunks
