"""What is recorded of a tensor, and telling tensors apart without reading them.

A tensor that is already known in this step is recognised by its storage, by what wrote to that
storage since, and by the part of it that the tensor covers. Only operators that pass through
PyTorch's dispatcher are seen writing; memory shared with others (numpy, shared memory) is
therefore always read anew: PyTorch marks such storages as not resizable. Other threads, and modes that
take ours out, write unseen: what is queued is sealed with its hash, which is compared with that of what was
stored, a few words are compared where a tensor is known, and from the first thread or difference on tensors are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Optional

import msgspec
import torch

from ascend_dump.host import FREED, UNINITIALISED, UNWAITED
from ascend_dump.writing import HostWriter, Item, Line, Payload, sample_of
from ascend_dump_torch._memory import (
    ViewKey,
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

#: Smaller tensors are copied at once: cheaper than guarding them.
_COPY_AT_ONCE = 16 * 1024
#: Operators between two looks whether storages are gone that were used last before the look before.
_SWEEP = 4

_expired = torch.UntypedStorage._expired
_Tensor = torch.Tensor
_strided = torch.strided
#: The fields of a `Line` from `dtype` to `version` without those of the operator, its `offset`, and the payload.
_View = tuple[str, tuple[int, ...], int, str, tuple[int, ...], int, int, int, int, int, int, Payload]


class OperatorCall(msgspec.Struct, eq=False, gc=False):
    """What the records of one operator share."""

    seq: int
    op_type: str
    name: str
    time: int
    phase: str
    module: str
    source: str


class _Known(msgspec.Struct, eq=False, gc=False):
    """A storage seen in this step: the parts of it that are stored, as of one version.

    key          by which it is known
    handle       a weak reference: PyTorch reuses the key, an address, only after it is given back
    unset        nobody has written to it since it was allocated, as far as is known
    in_flight    ranges of bytes that collectives write right now, as far as is known
    ranges       from and to which byte they go, the type they are stored as, and their payload
    views        tensors on them, by what makes them one, and what is recorded of each
    pending      payloads whose bytes are still this memory, of whatever version
    """

    key: int
    handle: int
    number: int
    version: int = -1
    unseen_writes: bool = False
    unset: bool = False
    in_flight: tuple[tuple[int, int], ...] = ()
    ranges: dict[tuple[int, int, str], Payload] = {}
    views: dict[ViewKey, _View] = {}
    pending: list[Payload] = []

    def forget_content(self) -> None:
        self.ranges.clear()
        self.views.clear()


class Tensors:
    """Slots of tensors for one capture; identities last from step to step while all writes are seen."""

    def __init__(self, writer: HostWriter, *, whole: bool, rehash: bool, keep: Optional[int] = None) -> None:
        """keep: how many recorded steps stay on disk, None where nothing that was written goes."""
        self._writer = writer
        self._keep = keep
        self._steps = 0
        #: Statistics belong to a view, so a part of a known tensor is not known by itself.
        self._whole = whole
        self._rehash = rehash
        self._known: dict[int, _Known] = {}
        self._numbered = 0
        self._operators = 0
        self._next_sweep = 0
        #: By their keys, as `_known`: those used since the last look, and before it.
        self._just_used: dict[int, _Known] = {}
        self._used: dict[int, _Known] = {}
        #: Whether a collective writes to one of them, as far as is known.
        self.any_in_flight = False
        self._any_unset = False
        #: Those that began in this step: their operators are not seen.
        self._threads: list[threading.Thread] = []
        #: Whether somebody has written unseen: nothing is queued as it is from then on.
        self.copies_all = False
        self.new_bytes = 0

    def begin_step(self) -> None:
        """Number storages anew and drop the dead ones. Call between two recorded steps."""
        self._steps += 1
        # Bytes are read from where they were first written as long as that step is sure to be there; then anew.
        forgets = self._keep is not None and self._steps % (self._keep + 1) == 0
        for known in list(self._known.values()):
            if _expired(known.handle):
                self._drop(known)
                continue
            known.number = -1
            if forgets:
                known.ranges.clear()
            known.views.clear()  # the number is among what is recorded
        self._numbered = 0

    def thread_starts(self, thread: threading.Thread) -> None:
        """Call before another thread of the program begins."""
        if thread.name.startswith("ascend_dump"):
            return  # it writes to nothing of the program, and the writer may start it, which must not wait for itself
        for known in list(self._known.values()):
            self._secure(known)
        self._threads.append(thread)

    def _others_write(self) -> bool:
        """Whether memory may change at any time: a copy for each tensor takes longer than to seal it."""
        if self._threads:
            self._threads = [thread for thread in self._threads if thread.is_alive() or thread.ident is None]
        return self.copies_all or bool(self._threads)

    def next_operator(self) -> None:
        """Let go of storages that are gone.

        The handle of one stands in the heap, and keeps the allocator from joining the free blocks around it: the
        program's next large tensor then takes fresh pages from the system, which costs it up to a third of its time.
        Most tensors die soon after an operator that used them; of the others one is looked at for each operator.
        """
        self._operators += 1
        if self._operators % _SWEEP == 0:
            used, self._used, self._just_used = self._used, self._just_used, {}
            if self._operators >= self._next_sweep:
                used = self._known.copy()
                self._next_sweep = self._operators + len(used)
            every = self._known
            for key, known in used.items():
                # In this order: the handle of one that was dropped meanwhile points at nothing.
                if every.get(key) is known and _expired(known.handle):
                    self._drop(known)

    def _drop(self, known: _Known) -> None:
        torch.UntypedStorage._free_weak_ref(known.handle)
        del self._known[known.key]

    def forget(self) -> None:
        """Forget everything: from now on writes are not seen, so nothing may stay queued as it is."""
        known, self._known = self._known, {}
        self._used, self._just_used = {}, {}
        for one in known.values():
            self._secure(one)
            torch.UntypedStorage._free_weak_ref(one.handle)
        self._numbered = 0
        self.any_in_flight = False
        self._any_unset = False
        self._threads = []

    def protect(self, tensor: torch.Tensor) -> None:
        """Call before the memory of `tensor` is written or freed, and after: its content is a new one."""
        for storage in storages_of(tensor):
            self.protect_storage(storage)

    def protect_storage(self, storage: Any) -> None:
        known = self._known.get(storage._cdata)
        if known is not None:
            self._secure(known)
            known.forget_content()
            known.unset = False

    def resize_storage(self, storage: Any) -> None:
        """Call before the memory is given back, or allocated anew."""
        self.protect_storage(storage)
        if not storage.nbytes():
            self._any_unset = True
            self._find(storage).unset = True

    def distrust(self, tensor: torch.Tensor) -> None:
        """From now on read this memory anew each time: something writes to it unseen."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)

    def distrust_storage(self, storage: Any) -> None:
        known = self._find(storage)
        self._secure(known)
        known.forget_content()
        known.unseen_writes = True
        known.unset = False

    def mark_unset(self, tensor: torch.Tensor) -> None:
        """Say that this memory was allocated and not filled."""
        self._any_unset = True
        for storage in storages_of(tensor):
            self._find(storage).unset = True

    def is_unset(self, tensor: torch.Tensor) -> bool:
        if not self._any_unset:
            return False
        for storage in storages_of(tensor):
            known = self._known.get(storage._cdata)
            if known is not None and known.unset:
                return True
        return False

    def set_in_flight(self, tensor: torch.Tensor, in_flight: bool) -> None:
        """Say that a collective begins to write this memory, or that somebody has waited for it."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)
        if in_flight:
            self.any_in_flight = True
            for storage in storages_of(tensor):
                self._find(storage).in_flight += (range_in(tensor, storage),)
        else:
            self.settle([tensor])

    def settle(self, tensors: list[torch.Tensor]) -> None:
        """Call before an operator reads them: nobody may before the collectives that write there have ended."""
        if not self.any_in_flight:
            return
        for tensor, storage, known in self._in_flight_around(tensors):
            low, high = range_in(tensor, storage)
            known.in_flight = tuple(one for one in known.in_flight if one[1] <= low or high <= one[0])

    def is_in_flight(self, tensor: torch.Tensor) -> bool:
        for one, storage, known in self._in_flight_around([tensor]):
            low, high = range_in(one, storage)
            if any(low < end and begin < high for begin, end in known.in_flight):
                return True
        return False

    def _in_flight_around(self, tensors: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Any, _Known]]:
        for tensor in tensors:
            for storage in storages_of(tensor):
                known = self._known.get(storage._cdata)
                if known is not None and known.in_flight:
                    yield tensor, storage, known

    def item(
        self,
        op: OperatorCall,
        tensor: torch.Tensor,
        io: str,
        index: int,
        unset: bool = False,
        copy: Optional[torch.Tensor] = None,
    ) -> Item:
        """The record of one tensor; its bytes are queued with it unless they are known.

        unset: nobody has filled the memory (`empty`), so there is nothing to store.
        copy: holds the values that the tensor had, when it does not hold them any more.
        """
        kind = type(tensor)
        if not (kind is _Tensor or is_plain(kind)) or tensor.layout is not _strided or tensor.is_nested:
            return _not_stored(op, tensor, io, index)
        storage = tensor.untyped_storage()
        version = -1 if tensor.is_inference() else tensor._version
        key = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._known.get(storage._cdata)
        # Most tensors come again as they are, as an output here and an input there.
        view = known.views.get(key) if known is not None and known.version == version else None
        if known is None or view is None or unset or copy is not None or tensor.is_neg() or not storage.resizable():
            return self._look(op, tensor, storage, version, key, io, index, unset, copy)
        dtype, shape, nbytes, device, stride, first, number, address, size, version, offset, payload = view
        window = payload.window
        if payload.changed or (
            window is not None and (storage.data_ptr() != address or window.tobytes() != payload.sample)
        ):
            # Somebody has written to it unseen.
            self.distrust_storage(storage)
            return self._look(op, tensor, storage, version, key, io, index, unset, copy)
        self._just_used[known.key] = known
        # By position, in the order of Line: this runs for every tensor.
        line = Line(
            op.seq, op.op_type, op.name, io, index, op.time, dtype, shape, nbytes, device,
            op.phase, op.module, op.source, stride, first, number, address, size, version, offset,
        )  # fmt: skip
        return Item(line, payload)

    def _look(
        self,
        op: OperatorCall,
        tensor: torch.Tensor,
        storage: Any,
        version: int,
        key: ViewKey,
        io: str,
        index: int,
        unset: bool,
        copy: Optional[torch.Tensor],
    ) -> Item:
        """`item` of a tensor that is not known as it is."""
        if tensor.is_meta or tensor._is_zerotensor():
            return _not_stored(op, tensor, io, index)
        known = self._find(storage)
        self._just_used[known.key] = known
        if known.version != version:
            known.version = version
            known.forget_content()
        layout = layout_of(key)
        shape, nbytes = layout.shape, layout.nbytes
        line = Line(
            op.seq, op.op_type, op.name, io, index, op.time, layout.dtype, shape, nbytes,
            "cpu" if tensor.is_cpu else str(tensor.device), op.phase, op.module, op.source,
            key[2], key[0], known.number, storage.data_ptr(), storage.nbytes(), version,
        )  # fmt: skip
        if tensor.is_quantized:
            line.quantization = quantization(tensor)
        if io == "input" and tensor.requires_grad and _is_leaf(tensor):
            line.requires_grad = True  # where it is first seen in the step: later records are made of what is known
        if not nbytes:
            return Item(line, None)
        if known.in_flight and self.is_in_flight(tensor):
            line.skipped = UNWAITED
            return Item(line, None)
        if unset:
            line.skipped = UNINITIALISED
            return Item(line, None)
        if copy is not None:
            line.stored_stride = row_major(shape)
            return Item(line, self._own(copy.resolve_conj().resolve_neg().contiguous(), line.dtype, shape, nbytes))
        return self._stored(tensor, storage, known, key, layout, line)

    def _stored(
        self, tensor: torch.Tensor, storage: Any, known: _Known, key: ViewKey, layout: ViewLayout, line: Line
    ) -> Item:
        """The bytes of a tensor for its line: those of a range of this memory that is queued already, or new ones."""
        dtype, begin, span, dense = layout.dtype, layout.begin, layout.span, layout.dense
        if begin + span > line.storage_nbytes:
            line.skipped = FREED
            return Item(line, None)
        plain = not (tensor.is_neg() or (layout.is_complex and tensor.is_conj()))
        # Memory that others share cannot be resized: numpy, another process, a file.
        trusted = plain and not known.unseen_writes and storage.resizable() and not self._rehash
        if trusted:
            found = known.ranges.get((begin, begin + span, dtype)) if dense is not None else None
            if found is None and not self._whole:
                for (low, high, _), around in known.ranges.items():
                    if low <= begin and begin + span <= high:
                        found, line.offset = around, begin - low
                        break
            if found is not None and (found.changed or not _is_sample(found, line.address + begin - line.offset)):
                self.distrust_storage(storage)
                trusted, found, line.offset = False, None, 0
            if found is not None:
                return _keep_view(known, key, layout, line, found)
        if not plain or span > layout.nbytes or (dense is None and not tensor.is_cpu):
            # Elements with gaps between them, or not as they stand in memory: stored on their own.
            line.stored_stride = row_major(layout.shape)
            packed = (tensor if plain else tensor.resolve_conj().resolve_neg()).contiguous()
            return Item(line, self._own(packed, dtype, layout.shape, layout.nbytes))
        if tensor.is_cpu:
            payload = Payload(storage, line.address + begin, span, dtype, dense or (span // layout.itemsize,))
            if dense is None and self._whole:
                payload.strided = (layout.shape, tuple(s * layout.itemsize for s in line.stride))
            if not trusted or self._others_write():
                if trusted:
                    payload.take_sample()
                payload.copy()
                self.new_bytes += span
            else:
                payload.seal()
                if not self._writer.complete(payload):
                    if span <= _COPY_AT_ONCE:
                        payload.copy()
                    else:
                        known.pending.append(payload)
                    self.new_bytes += span
        else:
            payload = self._own(tensor, dtype, dense or layout.shape, span)
        if trusted and payload.strided is None:
            known.ranges[begin, begin + span, dtype] = payload
            return _keep_view(known, key, layout, line, payload)
        return Item(line, payload)

    def _own(self, tensor: torch.Tensor, dtype: str, shape: tuple[int, ...], nbytes: int) -> Payload:
        """A payload of a dense tensor that nobody else has, or of one on a device."""
        try:
            host = tensor.cpu()  # keeps the strides
        except RuntimeError:
            # Of types like uint3 and bits16, which PyTorch has no operators for. What is wrong otherwise is so again.
            host = tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16).cpu()
        self.new_bytes += nbytes
        return Payload(host.untyped_storage(), host.data_ptr(), nbytes, dtype, shape)

    def _find(self, storage: Any) -> _Known:
        known = self._known.get(storage._cdata)
        if known is None:
            known = self._known[storage._cdata] = _Known(storage._cdata, storage._weak_ref(), -1)
        if known.number < 0:
            known.number = self._numbered
            self._numbered += 1
        return known

    def _secure(self, known: _Known) -> None:
        for payload in known.pending:
            self._writer.protect(payload)
        known.pending.clear()


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:  # a view that was made without grad, of a base that was written to since, tells nothing
        return False


def _is_sample(payload: Payload, address: int) -> bool:
    """Whether memory that is there looks as a payload did."""
    if payload.window is not None and address == payload.address:
        return payload.window.tobytes() == payload.sample
    return not payload.sample or sample_of(address, payload.nbytes) == payload.sample


def _keep_view(known: _Known, key: ViewKey, layout: ViewLayout, line: Line, payload: Payload) -> Item:
    # The key does not tell whether a tensor is conjugated, nor the scale of a quantized one.
    if not layout.is_complex and line.quantization is None:
        known.views[key] = (
            line.dtype, line.shape, line.nbytes, line.device, line.stride, line.storage_offset, line.storage,
            line.address, line.storage_nbytes, line.version, line.offset, payload,
        )  # fmt: skip
    return Item(line, payload)


def _not_stored(op: OperatorCall, tensor: torch.Tensor, io: str, index: int) -> Item:
    """The record of a tensor whose bytes cannot be stored."""
    # A nested tensor of the strided layout has no sizes.
    shape = () if tensor.is_nested else tuple(tensor.shape)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    line = Line(
        op.seq, op.op_type, op.name, io, index, op.time, name_of(tensor.dtype), shape, 0, device,
        op.phase, op.module, op.source,
    )  # fmt: skip
    line.skipped = unstorable(tensor)
    return Item(line, None)
