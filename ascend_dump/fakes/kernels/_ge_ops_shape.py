"""GE operators that create, move, join, split and slice tensors, computed with torch."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.kernels._ge_table import OPERATORS, integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import torch_dtype

__all__: list[str] = []

_INT32 = 3  # ge::DataType


@operator("Range")
def _range(op: GeOp, start: Any, limit: Any, delta: Any) -> Any:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@operator("BroadcastTo", "Expand")
def _broadcast_to(op: GeOp, x: Any, shape: Any) -> Any:
    return x.expand(integers(shape)).clone()


@operator("Squeeze")
def _squeeze(op: GeOp, x: Any) -> Any:
    axes = op.attrs.get("axis", [])
    return x.squeeze(tuple(axes)) if axes else x.squeeze()


@operator("Unsqueeze")
def _unsqueeze(op: GeOp, x: Any) -> Any:
    axes = op.attrs["axes"]
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


@operator("ConcatV2")
def _concat_v2(op: GeOp, *inputs: Any) -> Any:
    # A scalar is joined like a vector of one element. torchair's counter of random operators needs this.
    return torch.cat([tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in inputs[:-1]], int(inputs[-1]))


@operator("SplitV")
def _split_v(op: GeOp, x: Any, sizes: Any, axis: Any) -> Any:
    lengths, dim = integers(sizes), int(axis)
    total = sum(size for size in lengths if size >= 0)
    return x.split([x.shape[dim] - total if size < 0 else size for size in lengths], dim)


@operator("Split")
def _split(op: GeOp, axis: Any, x: Any) -> Any:
    dim = int(axis)
    return x.split(x.shape[dim] // op.attrs["num_split"], dim)


@operator("Slice")
def _slice(op: GeOp, x: Any, offsets: Any, sizes: Any) -> Any:
    slices = [
        slice(first, None if size < 0 else first + size) for first, size in zip(integers(offsets), integers(sizes))
    ]
    return x[tuple(slices)].contiguous()


@operator("StridedSliceV2")
def _strided_slice(
    op: GeOp, x: Any, begin: Any, end: Any, axes: Optional[Any] = None, strides: Optional[Any] = None
) -> Any:
    masks = [name for name in op.attrs if name.endswith("_mask") and op.attrs[name]]
    if masks:
        raise NotSupported(
            f"StridedSliceV2 {op.name!r} has {', '.join(masks)}, which the simulated device does not support",
            hint="it takes begin, end, axes and strides",
        )
    firsts, lasts = integers(begin), integers(end)
    dims = range(len(firsts)) if axes is None else integers(axes)
    steps = [1] * len(firsts) if strides is None else integers(strides)
    slices: list[Any] = [slice(None)] * x.dim()
    for dim, first, last, step in zip(dims, firsts, lasts, steps):
        slices[dim] = slice(first, last, step)
    return x[tuple(slices)].contiguous()


@operator("AsStrided")
def _as_strided(op: GeOp, x: Any, size: Any, stride: Any, offset: Any) -> Any:
    return x.contiguous().as_strided(integers(size), integers(stride), int(offset)).contiguous()


@operator("Triu", "Tril")
def _triangle(op: GeOp, x: Any) -> Any:
    return getattr(x, op.type.lower())(op.attrs.get("diagonal", 0))


@operator("Empty")
def _empty(op: GeOp, shape: Any) -> Any:
    """Return zeros. On a device it is uninitialised memory, but torchair's converter of select_backward needs zeros."""
    return torch.zeros(integers(shape), dtype=torch_dtype(op.attrs.get("dtype", _INT32)))


@operator("LinSpace")
def _lin_space(op: GeOp, start: Any, stop: Any, count: Any) -> Any:
    return torch.linspace(start.item(), stop.item(), int(count), dtype=start.dtype)


# Operators that are one expression.
OPERATORS.update(
    {
        "Fill": lambda op, dims, value: value.reshape(()).expand(integers(dims)).clone(),
        "Shape": lambda op, x: torch.tensor(x.shape, dtype=torch_dtype(op.attrs.get("dtype", _INT32))),
        "Size": lambda op, x: torch.tensor(x.numel(), dtype=torch_dtype(op.attrs.get("dtype", _INT32))),
        "Permute": lambda op, x: x.permute(op.attrs["order"]).contiguous(),
        "ExpandDims": lambda op, x, axis: x.unsqueeze(int(axis)),
        "Pack": lambda op, *inputs: torch.stack(inputs, op.attrs.get("axis", 0)),
        "Unpack": lambda op, x: x.unbind(op.attrs.get("axis", 0)),
        "Tile": lambda op, x, multiples: x.repeat(integers(multiples)),
        "ReverseV2": lambda op, x, axes: x.flip(integers(axes)),
        "Complex": lambda op, real, imaginary: torch.complex(real, imaginary),
    }
)
