"""What is recorded of a tensor, and telling tensors apart without reading them.

A tensor that is already known in this step is recognised by its storage, by what wrote to that
storage since, and by the part of it that the tensor covers. Only operators that pass through
PyTorch's dispatcher are seen writing; memory shared with others (numpy, shared memory) is
therefore always read anew: PyTorch marks such storages as not resizable.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import torch

from ascend_dump.writing import Item, Line, Payload, Writer, copy_memory
from ascend_dump_torch._names import Place

__all__ = ["Operator", "Tensors", "is_plain", "storages_of"]

#: Smaller tensors are copied at once: cheaper than guarding them.
_COPY_AT_ONCE = 16 * 1024

_NAMES: dict[torch.dtype, str] = {}
_PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter}
_Range = tuple[int, int, Payload]


class Operator(NamedTuple):
    """What the records of one operator share."""

    seq: int
    op_type: str
    name: str
    time: int
    place: Place


class _Known:
    """A storage seen in this step: the parts of it that are stored, as of one version."""

    __slots__ = ("handle", "in_flight", "number", "pending", "ranges", "unseen_writes", "unset", "version")

    def __init__(self, storage: Any, number: int) -> None:
        # A weak reference: PyTorch reuses the handle's address only after it is given back.
        self.handle: int = storage._weak_ref()
        self.number = number
        self.unseen_writes = False
        #: Nobody has written to it since it was allocated, as far as is known.
        self.unset = False
        #: Ranges of bytes that collectives write right now, as far as is known.
        self.in_flight: list[tuple[int, int]] = []
        self.version = -1
        self.ranges: list[_Range] = []
        #: Payloads whose bytes are still this memory, of whatever version.
        self.pending: list[Payload] = []


class Tensors:
    """Slots of tensors for one capture; identities last from step to step while all writes are seen."""

    def __init__(self, writer: Writer, *, whole: bool, rehash: bool) -> None:
        self._writer = writer
        #: Statistics belong to a view, so a part of a known tensor is not known by itself.
        self._whole = whole
        self._rehash = rehash
        self._known: dict[int, _Known] = {}
        self._numbered = 0
        self._any_in_flight = False
        self.new_bytes = 0

    def begin_step(self) -> None:
        """Number storages anew and drop the dead ones. Call between two recorded steps."""
        expired = torch.UntypedStorage._expired
        for key, known in list(self._known.items()):
            if expired(known.handle):
                torch.UntypedStorage._free_weak_ref(known.handle)
                del self._known[key]
            known.number = -1
        self._numbered = 0

    def forget(self) -> None:
        """Forget everything: from now on writes are not seen, so nothing may stay queued as it is."""
        known, self._known = self._known, {}
        for one in known.values():
            self._secure(one)
            torch.UntypedStorage._free_weak_ref(one.handle)
        self._numbered = 0
        self._any_in_flight = False

    def protect(self, tensor: torch.Tensor) -> None:
        """Call before the memory of `tensor` is written or freed, and after: its content is a new one."""
        for storage in storages_of(tensor):
            self.protect_storage(storage)

    def protect_storage(self, storage: Any) -> None:
        known = self._known.get(storage._cdata)
        if known is not None:
            self._secure(known)
            known.ranges.clear()
            known.unset = False

    def distrust(self, tensor: torch.Tensor) -> None:
        """From now on read this memory anew each time: something writes to it unseen."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)

    def distrust_storage(self, storage: Any) -> None:
        known = self._find(storage)
        self._secure(known)
        known.ranges.clear()
        known.unseen_writes = True
        known.unset = False

    def mark_unset(self, tensor: torch.Tensor) -> None:
        """Say that this memory was allocated and not filled."""
        for storage in storages_of(tensor):
            self._find(storage).unset = True

    def is_unset(self, tensor: torch.Tensor) -> bool:
        known = (self._known.get(storage._cdata) for storage in storages_of(tensor))
        return any(one is not None and one.unset for one in known)

    def set_in_flight(self, tensor: torch.Tensor, in_flight: bool) -> None:
        """Say that a collective begins to write this memory, or that somebody has waited for it."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)
        if in_flight:
            self._any_in_flight = True
            for storage in storages_of(tensor):
                self._find(storage).in_flight.append(_range_in(tensor, storage))
        else:
            self.settle([tensor])

    def settle(self, tensors: list[torch.Tensor]) -> None:
        """Call before an operator reads them: nobody may before the collectives that write there have ended."""
        if not self._any_in_flight:
            return
        for tensor, storage, known in self._in_flight_around(tensors):
            low, high = _range_in(tensor, storage)
            known.in_flight = [(begin, end) for begin, end in known.in_flight if end <= low or high <= begin]

    def is_in_flight(self, tensor: torch.Tensor) -> bool:
        for one, storage, known in self._in_flight_around([tensor]):
            low, high = _range_in(one, storage)
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
        op: Operator,
        tensor: torch.Tensor,
        io: str,
        index: int,
        *,
        unset: bool = False,
        copy: Optional[torch.Tensor] = None,
    ) -> Item:
        """The record of one tensor; its bytes are queued with it unless they are known.

        unset: nobody has filled the memory (`empty`), so there is nothing to store.
        copy: holds the values that the tensor had, when it does not hold them any more.
        """
        dtype = _NAMES.get(tensor.dtype)
        if dtype is None:
            dtype = _NAMES[tensor.dtype] = str(tensor.dtype).replace("torch.", "")
        # A nested tensor of the strided layout has no sizes.
        shape = () if tensor.is_nested else tuple(tensor.shape)
        device = "cpu" if tensor.is_cpu else str(tensor.device)
        skipped = _unstorable(tensor)
        if skipped:
            line = _line(op, io, index, dtype, shape, 0, device)
            line.skipped = skipped
            return Item(line, None)
        nbytes = tensor.nbytes
        storage = tensor.untyped_storage()
        known = self._find(storage)
        version = -1 if tensor.is_inference() else tensor._version
        if version != known.version:
            known.version = version
            known.ranges.clear()
        stride = tensor.stride()
        first = tensor.storage_offset()
        room = storage.nbytes()
        place = (stride, first, known.number, storage.data_ptr(), room, version)
        line = _line(op, io, index, dtype, shape, nbytes, device, *place)
        if tensor.is_quantized:
            line.quantization = _quantization(tensor)
        if not nbytes:
            return Item(line, None)
        if known.in_flight and self.is_in_flight(tensor):
            line.skipped = "a collective writes it still"
            return Item(line, None)
        if unset:
            line.skipped = "uninitialised memory"
            return Item(line, None)
        size = tensor.element_size()
        begin = first * size
        extent, dense = _extent(shape, stride)
        span = extent * size
        if begin + span > room:
            line.skipped = "memory that is freed, or packed"
            return Item(line, None)
        if copy is not None:
            line.stored_stride = _row_major(shape)
            return Item(line, self._own(copy.resolve_conj().resolve_neg().contiguous(), dtype, shape, nbytes))
        plain = not (tensor.is_conj() or tensor.is_neg())
        # Memory that others share cannot be resized: numpy, another process, a file.
        trusted = plain and not known.unseen_writes and storage.resizable() and not self._rehash
        if trusted:
            for low, high, payload in known.ranges:
                if self._whole:
                    if low == begin and high == begin + span and dense is not None and payload.dtype == dtype:
                        return Item(line, payload)
                elif low <= begin and begin + span <= high:
                    line.offset = begin - low
                    return Item(line, payload)
        if not plain or span > nbytes or (dense is None and not tensor.is_cpu):
            # Elements with gaps between them, or not as they stand in memory: stored on their own.
            line.stored_stride = _row_major(shape)
            host = (tensor if plain else tensor.resolve_conj().resolve_neg()).contiguous()
            return Item(line, self._own(host, dtype, shape, nbytes))
        if tensor.is_cpu:
            payload = Payload(storage, line.address + begin, span, dtype, dense or (span // size,))
            if dense is None and self._whole:
                payload.strided = (shape, tuple(s * size for s in stride))
            if span <= _COPY_AT_ONCE or not trusted:
                payload.owner = copy_memory(payload.address, span)
            else:
                known.pending.append(payload)
            self.new_bytes += span
        else:
            # Keeps the strides of a dense tensor.
            payload = self._own(tensor.cpu(), dtype, dense or shape, span)
        if trusted and payload.strided is None:
            known.ranges.append((begin, begin + span, payload))
        return Item(line, payload)

    def _own(self, host: torch.Tensor, dtype: str, shape: tuple[int, ...], nbytes: int) -> Payload:
        """A payload of a tensor that nobody else has."""
        self.new_bytes += nbytes
        return Payload(host.untyped_storage(), host.data_ptr(), nbytes, dtype, shape)

    def _find(self, storage: Any) -> _Known:
        known = self._known.get(storage._cdata)
        if known is None:
            known = self._known[storage._cdata] = _Known(storage, -1)
        if known.number < 0:
            known.number = self._numbered
            self._numbered += 1
        return known

    def _secure(self, known: _Known) -> None:
        for payload in known.pending:
            self._writer.protect(payload)
        known.pending.clear()


def _line(
    op: Operator, io: str, index: int, dtype: str, shape: tuple[int, ...], nbytes: int, device: str, *place: Any
) -> Line:
    # By position, in the order of Line: this runs for every tensor.
    seq, op_type, name, time, (module, phase, source) = op
    return Line(seq, op_type, name, io, index, time, dtype, shape, nbytes, device, phase, module, source, *place)


def is_plain(kind: type) -> bool:
    """Whether tensors of this class are their memory: it has no `__torch_dispatch__` of its own."""
    if kind in _PLAIN:
        return True
    plain = getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
    if plain:
        _PLAIN.add(kind)
    return plain


def storages_of(tensor: torch.Tensor) -> list[Any]:
    """The memory of a tensor of any layout; nothing where it cannot be had."""
    if not is_plain(type(tensor)):
        return []
    if tensor.layout is torch.strided:
        return [] if tensor.is_meta else [tensor.untyped_storage()]
    if tensor.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in (tensor._indices(), tensor._values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [part.untyped_storage() for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [part.untyped_storage() for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values())]
    return []


def _range_in(tensor: torch.Tensor, storage: Any) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies in; all of it where that cannot be told."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0, storage.nbytes()
    if not tensor.numel():
        return 0, 0
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    return begin, begin + (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1) * size


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


@functools.lru_cache(1 << 14)
def _extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, Optional[tuple[int, ...]]]:
    """Elements of memory from the first to the last, and the shape with its dimensions as they follow each other there.

    That shape is None unless each element has its own place, with no gaps between. The tensor is not empty.
    """
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    if all(n == 1 or s == dense for n, s, dense in zip(shape, stride, _row_major(shape))):
        return extent, shape
    step = 1
    ordered = []
    for s, n in sorted(zip(stride, shape)):
        if n > 1:
            if s != step:
                return extent, None
            step *= n
        ordered.append(n)
    return extent, tuple(reversed(ordered))


def _unstorable(tensor: torch.Tensor) -> str:
    """Why the bytes of a tensor cannot be stored, empty when they can."""
    if not is_plain(type(tensor)):
        return f"a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).replace('torch.', '')} layout"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_meta:
        return "meta tensor"
    if tensor._is_zerotensor() and tensor.numel():
        return "zero tensor without memory"
    return ""


def _quantization(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scheme": "per_tensor", "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "scheme": "per_channel",
        "scale": tensor.q_per_channel_scales().tolist(),
        "zero_point": tensor.q_per_channel_zero_points().tolist(),
        "axis": tensor.q_per_channel_axis(),
    }
