"""Find the offsets of the payloads in a dump file. The header of the file has only their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

__all__ = ["Blob", "Placed", "place_blobs"]


class Blob(NamedTuple):
    """A payload: `length` bytes at `offset`. error: the reason why it is incomplete; "" if it is complete."""

    offset: int
    length: int
    error: str = ""


class Placed(NamedTuple):
    """The payloads in file order. end: the end of the last one according to the header; None if it is unknown."""

    blobs: list[Blob]
    end: Optional[int]


def place_blobs(sizes: Sequence[int], null: Sequence[bool], start: int, file_size: int) -> Placed:
    """Place the payloads that follow the header, in file order, from their sizes in the header.

    `null` marks entries whose address in the header is 0. The device writes no payload for those
    but keeps their size in the header (aicpu_schedule dump_task), while writers that record no
    addresses write every payload. The length of the file shows which of the two is true:

    - it equals the sum of all sizes: all payloads are in the file;
    - it equals the sum of the sizes without the null entries: these have no payload;
    - neither, and all or no addresses are null: all payloads should be there, and the file is cut off or too long;
    - neither, and some addresses are null: payloads before the first null entry can be placed, the others cannot.

    (assumption cann.payload_order)
    (assumption cann.null_address)
    """
    available = file_size - start
    declared = sum(sizes)
    present = sum(size for size, absent in zip(sizes, null) if not absent)
    if available == declared:
        return _place(sizes, start, file_size)
    if available == present:
        return _place([0 if absent else size for size, absent in zip(sizes, null)], start, file_size)
    if declared == present or not any(size and not absent for size, absent in zip(sizes, null)):
        return _place(sizes, start, file_size)
    first = next(number for number, absent in enumerate(null) if absent and sizes[number])
    placed = _place(sizes[:first], start, file_size)
    error = (
        "its position in the file is unknown: entries with a null address may or may not have a payload, but "
        f"in neither case the file would have {file_size} bytes"
    )
    lost = Blob(min(start + sum(sizes[:first]), file_size), 0, error)
    return Placed(placed.blobs + [lost] * (len(sizes) - first), None)


def _place(sizes: Sequence[int], start: int, file_size: int) -> Placed:
    blobs = []
    offset = start
    for size in sizes:
        available = max(0, min(size, file_size - offset))
        error = "" if available == size else f"the header says {size} bytes, the file has {available} of them"
        blobs.append(Blob(min(offset, file_size), available, error))
        offset += size
    return Placed(blobs, offset)
