"""Own normalisations, right and wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from program_pairs.case import Edit
from program_pairs.edits._swap import swapping


class OwnLayerNorm(nn.Module):
    """Layer norm over the last dimension, from means and a root."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.flaw = old.weight, old.bias, old.eps, flaw
        if flaw == "eps":
            self.eps = 1e-2  # planted: layer_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        if self.flaw == "axis":
            mean = x.mean(1, keepdim=True)  # planted: layer_norm_axis
            variance = (x - mean).square().mean(1, keepdim=True)  # planted: layer_norm_axis
        elif self.flaw == "unbiased":
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)  # planted: layer_norm_unbiased
        elif self.flaw == "uncentred":
            mean = x.mean(-1, keepdim=True)
            variance = x.square().mean(-1, keepdim=True)  # planted: layer_norm_uncentred
        elif self.flaw == "kept_mean":
            mean = x.mean(-1, keepdim=True)
            variance = (x - mean).square().mean(-1, keepdim=True)
            mean = torch.zeros_like(mean)  # planted: layer_norm_kept_mean
        else:
            mean = x.mean(-1, keepdim=True)
            variance = (x - mean).square().mean(-1, keepdim=True)
        if self.flaw == "no_root":
            normed = (x - mean) / (variance + self.eps)  # planted: layer_norm_no_root
        elif self.flaw == "eps":
            normed = (x - mean) * torch.rsqrt(variance + self.eps)  # planted: layer_norm_eps
        else:
            normed = (x - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is None:
            return normed
        if self.flaw == "one_plus":
            normed = normed * (1 + self.weight)  # planted: layer_norm_one_plus
        else:
            normed = normed * self.weight
        if self.bias is None:
            return normed
        if self.flaw == "bias_sign":
            return normed - self.bias  # planted: layer_norm_bias_sign
        return normed + self.bias


def layer_norm(where: str = ".*", flaw: str = "") -> Edit:
    """Replace layer norms over the last dimension by own ones."""
    return swapping("layer_norm", where, flaw, lambda old: OwnLayerNorm(old, flaw), nn.LayerNorm)


class _RMSKind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        name = type(instance).__name__
        return name.endswith("RMSNorm") or name in ("T5LayerNorm", "FP32RMSNorm")


class RMSKind(metaclass=_RMSKind):
    """Any root mean square norm."""


class OwnRMSNorm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.weight, self.flaw = old.weight, flaw
        self.eps = getattr(old, "variance_epsilon", None) or getattr(old, "eps", None) or 1e-6
        self.offset = 1.0 if type(old).__name__.startswith("Gemma") else 0.0
        if flaw == "eps":
            self.eps = 1e-2  # planted: rms_norm_eps
        elif flaw == "offset":
            self.offset = 1.0 - self.offset  # planted: rms_norm_offset

    def forward(self, x: Tensor) -> Tensor:
        if self.flaw == "centred":
            mean = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)  # planted: rms_norm_centred
        elif self.flaw == "sum":
            mean = x.square().sum(-1, keepdim=True)  # planted: rms_norm_sum
        elif self.flaw == "absolute":
            mean = x.abs().mean(-1, keepdim=True).square()  # planted: rms_norm_absolute
        else:
            mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        if self.flaw == "eps_outside":
            normed = x / (mean.sqrt() + self.eps * 1e4)  # planted: rms_norm_eps_outside
        elif self.flaw == "eps":
            normed = x / (mean + self.eps).sqrt()  # planted: rms_norm_eps
        elif self.flaw == "detached":
            normed = x / (mean + self.eps).sqrt().detach()  # planted: rms_norm_detached
        else:
            normed = x / (mean + self.eps).sqrt()
        if self.flaw == "no_weight":
            return normed  # planted: rms_norm_no_weight
        if self.offset:
            return (self.offset + self.weight) * normed  # planted: rms_norm_offset
        return self.weight * normed  # planted: rms_norm_offset


def rms_norm(where: str = ".*", flaw: str = "") -> Edit:
    """Replace RMS norms by own ones."""
    return swapping("rms_norm", where, flaw, lambda old: OwnRMSNorm(old, flaw), RMSKind)


class FunctionalRMSNorm(nn.Module):
    """RMS norm by `torch.nn.functional.rms_norm`."""

    def __init__(self, old: Any) -> None:
        super().__init__()
        self.weight = old.weight
        self.eps = getattr(old, "variance_epsilon", None) or getattr(old, "eps", None) or 1e-6
        self.offset = 1.0 if type(old).__name__.startswith("Gemma") else 0.0

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.offset if self.offset else self.weight
        return nn.functional.rms_norm(x, (x.shape[-1],), weight, self.eps)


def composite_rms_norm(where: str = ".*") -> Edit:
    """Replace decomposed RMS norms by the operator of PyTorch."""
    return swapping("composite_rms_norm", where, "", FunctionalRMSNorm, RMSKind)


class OwnBatchNorm(nn.Module):
    """Batch norm of images, with running statistics; keeps the activation that timm puts behind it."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.weight, self.bias, self.flaw = old.weight, old.bias, flaw
        self.running_mean = nn.Buffer(old.running_mean)
        self.running_var = nn.Buffer(old.running_var)
        self.num_batches_tracked = nn.Buffer(old.num_batches_tracked)
        self.eps, self.momentum = old.eps, old.momentum
        self.drop, self.act = getattr(old, "drop", nn.Identity()), getattr(old, "act", nn.Identity())
        if flaw == "eps":
            self.eps = 0.1  # planted: batch_norm_eps
        elif flaw == "momentum":
            self.momentum = 1 - self.momentum  # planted: batch_norm_momentum

    def _update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.flaw == "not_updated":
            self.running_mean.lerp(mean, self.momentum)  # planted: batch_norm_not_updated
            return
        unbiased = variance * count / (count - 1)
        if self.flaw == "root":
            unbiased = unbiased.sqrt()  # planted: batch_norm_root
        with torch.no_grad():
            self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)  # planted: batch_norm_momentum
            self.running_var.mul_(1 - self.momentum).add_(unbiased, alpha=self.momentum)  # planted: batch_norm_momentum
            self.num_batches_tracked.add_(1)

    def forward(self, x: Tensor) -> Tensor:
        dims = (0, 2, 3)
        if self.flaw == "instance":
            dims = (2, 3)
        if self.training and self.flaw != "evaluating":
            mean, variance = x.mean(dims), x.var(dims, unbiased=False)  # planted: batch_norm_instance
            if self.flaw == "unbiased":
                variance = x.var(dims, unbiased=True)  # planted: batch_norm_unbiased
            if mean.dim() == 1:
                self._update(mean.detach(), variance.detach(), x.numel() // x.shape[1])
        else:
            mean, variance = self.running_mean, self.running_var  # planted: batch_norm_evaluating
        shape = (-1, x.shape[1], 1, 1) if mean.dim() == 2 else (1, -1, 1, 1)
        normed = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)  # planted: batch_norm_eps
        if self.flaw == "no_affine":
            return self.act(self.drop(normed + self.bias.view(1, -1, 1, 1)))  # planted: batch_norm_no_affine
        return self.act(self.drop(normed * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)))


def batch_norm(where: str = ".*", flaw: str = "") -> Edit:
    """Replace batch norms by own ones."""
    return swapping("batch_norm", where, flaw, lambda old: OwnBatchNorm(old, flaw), nn.BatchNorm2d)


class OwnGroupNorm(nn.Module):
    """Group norm by a reshape."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.groups, self.flaw = old.weight, old.bias, old.eps, old.num_groups, flaw
        if flaw == "eps":
            self.eps = 0.1  # planted: group_norm_eps
        elif flaw == "groups":
            self.groups = old.num_groups * 2  # planted: group_norm_groups

    def forward(self, x: Tensor) -> Tensor:
        batch, channels = x.shape[:2]
        if self.flaw == "interleaved":
            grouped = x.reshape(batch, channels // self.groups, self.groups, -1)
            mean = grouped.mean((1, 3), keepdim=True)  # planted: group_norm_interleaved
            variance = grouped.var((1, 3), keepdim=True, unbiased=False)  # planted: group_norm_interleaved
        else:
            grouped = x.reshape(batch, self.groups, -1)
            mean = grouped.mean(-1, keepdim=True)  # planted: group_norm_groups
            variance = grouped.var(-1, keepdim=True, unbiased=False)  # planted: group_norm_groups
        normed = (grouped - mean) * torch.rsqrt(variance + self.eps)  # planted: group_norm_eps
        shape = (1, channels) + (1,) * (x.dim() - 2)
        scaled = normed.reshape(x.shape) * self.weight.view(shape)
        if self.flaw == "no_bias":
            return scaled  # planted: group_norm_no_bias
        return scaled + self.bias.view(shape)


def group_norm(where: str = ".*", flaw: str = "") -> Edit:
    """Replace group norms by own ones."""
    return swapping("group_norm", where, flaw, lambda old: OwnGroupNorm(old, flaw), nn.GroupNorm)
