"""GE operators for losses, negative log-likelihood and squared error, and for their gradients."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ascend_dump.fakes.kernels._ge_table import operator
from ascend_dump.fakes.kernels.ge_model import GeOp

__all__: list[str] = []

_REDUCTION_CODES = {"none": 0, "mean": 1, "sum": 2}


def _reduction(op: GeOp) -> int:
    return _REDUCTION_CODES[op.attrs.get("reduction", "mean")]


@operator("NLLLoss")
def _nll_loss(op: GeOp, x: Any, target: Any, weight: Optional[Any] = None) -> Any:
    ignored = op.attrs.get("ignore_index", -100)
    return torch.ops.aten.nll_loss_forward(x, target.long(), weight, _reduction(op), ignored)


@operator("NLLLossGrad")
def _nll_loss_grad(op: GeOp, x: Any, gradient: Any, target: Any, weight: Any, total: Any) -> Any:
    ignored = op.attrs.get("ignore_index", -100)
    return torch.ops.aten.nll_loss_backward(gradient, x, target.long(), weight, _reduction(op), ignored, total)


@operator("MseLoss")
def _mse_loss(op: GeOp, prediction: Any, label: Any) -> Any:
    return torch.ops.aten.mse_loss(prediction, label, _reduction(op))


@operator("MseLossGrad")
def _mse_loss_grad(op: GeOp, prediction: Any, label: Any, gradient: Any) -> Any:
    return torch.ops.aten.mse_loss_backward(gradient, prediction, label, _reduction(op))
