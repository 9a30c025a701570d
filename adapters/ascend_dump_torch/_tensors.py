"""What is recorded of a tensor, and telling tensors apart without reading them.

A tensor that is already known in this step is recognised by its storage, by what wrote to that
storage since, and by the part of it that the tensor covers. Only operators that pass through
PyTorch's dispatcher are seen writing; memory shared with others (numpy, shared memory) is
therefore always read anew: PyTorch marks such storages as not resizable.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

import torch

from ascend_dump.writing import HostWriter, Item, Line, Payload
from ascend_dump_torch._names import Place

__all__ = ["Operator", "Tensors"]

#: Smaller tensors are copied at once: cheaper than guarding them.
_COPY_AT_ONCE = 16 * 1024

_NAMES: dict[torch.dtype, str] = {}
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

    __slots__ = ("address", "handle", "nbytes", "number", "pending", "ranges", "trusted", "version")

    def __init__(self, storage: Any, number: int, trusted: bool) -> None:
        # A weak reference: PyTorch reuses the handle's address only after it is given back.
        self.handle: int = storage._weak_ref()
        self.number = number
        self.trusted = trusted
        self.version = -1
        self.address: int = storage.data_ptr()
        self.nbytes: int = storage.nbytes()
        self.ranges: list[_Range] = []
        #: Payloads whose bytes are still this memory, of whatever version.
        self.pending: list[Payload] = []


class Tensors:
    """Slots of tensors for one capture; identities are forgotten when a step begins."""

    def __init__(self, writer: HostWriter, *, whole: bool, rehash: bool) -> None:
        self._writer = writer
        #: Statistics belong to a view, so a part of a known tensor is not known by itself.
        self._whole = whole
        self._rehash = rehash
        self._known: dict[int, _Known] = {}
        self._held: dict[int, Any] = {}
        self.new_bytes = 0

    def forget(self) -> None:
        """Begin anew: at a step's end, since writes between steps are not seen."""
        known, self._known = self._known, {}
        self._held.clear()
        for one in known.values():
            torch.UntypedStorage._free_weak_ref(one.handle)

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a gradient until it is used next.

        Autograd adds gradients in place when nobody else holds the storage. Whether the writer
        still does would depend on its speed; so every gradient is held, always.
        """
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            self._held[storage._cdata] = storage

    def release(self, tensor: torch.Tensor) -> None:
        """Call when a gradient is used."""
        if tensor.layout is torch.strided:
            self._held.pop(tensor.untyped_storage()._cdata, None)

    def protect(self, tensor: torch.Tensor) -> None:
        """Call before the memory of `tensor` is written or freed."""
        if tensor.layout is torch.strided and not tensor.is_nested:
            self.protect_storage(tensor.untyped_storage())

    def protect_storage(self, storage: Any) -> None:
        known = self._known.get(storage._cdata)
        if known is not None:
            for payload in known.pending:
                self._writer.protect(payload)
            known.pending.clear()
            known.ranges.clear()

    def distrust(self, tensor: torch.Tensor) -> None:
        """From now on read this memory anew each time: something writes to it unseen."""
        self.protect(tensor)
        known = self._known.get(tensor.untyped_storage()._cdata)
        if known is not None:
            known.trusted = False

    def item(self, op: Operator, tensor: torch.Tensor, io: str, index: int, *, unset: bool = False) -> Item:
        """The record of one tensor; its bytes are queued with it unless they are known.

        unset: the operator did not fill the memory (`empty`), so there is nothing to store.
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
        known = self._known.get(storage._cdata)
        if known is None:
            trusted = storage.resizable() and not self._rehash
            known = self._known[storage._cdata] = _Known(storage, len(self._known), trusted)
        version = -1 if tensor.is_inference() else tensor._version
        if version != known.version:
            known.version = version
            known.ranges.clear()
        line = _line(op, io, index, dtype, shape, nbytes, device)
        line.stride = tensor.stride()
        line.storage_offset = tensor.storage_offset()
        line.storage = known.number
        line.address = known.address
        line.storage_nbytes = known.nbytes
        line.version = version
        if tensor.is_quantized:
            line.quantization = _quantization(tensor)
        if not nbytes:
            return Item(line, None)
        if unset:
            line.skipped = "uninitialised memory"
            return Item(line, None)
        payload, line.offset, line.stored_stride = self._payload(
            tensor, known, storage, dtype, shape, line.stride, nbytes
        )
        return Item(line, payload)

    def _payload(
        self,
        tensor: torch.Tensor,
        known: _Known,
        storage: Any,
        dtype: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        nbytes: int,
    ) -> tuple[Payload, int, Optional[tuple[int, ...]]]:
        """(payload, byte position of element 0 in it, strides in it if not the tensor's own)."""
        size = tensor.element_size()
        begin = tensor.storage_offset() * size
        contiguous = tensor.is_contiguous()
        span = nbytes if contiguous else (sum((n - 1) * s for n, s in zip(shape, stride)) + 1) * size
        end = begin + span
        plain = not (tensor.is_conj() or tensor.is_neg())
        if known.trusted and plain:
            for low, high, payload in known.ranges:
                if self._whole:
                    same = low == begin and high == end and span == nbytes
                    if same and payload.dtype == dtype and payload.strided is None:
                        return payload, 0, None
                elif low <= begin and end <= high:
                    return payload, begin - low, None
        host = tensor
        stored_stride = None
        if not plain or span > nbytes or (span < nbytes and not tensor.is_cpu):
            # Elements with gaps between them, or not as they stand in memory: stored on their own.
            host = (tensor if plain else tensor.resolve_conj().resolve_neg()).contiguous()
            stored_stride = host.stride()
            span, contiguous = nbytes, True
        if not host.is_cpu:
            host = host.cpu()  # keeps the strides of a dense tensor
        owner: Any = storage if host is tensor else host.untyped_storage()
        if span <= _COPY_AT_ONCE or (host is tensor and not known.trusted):
            owner = ctypes.string_at(host.data_ptr(), span)
        strided = (shape, tuple(s * size for s in stride)) if self._whole and span < nbytes else None
        stored_shape = shape if contiguous else _memory_order(shape, stride, span // size)
        payload = Payload(owner, host.data_ptr(), span, dtype, stored_shape, strided)
        self.new_bytes += span
        if owner is storage:
            known.pending.append(payload)
        if stored_stride is None:
            known.ranges.append((begin, end, payload))
        return payload, 0, stored_stride


def _line(op: Operator, io: str, index: int, dtype: str, shape: tuple[int, ...], nbytes: int, device: str) -> Line:
    # By position, in the order of Line: this runs for every tensor.
    seq, op_type, name, time, (module, phase, source) = op
    return Line(seq, op_type, name, io, index, time, dtype, shape, nbytes, device, phase, module, source)


def _memory_order(shape: tuple[int, ...], stride: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The shape with its dimensions as they follow each other in memory, for a dense tensor."""
    ordered = tuple(n for _, n in sorted(zip(stride, shape), reverse=True))
    product = 1
    for n in ordered:
        product *= n
    return ordered if product == elements else (elements,)


def _unstorable(tensor: torch.Tensor) -> str:
    """Why the bytes of a tensor cannot be stored, empty when they can."""
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).replace('torch.', '')} layout"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_meta:
        return "meta tensor"
    if tensor.numel() and tensor._is_zerotensor():
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
