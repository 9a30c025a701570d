"""Make the records of tensors: those recorded before, those whose bytes are stored, and those that cannot be stored."""

from __future__ import annotations

import msgspec
import torch

from ascend_dump.writing import Item, Line, Payload
from ascend_dump_torch.memory.layouts import ViewLayout, name_of, unstorable
from ascend_dump_torch.memory.storage_state import RecordedView, StorageState

__all__ = ["OperatorCall", "item_of_view", "keep_view", "not_stored"]


class OperatorCall(msgspec.Struct, eq=False, gc=False):
    """The fields that all records of an operator share."""

    seq: int
    op_type: str
    name: str
    time: int
    phase: str
    module: str
    source: str


def keep_view(state: StorageState, layout: ViewLayout, line: Line, payload: Payload) -> Item:
    # Complex and quantized tensors are not remembered, because the layout includes neither conjugation nor the
    # quantization scale.
    if not layout.is_complex and line.quantization is None:
        state.views[layout] = RecordedView(
            line.dtype, line.shape, line.nbytes, line.device, line.stride, line.storage_offset, line.storage,
            line.address, line.storage_nbytes, line.version, line.offset, payload,
        )  # fmt: skip
    return Item(line, payload)


def item_of_view(op: OperatorCall, io: str, index: int, view: RecordedView) -> Item:
    """Return the record of a tensor that was recorded before."""
    # The arguments are positional, in the order of Line's fields: that is faster, and this runs for every tensor.
    line = Line(
        op.seq, op.op_type, op.name, io, index, op.time, view.dtype, view.shape, view.nbytes, view.device,
        op.phase, op.module, op.source, view.stride, view.first, view.storage, view.address, view.storage_nbytes,
        view.version, view.offset,
    )  # fmt: skip
    return Item(line, view.payload)


def not_stored(op: OperatorCall, tensor: torch.Tensor, io: str, index: int) -> Item:
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
