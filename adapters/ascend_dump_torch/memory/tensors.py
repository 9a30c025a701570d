"""Create the records of tensors, and recognise tensors that are stored already without reading them.

A tensor is recognised by its storage, the number of writes to it (its version), and the byte range that it covers.
`storages` tells which writes are observed.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump.dump_format import FREED, UNINITIALISED, UNWAITED
from ascend_dump.writing import HostWriter, Item, Line, Payload, sample_of
from ascend_dump_torch.memory.layouts import (
    ViewLayout,
    is_plain,
    layout_of,
    quantization,
    row_major,
)
from ascend_dump_torch.memory.records import OperatorCall, item_of_view, keep_view, not_stored
from ascend_dump_torch.memory.storage_state import RecordedView, StorageState
from ascend_dump_torch.memory.storages import Storages

__all__ = ["Tensors"]

#: Tensors of at most this number of bytes are copied at once, which is cheaper than tracking their memory.
_COPY_AT_ONCE = 16 * 1024

_Tensor = torch.Tensor
_strided = torch.strided


class Tensors(Storages):
    """The creation of records for tensors on known storages."""

    def __init__(
        self, writer: HostWriter, *, whole: bool, rehash: bool, keep: Optional[int] = None, numbers_last: bool = False
    ) -> None:
        """Create an empty registry.

        whole   True to store each view as a payload of its own
        rehash  True to recognise no tensor by its storage, so that each is read
        Others: see `Storages`.
        """
        super().__init__(writer, keep=keep, numbers_last=numbers_last)
        #: Statistics are computed per payload, so with statistics each view needs its own payload.
        self._whole = whole
        self._rehash = rehash
        #: Payloads of this step that were copied or are stored in the files, by (digest, dtype, `Payload.strided`).
        self._contents: dict[tuple[bytes, str, Optional[tuple[tuple[int, ...], tuple[int, ...]]]], Payload] = {}
        self.new_bytes = 0

    def begin_step(self) -> None:
        super().begin_step()
        self._contents.clear()

    def forget(self) -> None:
        super().forget()
        self._contents.clear()

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
            return not_stored(op, tensor, io, index)
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
        return item_of_view(op, io, index, view)

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
                return [item_of_view(op, "input", 0, source), output]
            # The same bytes in another shape or order.
            returned = state.views[layout] = RecordedView(
                layout.dtype, layout.shape, layout.nbytes, source.device, layout.stride, layout.first,
                source.storage, source.address, source.storage_nbytes, source.version, 0, payload,
            )  # fmt: skip
        elif returned.payload is not payload and self._is_overwritten(returned, storage):
            return None
        return [item_of_view(op, "input", 0, source), item_of_view(op, "output", 0, returned)]

    def _is_overwritten(self, view: RecordedView, storage: Any) -> bool:
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
            return not_stored(op, tensor, io, index)
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

    def _stored(self, tensor: torch.Tensor, storage: Any, state: StorageState, layout: ViewLayout, line: Line) -> Item:
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
                return keep_view(state, layout, line, stored)
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
            return keep_view(state, layout, line, payload)
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
