"""Create the records of tensors, and recognise tensors that are stored already without reading them.

A tensor is recognised by its storage, the number of writes to it (its version), and the byte range that it covers. Only
writes by operators that pass through PyTorch's dispatcher are observed:

- Memory that is shared (with numpy, or between processes) is read each time. PyTorch marks its storages as not
  resizable.
- Writes by other threads, and writes while our mode is disabled, may be missed. So queued bytes have a hash that is
  checked when they are stored. When a known tensor is recorded again, a sample of its bytes is compared with its
  memory. After the first difference, or while other threads run, all tensors are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Optional

import msgspec
import torch

from ascend_dump.dump_format import FREED, UNINITIALISED, UNWAITED
from ascend_dump.writing import HostWriter, Item, Line, Payload, sample_of
from ascend_dump_torch._memory import (
    ViewLayout,
    is_plain,
    layout_of,
    name_of,
    quantization,
    range_in,
    row_major,
    storages_of,
    unstorable,
)

__all__ = ["OperatorCall", "Tensors"]

#: Tensors of at most this number of bytes are copied at once, which is cheaper than tracking their memory.
_COPY_AT_ONCE = 16 * 1024
#: Number of operators between two sweeps. A sweep drops storages that were freed, see `next_operator`.
_SWEEP = 4

_expired = torch.UntypedStorage._expired
_Tensor = torch.Tensor
_strided = torch.strided


class OperatorCall(msgspec.Struct, eq=False, gc=False):
    """The fields that all records of an operator share."""

    seq: int
    op_type: str
    name: str
    time: int
    phase: str
    module: str
    source: str


class _RecordedView(msgspec.Struct, eq=False, gc=False):
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


class _StorageState(msgspec.Struct, eq=False, gc=False):
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
    views: dict[ViewLayout, _RecordedView] = {}
    pending: list[Payload] = []

    def forget_content(self) -> None:
        self.ranges.clear()
        self.views.clear()


class Tensors:
    """The storages that a capture knows, and the creation of records for tensors.

    A storage is remembered from step to step as long as all writes to it are observed.
    """

    def __init__(
        self, writer: HostWriter, *, whole: bool, rehash: bool, keep: Optional[int] = None, numbers_last: bool = False
    ) -> None:
        """Create an empty registry.

        whole         True to store each view as a payload of its own
        rehash        True to recognise no tensor by its storage, so that each is read
        keep          number of recorded steps that stay on disk, None if all do
        numbers_last  True to keep the numbers of storages from step to step
        """
        self._numbers_last = numbers_last
        self._writer = writer
        self._keep = keep
        self._steps = 0
        #: Statistics are computed per payload, so with statistics each view needs its own payload.
        self._whole = whole
        self._rehash = rehash
        self._states: dict[int, _StorageState] = {}
        self._numbered = 0
        self._operators = 0
        self._next_sweep = 0
        #: Payloads of this step that were copied or are stored in the files, by (digest, dtype, `Payload.strided`).
        self._contents: dict[tuple[bytes, str, Optional[tuple[tuple[int, ...], tuple[int, ...]]]], Payload] = {}
        #: Storages by key: those used since the last sweep, and those used between the last two sweeps.
        self._just_used: dict[int, _StorageState] = {}
        self._used: dict[int, _StorageState] = {}
        #: True if an unfinished collective may write to one of the storages.
        self.any_in_flight = False
        self._any_unset = False
        #: Threads that were started in this step. Their operators are not observed.
        self._threads: list[threading.Thread] = []
        #: True once an unobserved write was detected. Then all tensors are copied.
        self.copies_all = False
        self.new_bytes = 0

    def begin_step(self) -> None:
        """Restart the numbering of storages, and drop storages that were freed. To be called between recorded steps."""
        self._steps += 1
        # With `keep`, the bytes of earlier steps are deleted at some time, and no later record may refer to them. So
        # the stored ranges are forgotten every `keep` + 1 steps.
        forgets = self._keep is not None and self._steps % (self._keep + 1) == 0
        for state in list(self._states.values()):
            if _expired(state.handle):
                self._drop(state)
                continue
            if not self._numbers_last:
                state.number = -1
            if forgets:
                state.ranges.clear()
            state.views.clear()  # because they contain the number of the storage
        if not self._numbers_last:
            self._numbered = 0
        self._contents.clear()

    def thread_starts(self, thread: threading.Thread) -> None:
        """Copy all queued bytes, because another thread of the program is about to start and may write to them."""
        if thread.name.startswith("ascend_dump"):
            return  # our threads do not write to the program's memory; and the writer's thread would wait for itself
        for state in list(self._states.values()):
            self._secure(state)
        self._threads.append(thread)

    def _may_change_unseen(self) -> bool:
        """Return True if memory may be written unobserved at any time, so that tensors must be copied."""
        if self._threads:
            self._threads = [thread for thread in self._threads if thread.is_alive() or thread.ident is None]
        return self.copies_all or bool(self._threads)

    def next_operator(self) -> None:
        """Count an operator, and every few operators drop the handles of storages that were freed.

        A handle is a small heap block that keeps the allocator from merging the free blocks around it. Then the
        program's next large tensor needs new pages from the system, and its allocation takes up to a third longer. Most
        tensors are freed soon after their last operator, so a sweep checks the storages that were used shortly before
        the previous sweep. From time to time a sweep checks all storages.
        """
        self._operators += 1
        if self._operators % _SWEEP == 0 and self._states:
            used, self._used, self._just_used = self._used, self._just_used, {}
            if self._operators >= self._next_sweep:
                used = self._states.copy()
                self._next_sweep = self._operators + len(used)
            states = self._states
            for key, state in used.items():
                # The first test comes first, because the handle of a storage that was dropped meanwhile is invalid.
                if states.get(key) is state and _expired(state.handle):
                    self._drop(state)

    def _drop(self, state: _StorageState) -> None:
        torch.UntypedStorage._free_weak_ref(state.handle)
        del self._states[state.key]

    def forget(self) -> None:
        """Forget all storages, and copy queued bytes, because writes are no longer observed from now on."""
        states, self._states = self._states, {}
        self._used, self._just_used = {}, {}
        for state in states.values():
            self._secure(state)
            torch.UntypedStorage._free_weak_ref(state.handle)
        if not self._numbers_last:
            self._numbered = 0
        self._contents.clear()
        self.any_in_flight = False
        self._any_unset = False
        self._threads = []

    def protect(self, tensor: torch.Tensor) -> None:
        """Copy queued bytes of the tensor's memory and forget its stored ranges.

        To be called before and after the memory is written or freed.
        """
        if not self._states:
            return
        for storage in storages_of(tensor):
            self.protect_storage(storage)

    def protect_storage(self, storage: Any) -> None:
        state = self._states.get(storage._cdata)
        if state is not None:
            self._secure(state)
            state.forget_content()
            state.unset = False

    def resize_storage(self, storage: Any) -> None:
        """Do the same as `protect_storage`, before the memory of a storage is freed or reallocated."""
        self.protect_storage(storage)
        if not storage.nbytes():
            self._any_unset = True
            self._find(storage).unset = True

    def distrust(self, tensor: torch.Tensor) -> None:
        """Read the tensor's memory each time from now on, because it may be written unobserved."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)

    def distrust_storage(self, storage: Any) -> None:
        state = self._find(storage)
        self._secure(state)
        state.forget_content()
        state.unseen_writes = True
        state.unset = False

    def mark_unset(self, tensor: torch.Tensor) -> None:
        """Mark this memory as uninitialized."""
        self._any_unset = True
        for storage in storages_of(tensor):
            self._find(storage).unset = True

    def mark_infinite(self, tensor: torch.Tensor) -> None:
        """Mark this memory as containing Inf that an operator has computed."""
        for storage in storages_of(tensor):
            self._find(storage).infinite = True

    def is_infinite(self, tensor: torch.Tensor) -> bool:
        states = (self._states.get(storage._cdata) for storage in storages_of(tensor))
        return any(state is not None and state.infinite for state in states)

    def is_unset(self, tensor: torch.Tensor) -> bool:
        if not self._any_unset:
            return False
        for storage in storages_of(tensor):
            state = self._states.get(storage._cdata)
            if state is not None and state.unset:
                return True
        return False

    def set_in_flight(self, tensor: torch.Tensor, in_flight: bool) -> None:
        """Mark the tensor's memory as being written by an unfinished collective (True), or as complete (False)."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)
        if in_flight:
            self.any_in_flight = True
            for storage in storages_of(tensor):
                self._find(storage).in_flight += (range_in(tensor, storage),)
        else:
            self.settle([tensor])

    def settle(self, tensors: list[torch.Tensor]) -> None:
        """Mark collectives that write to these tensors as finished: an operator is about to use the tensors."""
        if not self.any_in_flight:
            return
        for tensor, storage, state in self._in_flight_around(tensors):
            low, high = range_in(tensor, storage)
            state.in_flight = tuple((a, b) for a, b in state.in_flight if b <= low or high <= a)

    def is_in_flight(self, tensor: torch.Tensor) -> bool:
        for part, storage, state in self._in_flight_around([tensor]):
            low, high = range_in(part, storage)
            if any(low < end and begin < high for begin, end in state.in_flight):
                return True
        return False

    def _in_flight_around(self, tensors: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Any, _StorageState]]:
        for tensor in tensors:
            for storage in storages_of(tensor):
                state = self._states.get(storage._cdata)
                if state is not None and state.in_flight:
                    yield tensor, storage, state

    def item(
        self,
        op: OperatorCall,
        tensor: torch.Tensor,
        io: str,
        index: int,
        unset: bool = False,
        copy: Optional[torch.Tensor] = None,
    ) -> Item:
        """Return the record of a tensor, with a reference to its stored bytes, or with new bytes.

        unset  True if the memory is uninitialized (`empty`), so that nothing is stored
        copy   the earlier values of the tensor, if it was overwritten
        """
        kind = type(tensor)
        if not (kind is _Tensor or is_plain(kind)) or tensor.layout is not _strided or tensor.is_nested:
            return _not_stored(op, tensor, io, index)
        storage = tensor.untyped_storage()
        version = _version_of(tensor)
        layout = layout_of(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        state = self._states.get(storage._cdata)
        # Most tensors were recorded before, unchanged: the output of one operator is the input of another.
        view = state.views.get(layout) if state is not None and state.version == version else None
        if state is None or view is None or unset or copy is not None or tensor.is_neg() or not storage.resizable():
            return self._item_of_new_view(op, tensor, storage, version, layout, io, index, unset, copy)
        if self._is_overwritten(view, storage):
            return self._item_of_new_view(op, tensor, storage, version, layout, io, index, unset, copy)
        self._just_used[state.key] = state
        return _item_of_view(op, io, index, view)

    def items_of_view(self, op: OperatorCall, tensor: torch.Tensor, view: torch.Tensor) -> Optional[list[Item]]:
        """Return the records of the input and the output of an operator that has returned a view of its only input.

        The records are those that `item` would return, but this is faster: fields that both share are determined once.
        Returns None if the input was not recorded in its current version, or if its memory is not an ordinary storage.
        """
        if tensor.layout is not _strided or view.layout is not _strided or tensor.is_nested or view.is_nested:
            return None
        if tensor.is_neg() or view.is_neg():
            return None
        storage = tensor.untyped_storage()
        state = self._states.get(storage._cdata)
        version = _version_of(tensor)
        # The versions differ for `.data`, which counts versions of its own.
        if state is None or version < 0 or not (state.version == version == _version_of(view)):
            return None
        if not storage.resizable():
            return None
        source = state.views.get(layout_of(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype))
        if source is None or view.untyped_storage()._cdata != state.key or self._is_overwritten(source, storage):
            return None
        self._just_used[state.key] = state
        layout = layout_of(view.storage_offset(), view.shape, view.stride(), view.dtype)
        returned = state.views.get(layout)
        payload = source.payload
        if returned is None:
            begin = layout.begin
            if layout.dense is None or state.ranges.get((begin, begin + layout.span, layout.dtype)) is not payload:
                output = self._item_of_new_view(op, view, storage, state.version, layout, "output", 0, False, None)
                return [_item_of_view(op, "input", 0, source), output]
            # The same bytes in another shape or order.
            returned = state.views[layout] = _RecordedView(
                layout.dtype, layout.shape, layout.nbytes, source.device, layout.stride, layout.first,
                source.storage, source.address, source.storage_nbytes, source.version, 0, payload,
            )  # fmt: skip
        elif returned.payload is not payload and self._is_overwritten(returned, storage):
            return None
        return [_item_of_view(op, "input", 0, source), _item_of_view(op, "output", 0, returned)]

    def _is_overwritten(self, view: _RecordedView, storage: Any) -> bool:
        """Return True if the memory of a recorded view was written unobserved.

        If so, the memory is read each time from now on.
        """
        payload, window = view.payload, view.payload.window
        if payload.changed or (
            window is not None and (storage.data_ptr() != view.address or window.tobytes() != payload.sample)
        ):
            self.distrust_storage(storage)
            return True
        return False

    def _item_of_new_view(
        self,
        op: OperatorCall,
        tensor: torch.Tensor,
        storage: Any,
        version: int,
        layout: ViewLayout,
        io: str,
        index: int,
        unset: bool,
        copy: Optional[torch.Tensor],
    ) -> Item:
        """Return the result of `item` for a tensor that was not recorded in its current version."""
        if tensor.is_meta or tensor._is_zerotensor():
            return _not_stored(op, tensor, io, index)
        state = self._find(storage)
        self._just_used[state.key] = state
        if state.version != version:
            state.version = version
            state.forget_content()
        shape, nbytes = layout.shape, layout.nbytes
        line = Line(
            op.seq, op.op_type, op.name, io, index, op.time, layout.dtype, shape, nbytes,
            "cpu" if tensor.is_cpu else str(tensor.device), op.phase, op.module, op.source,
            layout.stride, layout.first, state.number, storage.data_ptr(), storage.nbytes(), version,
        )  # fmt: skip
        if tensor.is_quantized:
            line.quantization = quantization(tensor)
        if io == "input" and tensor.requires_grad and _is_leaf(tensor):
            line.requires_grad = True  # set in the first record of the step only; later records come from `views`
        if not nbytes:
            return Item(line, None)
        if state.in_flight and self.is_in_flight(tensor):
            line.skipped = UNWAITED
            return Item(line, None)
        if unset:
            line.skipped = UNINITIALISED
            return Item(line, None)
        if copy is not None:
            return self._item_of_copy(copy, line)
        return self._stored(tensor, storage, state, layout, line)

    def _stored(self, tensor: torch.Tensor, storage: Any, state: _StorageState, layout: ViewLayout, line: Line) -> Item:
        """Return the record of a tensor with its bytes: an already stored range of its storage, or a new payload."""
        dtype, begin, span, dense = layout.dtype, layout.begin, layout.span, layout.dense
        if begin + span > line.storage_nbytes:
            line.skipped = FREED
            return Item(line, None)
        plain = not (tensor.is_neg() or (layout.is_complex and tensor.is_conj()))
        # `resizable` is False for memory that is shared with numpy, another process or a file.
        trusted = plain and not state.unseen_writes and storage.resizable() and not self._rehash
        if trusted:
            stored = state.ranges.get((begin, begin + span, dtype)) if dense is not None else None
            if stored is None and not self._whole:
                for (low, high, _), around in state.ranges.items():
                    if low <= begin and begin + span <= high:
                        stored, line.offset = around, begin - low
                        break
            if stored is not None and (stored.changed or not _is_sample(stored, line.address + begin - line.offset)):
                self.distrust_storage(storage)
                trusted, stored, line.offset = False, None, 0
            if stored is not None:
                return _keep_view(state, layout, line, stored)
        if not plain or span > layout.nbytes or (dense is None and not tensor.is_cpu):
            # The elements are not dense in memory, or their values are not the bytes in memory (conjugated, negated).
            return self._item_of_copy(tensor, line)
        if tensor.is_cpu:
            payload = Payload(storage, line.address + begin, span, dtype, dense or (span // layout.itemsize,))
            if dense is None and self._whole:
                payload.strided = (layout.shape, tuple(s * layout.itemsize for s in line.stride))
            if not trusted:
                payload = self._copied(payload)
            elif self._may_change_unseen():
                payload.take_sample()
                payload.copy()
                self.new_bytes += span
            else:
                payload.seal()
                if not self._writer.complete(payload):
                    if span <= _COPY_AT_ONCE:
                        payload.copy()
                    else:
                        state.pending.append(payload)
                    self.new_bytes += span
        else:
            payload = self._own(tensor, dtype, dense or layout.shape, span)
        if trusted and payload.strided is None:
            state.ranges[begin, begin + span, dtype] = payload
            return _keep_view(state, layout, line, payload)
        return Item(line, payload)

    def _item_of_copy(self, tensor: torch.Tensor, line: Line) -> Item:
        """Return the record of a tensor that is stored as a contiguous copy."""
        try:
            if tensor.is_neg() or tensor.is_conj():
                tensor = tensor.resolve_conj().resolve_neg()
            packed = tensor.contiguous()
        except NotImplementedError:
            if tensor.is_neg() or tensor.is_conj():
                line.skipped = f"{line.dtype} that PyTorch cannot negate or conjugate"
                return Item(line, None)
            packed = _as_bits(tensor).contiguous()
        line.stored_stride = row_major(line.shape)
        return Item(line, self._own(packed, line.dtype, line.shape, line.nbytes))

    def _copied(self, payload: Payload) -> Payload:
        """Return a payload with the current bytes: an equal payload of this step if there is one, else the given one.

        The bytes of the given payload are copied, unless the files contain them already. The hash that this needs takes
        half as long as a copy, and half of the tensors of modules occur again because they are passed on to other
        modules.
        """
        payload.hash()
        content = (payload.digest, payload.dtype, payload.strided)
        equal = self._contents.get(content)
        if equal is not None:
            return equal
        if not self._writer.complete(payload):
            payload.copy()
            payload.hash()
            self.new_bytes += payload.nbytes
        if payload.digest == content[0]:  # False if the memory was written meanwhile
            self._contents[content] = payload
        return payload

    def _own(self, tensor: torch.Tensor, dtype: str, shape: tuple[int, ...], nbytes: int) -> Payload:
        """Return the payload of a dense tensor, copied to the host if it is on a device."""
        try:
            host = tensor.cpu()  # keeps the strides
        except RuntimeError:
            # The dtype may have no copy operator. If the error has another reason, this line raises it again.
            host = _as_bits(tensor).cpu()
        self.new_bytes += nbytes
        return Payload(host.untyped_storage(), host.data_ptr(), nbytes, dtype, shape)

    def _find(self, storage: Any) -> _StorageState:
        state = self._states.get(storage._cdata)
        if state is None:
            state = self._states[storage._cdata] = _StorageState(storage._cdata, storage._weak_ref(), -1)
        if state.number < 0:
            state.number = self._numbered
            self._numbered += 1
        return state

    def _secure(self, state: _StorageState) -> None:
        for payload in state.pending:
            self._writer.protect(payload)
        state.pending.clear()


def _version_of(tensor: torch.Tensor) -> int:
    """Return the number of writes to the tensor that PyTorch has counted; -1 if PyTorch does not count them."""
    if tensor.is_inference():
        return -1
    try:
        return int(tensor._version)
    except RuntimeError:  # raised for an inference tensor whose `.data` was replaced
        return -1


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor viewed as an integer type that has operators: types such as uint3 and bits16 have none."""
    return tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:  # raised for a view created under no_grad whose base was written to since
        return False


def _is_sample(payload: Payload, address: int) -> bool:
    """Return True if the memory at the address still has the sampled bytes of a payload, or if there is no sample."""
    if payload.window is not None and address == payload.address:
        return payload.window.tobytes() == payload.sample
    return not payload.sample or sample_of(address, payload.nbytes) == payload.sample


def _keep_view(state: _StorageState, layout: ViewLayout, line: Line, payload: Payload) -> Item:
    # Complex and quantized tensors are not remembered, because the layout includes neither conjugation nor the
    # quantization scale.
    if not layout.is_complex and line.quantization is None:
        state.views[layout] = _RecordedView(
            line.dtype, line.shape, line.nbytes, line.device, line.stride, line.storage_offset, line.storage,
            line.address, line.storage_nbytes, line.version, line.offset, payload,
        )  # fmt: skip
    return Item(line, payload)


def _item_of_view(op: OperatorCall, io: str, index: int, view: _RecordedView) -> Item:
    """Return the record of a tensor that was recorded before."""
    # The arguments are positional, in the order of Line's fields: that is faster, and this runs for every tensor.
    line = Line(
        op.seq, op.op_type, op.name, io, index, op.time, view.dtype, view.shape, view.nbytes, view.device,
        op.phase, op.module, op.source, view.stride, view.first, view.storage, view.address, view.storage_nbytes,
        view.version, view.offset,
    )  # fmt: skip
    return Item(line, view.payload)


def _not_stored(op: OperatorCall, tensor: torch.Tensor, io: str, index: int) -> Item:
    """Return the record of a tensor that cannot be stored."""
    # A nested tensor with strided layout has no sizes.
    shape = () if tensor.is_nested else tuple(tensor.shape)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    line = Line(
        op.seq, op.op_type, op.name, io, index, op.time, name_of(tensor.dtype), shape, 0, device,
        op.phase, op.module, op.source,
    )  # fmt: skip
    line.skipped = unstorable(tensor)
    return Item(line, None)
