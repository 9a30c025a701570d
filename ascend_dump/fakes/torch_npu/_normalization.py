"""Operators of torch_npu for norms, activations, rotary embeddings and layouts, computed on the host."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump.fakes.torch_npu._operators import gradient, operator, refuse

__all__: list[str] = []

_Pair = tuple[torch.Tensor, torch.Tensor]
_Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@operator("npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)")
def _rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> _Pair:
    """Return `x`, normalised over the axes of `gamma`, and the reciprocal of its root mean square."""
    axes = tuple(range(-gamma.dim(), 0))
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * scale * gamma.float()).to(x.dtype), scale


@operator("npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)")
def _rms_norm_backward(dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor) -> _Pair:
    axes = tuple(range(-gamma.dim(), 0))
    normal, scaled = x.float() * rstd, dy.float() * gamma.float()
    dx = rstd * (scaled - normal * (scaled * normal).mean(axes, keepdim=True))
    return dx.to(x.dtype), (dy.float() * normal).sum_to_size(gamma.shape)


def _save_rms_norm(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.mark_non_differentiable(output[1])


@gradient("npu_rms_norm", _save_rms_norm)
def _rms_norm_gradient(ctx: Any, dy: torch.Tensor, drstd: Any) -> tuple[Any, ...]:
    return (*torch.ops.npu.npu_rms_norm_backward(dy, *ctx.saved_tensors), None)


@operator("npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)")
def _add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> _Triple:
    total = x1 + x2
    normal, scale = _rms_norm(total, gamma, epsilon)
    return normal, scale, total


@operator("npu_swiglu(Tensor self, int dim=-1) -> Tensor")
def _swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, value = x.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * value).to(x.dtype)


@operator("npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor")
def _swiglu_backward(grad_output: torch.Tensor, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, value = x.float().chunk(2, dim)
    sigmoid, grad = torch.sigmoid(gate), grad_output.float()
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((grad * value * slope, grad * gate * sigmoid), dim).to(x.dtype)


def _save_swiglu(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.dim = inputs[1]


@gradient("npu_swiglu", _save_swiglu)
def _swiglu_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.npu.npu_swiglu_backward(grad, *ctx.saved_tensors, ctx.dim), None


def _rotate(x: torch.Tensor, mode: str, sign: int = 1) -> torch.Tensor:
    """Return `x` rotated in its last axis: (a, b) becomes (-b, a).

    mode: "half" rotates the first half (a) with the second half (b), others rotate pairs of neighbours. sign: -1 for
    the opposite direction.
    """
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-sign * second, sign * first), -1)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack((-sign * second, sign * first), -1).flatten(-2)


@operator("npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor")
def _rotary_mul(
    x: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    refuse("npu_rotary_mul", rotate=rotate)
    wide = x.float()
    return (wide * r1.float() + _rotate(wide, rotary_mode) * r2.float()).to(x.dtype)


@operator(
    "npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2, str rotary_mode='half')"
    " -> (Tensor, Tensor, Tensor)"
)
def _rotary_mul_backward(
    grad: torch.Tensor, x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> _Triple:
    wide, dy = x.float(), grad.float()
    dx = dy * r1.float() + _rotate(dy * r2.float(), rotary_mode, -1)
    dr1, dr2 = (dy * wide).sum_to_size(r1.shape), (dy * _rotate(wide, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(x.dtype), dr1.to(r1.dtype), dr2.to(r2.dtype)


def _save_rotary(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.mode = inputs[3]


@gradient("npu_rotary_mul", _save_rotary)
def _rotary_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return (*torch.ops.npu.npu_rotary_mul_backward(grad, *ctx.saved_tensors, ctx.mode), None, None)


@operator(
    "npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, str layout='BSND',"
    " str rotary_mode='half') -> (Tensor, Tensor)"
)
def _apply_rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> _Pair:
    return _rotary_mul(query, cos, sin, rotary_mode), _rotary_mul(key, cos, sin, rotary_mode)


@operator("npu_gelu(Tensor self, *, str approximate='none') -> Tensor")
def _gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


@operator("npu_gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor")
def _gelu_backward(grad_output: torch.Tensor, x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    return torch.ops.aten.gelu_backward(grad_output, x, approximate=approximate)


def _save_gelu(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.approximate = keyword_only_inputs["approximate"]


@gradient("npu_gelu", _save_gelu)
def _gelu_gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return torch.ops.npu.npu_gelu_backward(grad, *ctx.saved_tensors, approximate=ctx.approximate)


@operator("npu_confusion_transpose(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor")
def _confusion_transpose(x: torch.Tensor, perm: Any, shape: Any, transpose_first: bool) -> torch.Tensor:
    """Return `x` transposed and then reshaped; if not transpose_first, reshaped and then transposed."""
    if transpose_first:
        return x.permute(*perm).reshape(shape).clone()
    return x.reshape(shape).permute(*perm).contiguous().clone()


@operator("npu_confusion_transpose_backward(Tensor grad, int[] perm, SymInt[] shape, bool transpose_first) -> Tensor")
def _confusion_transpose_backward(grad: torch.Tensor, perm: Any, shape: Any, transpose_first: bool) -> torch.Tensor:
    """Undo the transposition and the reshape of a forward pass. Return `grad` in `shape`, the shape of the input.

    transpose_first: the opposite of the argument of the forward pass, because the steps are undone in reverse order.
    """
    inverse = [perm.index(axis) for axis in range(len(perm))]
    if transpose_first:
        return grad.permute(*inverse).reshape(shape).clone()
    return grad.reshape([shape[axis] for axis in perm]).permute(*inverse).contiguous().clone()


def _save_confusion(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape, ctx.perm, ctx.first = inputs[0].shape, list(inputs[1]), inputs[3]


@gradient("npu_confusion_transpose", _save_confusion)
def _confusion_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    dx = torch.ops.npu.npu_confusion_transpose_backward(grad, ctx.perm, ctx.shape, not ctx.first)
    return dx, None, None, None


@operator("npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor")
def _scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    refuse("npu_scaled_masked_softmax", fixed_triu_mask=fixed_triu_mask)
    scores = (x.float() * scale).masked_fill(mask.bool(), -10000.0)
    return torch.softmax(scores, -1).to(x.dtype)


@operator("npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1, Scalar off_value=0) -> Tensor")
def _one_hot(
    x: torch.Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> torch.Tensor:
    """Return float32 values: `on_value` at the index in a new axis of length `depth`, else `off_value`.

    num_classes: the position of the new axis, counted from the end.
    """
    positions = torch.arange(depth)
    hot = x.unsqueeze(num_classes) == positions.view(-1, *(1,) * (-num_classes - 1))
    return torch.where(hot, float(on_value), float(off_value))
