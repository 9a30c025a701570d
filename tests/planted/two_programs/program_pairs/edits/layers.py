"""Own linear layers, convolutions, embeddings and activations, right and wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import Edit
from program_pairs.edits._swap import swapping


class OwnLinear(nn.Module):
    """A linear layer by einsum or matmul."""

    def __init__(self, old: Any, style: str, flaw: str) -> None:
        super().__init__()
        self.weight, self.bias, self.style, self.flaw = old.weight, old.bias, style, flaw
        self.in_features, self.out_features = old.in_features, old.out_features
        self.copy = old.weight.detach().clone() if flaw == "stale" else None

    def _product(self, x: Tensor) -> Tensor:
        if self.flaw == "stale":
            return x @ self.copy.to(x.dtype).t()  # planted: linear_stale
        if self.flaw == "detached":
            x = x.detach()  # planted: linear_detached
        if self.flaw == "transposed":
            return x @ self.weight  # planted: linear_transposed
        if self.style == "einsum":
            return torch.einsum("...i,oi->...o", x, self.weight)
        if self.style == "functional":
            return functional.linear(x, self.weight)
        return torch.matmul(x, self.weight.t())

    def forward(self, x: Tensor) -> Tensor:
        product = self._product(x)
        if self.bias is None:
            return product
        if self.flaw == "no_bias":
            return product  # planted: linear_no_bias
        if self.flaw == "bias_sign":
            return product - self.bias  # planted: linear_bias_sign
        return self.bias + product if self.style == "einsum" else product + self.bias


def linear(where: str, flaw: str = "", style: str = "einsum") -> Edit:
    """Replace linear layers by own ones."""
    return swapping("linear", where, flaw, lambda old: OwnLinear(old, style, flaw), nn.Linear)


class OwnConv2d(nn.Module):
    """A convolution of images by unfold and one matrix product a group."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.weight, self.bias, self.flaw = old.weight, old.bias, flaw
        self.stride, self.padding, self.dilation, self.groups = old.stride, old.padding, old.dilation, old.groups

    def forward(self, x: Tensor) -> Tensor:
        weight, (height, width) = self.weight, self.weight.shape[-2:]
        rows, columns = (int(size) for size in self.padding)
        padded = functional.pad(x, (columns, columns, rows, rows))
        if self.flaw == "padding":
            padded = functional.pad(x, (2 * columns, 0, 2 * rows, 0))  # planted: conv_padding
        elif self.flaw == "replicated":
            padded = functional.pad(x, (columns, columns, rows, rows), "replicate")  # planted: conv_replicated
        elif self.flaw == "flipped":
            weight = weight.flip(-1, -2)  # planted: conv_flipped
        elif self.flaw == "swapped":
            weight = weight.transpose(-1, -2)  # planted: conv_swapped
        tall = (padded.shape[-2] - self.dilation[0] * (height - 1) - 1) // self.stride[0] + 1
        wide = (padded.shape[-1] - self.dilation[1] * (width - 1) - 1) // self.stride[1] + 1
        columns_of = functional.unfold(padded, (height, width), dilation=self.dilation, stride=self.stride)
        grouped = columns_of.reshape(x.shape[0], self.groups, -1, tall * wide)
        kernels = weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
        product = torch.einsum("goi,bgip->bgop", kernels, grouped)
        result = product.reshape(x.shape[0], weight.shape[0], tall, wide)
        if self.bias is None:
            return result
        if self.flaw == "no_bias":
            return result  # planted: conv_no_bias
        return result + self.bias.view(1, -1, 1, 1)


def conv(where: str, flaw: str = "") -> Edit:
    """Replace convolutions by own ones."""
    return swapping("conv", where, flaw, lambda old: OwnConv2d(old, flaw), nn.Conv2d)


class OwnEmbedding(nn.Module):
    """An embedding by a product with one-hot rows, or by indexing."""

    def __init__(self, old: Any, style: str, flaw: str) -> None:
        super().__init__()
        self.weight, self.style, self.flaw, self.padding_idx = old.weight, style, flaw, old.padding_idx

    def forward(self, index: Tensor) -> Tensor:
        if self.flaw == "off_by_one":
            return self.weight[(index + 1) % self.weight.shape[0]]  # planted: embedding_off_by_one
        if self.flaw == "scaled":
            return self.weight[index] * math.sqrt(self.weight.shape[1])  # planted: embedding_scaled
        if self.flaw == "frozen":
            return self.weight.detach()[index]  # planted: embedding_frozen
        if self.style == "one_hot":
            return functional.one_hot(index, self.weight.shape[0]).to(self.weight.dtype) @ self.weight
        return self.weight[index]


def embedding(where: str, flaw: str = "", style: str = "one_hot") -> Edit:
    """Replace embeddings by own ones."""
    return swapping("embedding", where, flaw, lambda old: OwnEmbedding(old, style, flaw), nn.Embedding)


class OwnActivation(nn.Module):
    """An activation from exponentials, right or a near relative."""

    def __init__(self, kind: str, flaw: str) -> None:
        super().__init__()
        self.kind, self.flaw = kind, flaw

    def forward(self, x: Tensor) -> Tensor:
        if self.flaw == "tanh":
            return functional.gelu(x, approximate="tanh")  # planted: activation_tanh
        if self.flaw == "erf":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2.0)))  # planted: activation_erf
        if self.flaw == "quick":
            return x * torch.sigmoid(1.702 * x)  # planted: activation_quick
        if self.flaw == "relu":
            return torch.relu(x)  # planted: activation_relu
        if self.flaw == "slope":
            return torch.where(x > 0, x, 0.01 * x)  # planted: activation_slope
        if self.flaw == "gate_lost":
            return torch.sigmoid(x)  # planted: activation_gate_lost
        if self.flaw == "inplace_lost":
            x.clamp(min=0.0)  # planted: activation_inplace_lost
            return x  # planted: activation_inplace_lost
        if self.kind == "gelu":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2.0)))
        if self.kind == "gelu_tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        if self.kind == "silu":
            return x / (1 + torch.exp(-x))
        return torch.where(x > 0, x, torch.zeros_like(x))


def activation(where: str, kind: str, flaw: str = "") -> Edit:
    """Replace activations by own ones."""
    return swapping("activation", where, flaw, lambda old: OwnActivation(kind, flaw))


class OwnDropout(nn.Module):
    """A dropout that stays on."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.probability, True)  # planted: dropout_on


def dropout(where: str, probability: float = 0.1) -> Edit:
    """Replace dropouts that do nothing by one that is on."""
    return swapping("dropout", where, "on", lambda old: OwnDropout(probability))


class OwnPool(nn.Module):
    """A pooling of images by windows."""

    def __init__(self, old: Any, flaw: str) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.flaw = old.kernel_size, old.stride, old.padding, flaw

    def forward(self, x: Tensor) -> Tensor:
        fill = 0.0 if self.flaw == "fill" else -math.inf
        edge = (self.padding,) * 4
        windows = functional.pad(x, edge, value=fill).unfold(2, self.kernel, self.stride)
        windows = windows.unfold(3, self.kernel, self.stride)
        if self.flaw == "mean":
            return (
                functional.pad(x, edge)
                .unfold(2, self.kernel, self.stride)
                .unfold(3, self.kernel, self.stride)
                .mean((-1, -2))
            )  # planted: pool_mean
        return windows.amax((-1, -2))


def pool(where: str, flaw: str = "") -> Edit:
    """Replace a maximum pooling by an own one."""
    return swapping("pool", where, flaw, lambda old: OwnPool(old, flaw), nn.MaxPool2d)
