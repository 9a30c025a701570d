"""Find the byte range that the hash of a record covers, and the position of its tensor in that range."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Optional

from ascend_dump.dump_format._layout import Line

__all__ = ["StoredView", "content_of", "view_of"]


class StoredView(NamedTuple):
    """The position and layout of a tensor in the byte range that the hash of its record covers.

    Several records may share the hash and the range, but have different parts of it. So two tensors are known to be
    equal only if hash, type, shape, `blob_offset` and `stored_stride` are equal.

    blob, blob_nbytes  start and size of the range in the shard, in bytes. None if the tensor is not stored: the hash
                       covers the tensor's own range of memory then
    blob_offset        bytes from the start of the range to element 0
    stored_stride      strides of the stored tensor, in elements
    """

    blob: Optional[int]
    blob_nbytes: Optional[int]
    blob_offset: int
    stored_stride: tuple[int, ...]


def view_of(line: Line) -> StoredView:
    strides = line.stride if line.stored_stride is None else line.stored_stride
    if line.blob is None:
        return StoredView(None, None, 0, strides)
    begin, size = line.blob
    return StoredView(begin, size, line.offset - begin, strides)


def content_of(line: Line) -> Optional[tuple[Hashable, ...]]:
    """Return the value of `Record.content`: lines with equal values have equal tensors. None if it is not known."""
    if not line.hash or line.skipped:
        return None
    view = view_of(line)
    return (line.hash, line.dtype, line.shape, view.blob_offset, view.stored_stride)
