"""The state of a storage of the program: the byte ranges and views that are stored in the dump."""

from __future__ import annotations

import msgspec

from ascend_dump.writing import Payload
from ascend_dump_torch.memory.layouts import ViewLayout

__all__ = ["RecordedView", "StorageState"]


class RecordedView(msgspec.Struct, eq=False, gc=False):
    """Values to record a tensor again: its payload, and the fields of its `Line` that depend on the tensor only."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    device: str
    stride: tuple[int, ...]
    first: int
    storage: int
    address: int
    storage_nbytes: int
    version: int
    offset: int
    payload: Payload


class StorageState(msgspec.Struct, eq=False, gc=False):
    """A storage of the program, and the byte ranges of its current version that are stored in the dump.

    key            address of the storage object
    handle         a weak reference to the storage: PyTorch reuses the address only after this reference is freed
    number         number of the storage in the records, -1 if it has none yet
    unseen_writes  True if the memory may be written unobserved, so that it is read each time
    unset          True if the storage was allocated uninitialized, and no write was observed since
    infinite       True if an operator computed Inf (not as a mask) and wrote it into this storage
    in_flight      byte ranges (begin, end) that unfinished collectives write
    ranges         payloads of the stored byte ranges, by (begin, end, stored dtype)
    views          the recorded fields of each tensor on the storage, by the tensor's layout
    pending        queued payloads of any version that may still refer to this memory
    """

    key: int
    handle: int
    number: int
    version: int = -1
    unseen_writes: bool = False
    unset: bool = False
    infinite: bool = False
    in_flight: tuple[tuple[int, int], ...] = ()
    ranges: dict[tuple[int, int, str], Payload] = {}
    views: dict[ViewLayout, RecordedView] = {}
    pending: list[Payload] = []

    def forget_content(self) -> None:
        self.ranges.clear()
        self.views.clear()
