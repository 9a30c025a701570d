"""GE operators that gather and scatter elements by tensors of indices, and ViewCopy, which writes into a view."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.kernels._ge_table import integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import torch_dtype

__all__: list[str] = []

_INT64 = 9  # ge::DataType


@operator("IndexByTensor")
def _index(op: GeOp, x: Any, *indices: Any) -> Any:
    """Index `x` by tensors. `indices_mask` is 1 for each leading dimension that a tensor indexes, 0 for others."""
    tensors = iter(indices)
    return x[tuple(next(tensors).long() if is_indexed else slice(None) for is_indexed in op.attrs["indices_mask"])]


@operator("GatherElements")
def _gather_elements(op: GeOp, x: Any, index: Any) -> Any:
    return x.gather(op.attrs.get("dim", 0), index.long())


@operator("ScatterElements")
def _scatter_elements(op: GeOp, x: Any, indices: Any, updates: Any) -> Any:
    axis, reduction = op.attrs.get("axis", 0), op.attrs.get("reduction", "none")
    # Negative indices count from the end. torchair's converter of select_scatter relies on this.
    indices = indices.long()
    indices = indices + (indices < 0) * x.shape[axis]
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    names = {"add": "sum", "mul": "prod"}
    return x.scatter_reduce(axis, indices, updates, names.get(reduction, reduction))


@operator("InplaceIndexAdd")
def _index_add(op: GeOp, x: Any, indices: Any, updates: Any, alpha: Optional[Any] = None) -> Any:
    return x.index_add(op.attrs["axis"], indices, updates, alpha=1 if alpha is None else alpha.item())


@operator("ViewCopy")
def _view_copy(
    op: GeOp, x: Any, size: Any, stride: Any, offset: Any, src: Any, src_size: Any, src_stride: Any, src_offset: Any
) -> Any:
    """Return a copy of `x`, in which the elements of a view of `src` replace those of a view of `x`."""
    copy = x.contiguous().clone()
    values = src.contiguous().as_strided(integers(src_size), integers(src_stride), int(src_offset))
    copy.as_strided(integers(size), integers(stride), int(offset)).copy_(values)
    return copy


@operator("SearchSorted")
def _search_sorted(op: GeOp, ordered: Any, values: Any, sorter: Optional[Any] = None) -> Any:
    positions = torch.searchsorted(ordered, values, right=op.attrs.get("right", False), sorter=sorter)
    return positions.to(torch_dtype(op.attrs.get("dtype", _INT64)))


@operator("EmbeddingDenseGrad")
def _embedding_grad(op: GeOp, gradient: Any, indices: Any) -> Any:
    attrs = op.attrs
    return torch.ops.aten.embedding_dense_backward(
        gradient,
        indices.long(),
        attrs["num_weights"],
        attrs.get("padding_idx", -1),
        attrs.get("scale_grad_by_freq", False),
    )


_BAGS = {"sum": 0, "mean": 1, "max": 2}


@operator("EmbeddingBag")
def _embedding_bag(
    op: GeOp, weight: Any, indices: Any, offsets: Optional[Any] = None, scales: Optional[Any] = None
) -> Any:
    """Return for each bag the sum, mean or maximum of its rows of `weight`, and three outputs for the gradient."""
    attrs = op.attrs
    if offsets is None:
        raise NotSupported(f"EmbeddingBag {op.name!r} has no offsets", hint="define the bags by offsets")
    return torch.ops.aten._embedding_bag(
        weight,
        indices,
        offsets,
        attrs.get("scale_grad_by_freq", False),
        _BAGS[attrs.get("mode", "mean")],
        attrs.get("sparse", False),
        scales,
        attrs.get("include_last_offset", False),
        attrs.get("padding_idx", -1),
    )
