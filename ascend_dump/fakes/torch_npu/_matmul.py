"""Operators of torch_npu for matrix products and quantization, computed on the host. Products of int8 are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.torch_npu._operators import gradient, operator, refuse, scalar_type

__all__: list[str] = []


@operator("npu_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
def _linear(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


@operator("npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)")
def _linear_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ weight, rows.t() @ x.reshape(-1, x.shape[-1])


def _save_linear(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.has_bias = inputs[2] is not None


@gradient("npu_linear", _save_linear)
def _linear_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    dx, dweight = torch.ops.npu.npu_linear_backward(grad, *ctx.saved_tensors)
    return dx, dweight, grad.flatten(0, -2).sum(0) if ctx.has_bias else None


@operator("npu_bmmV2(Tensor self, Tensor mat2, int[] output_sizes) -> Tensor")
def _bmm(x: torch.Tensor, other: torch.Tensor, output_sizes: Sequence[int]) -> torch.Tensor:
    product = torch.matmul(x, other)
    return product.view(output_sizes) if output_sizes else product


def _save_bmm(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


@gradient("npu_bmmV2", _save_bmm)
def _bmm_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, other = ctx.saved_tensors
    grad = grad.view(*x.shape[:-1], other.shape[-1])
    dx, dother = grad @ other.transpose(-1, -2), x.transpose(-1, -2) @ grad
    return dx.sum_to_size(x.shape), dother.sum_to_size(other.shape), None


_GROUPED = (
    "Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None,"
    " Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None,"
    " {} group_list=None, Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None,"
    " Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, int? group_list_type=0,"
    " int? act_type=0{}) -> Tensor[]"
)


@operator(
    "npu_grouped_matmul("
    + _GROUPED.format(
        "Tensor?",
        ", int[]? tuning_config=None, int? output_dtype=None, int? x_dtype=None,"
        " int? weight_dtype=None, int? scale_dtype=None, int? per_token_scale_dtype=None",
    )
)
def _grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Optional[Sequence[torch.Tensor]] = None,
    scale: Optional[Sequence[torch.Tensor]] = None,
    per_token_scale: Optional[Sequence[torch.Tensor]] = None,
    group_list: Any = None,
    split_item: int = 0,
    group_type: Optional[int] = None,
    group_list_type: int = 0,
    act_type: int = 0,
    output_dtype: Any = None,
    tuning_config: Any = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Return the matrix products of groups of rows of `x` with the weight of each group.

    group_list: the end of each group, as a number of rows from the start; with group_list_type 1 its size. With
    group_type 2, the groups are those of the inner axis: columns of `x`, and rows of the weight.
    """
    refuse("npu_grouped_matmul", act_type=act_type, **options)
    weights = list(weight[0].unbind(0)) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    sizes = _group_sizes(group_list, group_list_type)
    if group_type == 2:
        parts = zip(x[0].split(sizes, 1), weight[0].split(sizes, 0))
        return [torch.stack([_product(rows, columns) for rows, columns in parts])]
    inputs = list(x[0][: sum(sizes)].split(sizes)) if len(x) == 1 and sizes else list(x)
    if len(inputs) != len(weights):
        raise RuntimeError(f"npu_grouped_matmul got {len(inputs)} groups of x and {len(weights)} weights")
    biases, scales = (_each(values, len(inputs)) for values in (bias, scale))
    row_scales = [None] * len(inputs) if per_token_scale is None else _rows(per_token_scale, sizes)
    dtype = output_dtype if isinstance(output_dtype, torch.dtype) else scalar_type(output_dtype, torch.bfloat16)
    results = []
    for rows, columns, one_bias, one_scale, row_scale in zip(inputs, weights, biases, scales, row_scales):
        product = _product(rows, columns, one_bias, one_scale, row_scale)
        results.append(product if scale is None else product.to(dtype))
    return results if split_item in (0, 1) else [_padded(torch.cat(results), x)]


@operator("npu_grouped_matmul.List(" + _GROUPED.format("int[]?", ", ScalarType? output_dtype=None"))
def _grouped_matmul_list(x: Any, weight: Any, **options: Any) -> list[torch.Tensor]:
    products: list[torch.Tensor] = _grouped_matmul(x, weight, **options)
    return products


def _padded(joined: torch.Tensor, x: Sequence[torch.Tensor]) -> torch.Tensor:
    """Append rows of 0 to the joined results, so that there are as many rows as in the only input.

    With several inputs nothing is appended.
    """
    missing = x[0].shape[0] - joined.shape[0] if len(x) == 1 else 0
    return torch.nn.functional.pad(joined, (0, 0, 0, missing))


def _group_sizes(group_list: Any, kind: int) -> list[int]:
    if group_list is None:
        return []
    if kind not in (0, 1):
        raise NotSupported(f"the fake torch_npu has no group_list_type {kind}", hint="it has 0 and 1")
    values = [int(value) for value in group_list]
    return values if kind == 1 else [end - start for start, end in zip([0, *values], values)]


def _each(values: Optional[Sequence[torch.Tensor]], count: int) -> list[Optional[torch.Tensor]]:
    """Return the bias or scale of each of `count` groups; None for each if there are none.

    values: one tensor for each group, or one tensor with a row for each.
    """
    if not values:
        return [None] * count
    return list(values[0]) if len(values) == 1 and count > 1 else list(values)


def _rows(values: Sequence[torch.Tensor], sizes: list[int]) -> list[Any]:
    return list(values[0][: sum(sizes)].split(sizes)) if len(values) == 1 and sizes else list(values)


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    scale: Optional[torch.Tensor] = None,
    row_scale: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Return `x @ weight + bias`, multiplied by the scale of each column and of each row.

    The result has the type of `x`; for int8 it is int32, and with a scale it is float32.
    """
    # Sums of products of int8 are exact in float64.
    wide = x.double() @ weight.double() if x.dtype == torch.int8 else x.float() @ weight.float()
    if bias is not None:
        wide = wide + bias.to(wide.dtype)
    if scale is None:
        return wide.to(torch.int32 if x.dtype == torch.int8 else x.dtype)
    wide = wide.float() * _decoded(scale)
    return wide if row_scale is None else wide * row_scale.float().unsqueeze(-1)


def _decoded(scale: torch.Tensor) -> torch.Tensor:
    """Return a scale as float32. `npu_trans_quant_param` stores the 32 bits of a scale in the low half of an int64."""
    if scale.dtype in (torch.int64, torch.uint64):
        return (scale.view(torch.int64) & 0xFFFFFFFF).to(torch.int64).view(torch.int32)[..., ::2].view(torch.float32)
    return scale.float()


@operator("npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor")
def _trans_quant_param(
    scale: torch.Tensor, offset: Optional[torch.Tensor] = None, round_mode: Optional[int] = 0
) -> torch.Tensor:
    refuse("npu_trans_quant_param", offset=offset, round_mode=round_mode)
    return scale.float().contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


@operator(
    "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, Tensor? pertoken_scale=None,"
    " Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, int? x2_dtype=None,"
    " int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None, Tensor? y_scale=None) -> Tensor"
)
def _quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: Optional[torch.Tensor] = None,
    pertoken_scale: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
    output_dtype: Optional[int] = None,
    **options: Any,
) -> torch.Tensor:
    refuse("npu_quant_matmul", **options)
    if x1.dtype != torch.int8 or x2.dtype != torch.int8:
        raise NotSupported(
            f"the fake torch_npu has npu_quant_matmul of int8, not of {x1.dtype} and {x2.dtype}", hint="use int8"
        )
    early = bias if bias is not None and bias.dtype == torch.int32 else None
    product = _product(x1, x2, early, scale, pertoken_scale)
    if bias is not None and early is None:
        product = product + bias.float()
    dtype = scalar_type(output_dtype, torch.int8)
    if dtype == torch.int8:
        return _rounded(product if offset is None else product + offset.float())
    return product.to(dtype)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return values.round().clamp(-128, 127).to(torch.int8)


@operator(
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None,"
    ' str quant_mode="pertoken", float dst_type_max=0.0) -> (Tensor, Tensor)'
)
def _dynamic_quant(
    x: torch.Tensor,
    *,
    smooth_scales: Optional[torch.Tensor] = None,
    group_index: Optional[torch.Tensor] = None,
    dst_type: Optional[int] = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x` as int8, and the float32 scale of each token. In the mode "pertensor" there is one scale for all."""
    refuse("npu_dynamic_quant", dst_type_max=dst_type_max)
    if scalar_type(dst_type, torch.int8) != torch.int8 or quant_mode not in ("pertoken", "pertensor"):
        raise NotSupported(
            f"the fake torch_npu has no npu_dynamic_quant to {dst_type} in the mode {quant_mode!r}",
            hint="it has int8 in the modes 'pertoken' and 'pertensor'",
        )
    wide = x.float()
    if smooth_scales is not None:
        wide = wide * (smooth_scales if group_index is None else _of_rows(smooth_scales, group_index, x)).float()
    axes = (-1,) if quant_mode == "pertoken" else tuple(range(x.dim()))
    scale = wide.abs().amax(axes, keepdim=True) / 127
    values = _rounded(wide / scale.clamp_min(torch.finfo(torch.float32).tiny))
    return values, scale.squeeze(-1) if quant_mode == "pertoken" else scale.reshape(1)


def _of_rows(scales: torch.Tensor, ends: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return for each row of `x` the scales of its group. ends: the number of the row at which each group ends."""
    groups = torch.bucketize(torch.arange(x.shape[0]), ends.long(), right=True).clamp_max(len(scales) - 1)
    return scales[groups]


@operator(
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, bool div_mode=True) -> Tensor"
)
def _quantize(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: Optional[torch.Tensor],
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    if scalar_type(dtype, torch.int8) != torch.int8:
        raise NotSupported(f"the fake torch_npu has npu_quantize to int8, not to {dtype}", hint="use dtype=torch.int8")
    shape = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())]
    scale = scales.float().view(shape)
    values = x.float() / scale if div_mode else x.float() * scale
    return _rounded(values if zero_points is None else values + zero_points.float().view(shape))
