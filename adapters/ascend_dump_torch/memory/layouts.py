"""The storages and memory layout of tensors, and the reasons why a tensor cannot be stored."""

from __future__ import annotations

import functools
import math
from typing import Any, Optional

import msgspec
import torch

from ascend_dump.dump_format import META, UNWAITED, ZERO

__all__ = [
    "ViewLayout",
    "is_plain",
    "layout_of",
    "name_of",
    "quantization",
    "range_in",
    "row_major",
    "storages_of",
    "unstorable",
]

_PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter}


def is_plain(kind: type) -> bool:
    """Return True if tensors of this class store their values themselves: it has no `__torch_dispatch__`."""
    if kind in _PLAIN:
        return True
    plain = getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
    if plain:
        _PLAIN.add(kind)
    return plain


def storages_of(tensor: torch.Tensor) -> list[Any]:
    """Return the storages of a tensor with any layout (dense or sparse); [] if they are not accessible."""
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


def range_in(tensor: torch.Tensor, storage: Any) -> tuple[int, int]:
    """Return the byte range (begin, end) of a tensor in its storage; the whole storage if the tensor is not strided."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0, storage.nbytes()
    if not tensor.numel():
        return 0, 0
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    return begin, begin + (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1) * size


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor with this shape."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class ViewLayout(msgspec.Struct, eq=False, gc=False):
    """The layout of a view in its storage. Equal layouts are usually one object, so they are compared by identity.

    `layout_of` caches them. After it dropped a layout, an equal one is a second object, which costs a missed lookup.

    first   offset of the first element, in elements
    stride  strides in elements
    nbytes  number of bytes of all elements
    begin   offset of the first byte
    span    number of bytes from the first to the last byte
    dense   the shape with the dimensions in memory order; None if elements overlap or have gaps between them
    """

    dtype: str
    is_complex: bool
    itemsize: int
    first: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    begin: int
    span: int
    dense: Optional[tuple[int, ...]]


@functools.lru_cache(1 << 14)
def layout_of(first: int, sizes: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> ViewLayout:
    """Return the layout of a view. first: offset of its first element in elements. stride: in elements."""
    shape = tuple(sizes)
    size = dtype.itemsize
    nbytes = math.prod(shape) * size
    elements, dense = _extent(shape, stride) if nbytes else (0, shape)
    begin, span = first * size, elements * size
    return ViewLayout(name_of(dtype), dtype.is_complex, size, first, shape, stride, nbytes, begin, span, dense)


@functools.lru_cache(256)
def name_of(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, Optional[tuple[int, ...]]]:
    """Return the number of elements from the first to the last in memory, and `ViewLayout.dense`. No size may be 0."""
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    if all(n == 1 or s == dense for n, s, dense in zip(shape, stride, row_major(shape))):
        return elements, shape
    step = 1
    ordered = []
    for s, n in sorted(zip(stride, shape)):
        if n > 1:
            if s != step:
                return elements, None
            step *= n
        ordered.append(n)
    return elements, tuple(reversed(ordered))


def unstorable(tensor: torch.Tensor) -> str:
    """Return why the bytes of a tensor cannot be stored; "" if they can."""
    if not is_plain(type(tensor)):
        kind = type(tensor).__name__
        # AsyncCollectiveTensor is the result of a functional collective that was not waited for yet.
        return UNWAITED if kind == "AsyncCollectiveTensor" else f"a {kind}"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).replace('torch.', '')} layout"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_meta:
        return META
    if tensor._is_zerotensor() and tensor.numel():
        return ZERO
    return ""


def quantization(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the quantization parameters of a quantized tensor: scheme, scale and zero point; per channel also axis."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scheme": "per_tensor", "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "scheme": "per_channel",
        "scale": tensor.q_per_channel_scales().tolist(),
        "zero_point": tensor.q_per_channel_zero_points().tolist(),
        "axis": tensor.q_per_channel_axis(),
    }
