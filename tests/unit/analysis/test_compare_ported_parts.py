"""Programs that are written anew: a loss by functions, tokens in another order, padding by an operator of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match

Loss = Callable[[nn.Module, Tensor], Tensor]
WIDTH, HEADS, LENGTH, RATE = 16, 2, 5, 0.05
#: A norm enlarges the rounding of elements that have much in common.
OFFSET = 100.0


def dump(
    path: Path, model: nn.Module, loss_of: Loss, data: Tensor, after: Optional[Callable[[], object]] = None
) -> Path:
    """Train a model in two steps with SGD. after: runs behind each update"""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    with ascend_dump.capture(model, path=path, steps="0|1", data="tensor", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, data).backward()
            optimizer.step()
            if after is not None:
                after()
    return path


def dump_by_hand(path: Path, model: nn.Module, loss_of: Loss, data: Tensor) -> Path:
    """Do the same without an optimizer."""
    parameters = list(model.parameters())
    with ascend_dump.capture(model, path=path, steps="0|1", data="tensor", quiet=True):
        for _ in range(2):
            gradients = torch.autograd.grad(loss_of(model, data), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients):
                    parameter -= RATE * gradient
    return path


def clicks() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    return model, torch.randn(7, 6), torch.tensor([0.0, 1, 1, 0, 1, 0, 0])


class Port(nn.Module):  # type: ignore[misc,unused-ignore]  # torch may be untyped
    """The same network by functions."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.weights = nn.ParameterList(each for each in source.parameters() if each.ndim == 2)
        self.biases = nn.ParameterList(each for each in source.parameters() if each.ndim == 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.addmm(self.biases[0], x, self.weights[0].t()).clamp_min(0)
        return torch.addmm(self.biases[1], hidden, self.weights[1].t())[:, 0]


def loss_by_functions(clicked: Tensor, *, is_weighted: bool) -> Loss:
    def loss_of(model: nn.Module, data: Tensor) -> Tensor:
        logits = model(data)
        weights = 1 + 2 * clicked if is_weighted else 1.0
        terms = functional.softplus(logits) - clicked * logits
        return (terms * weights).mean()

    return loss_of


def compared_clicks(tmp_path: Path, *, is_weighted: bool) -> ascend_dump.Comparison:
    model, data, clicked = clicks()
    actual = dump_by_hand(tmp_path / "actual", Port(model), loss_by_functions(clicked, is_weighted=is_weighted), data)
    model, data, clicked = clicks()
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    reference = dump(tmp_path / "reference", model, lambda model, data: criterion(model(data), clicked), data)
    return ascend_dump.compare(actual, reference)


def test_a_loss_by_functions_agrees_with_that_of_a_module(tmp_path: Path) -> None:
    comparison = compared_clicks(tmp_path, is_weighted=True)
    assert not comparison.origins, comparison.origins[0].evidence
    # Products of other factors, paired by their order, end in parts that agree.
    assert not [pair for pair in comparison.pairs if pair.differs], comparison.counts


def test_a_loss_that_differs_from_that_of_a_module_is_named(tmp_path: Path) -> None:
    [origin, *_] = compared_clicks(tmp_path, is_weighted=False).origins
    assert origin.kind == "structure", origin.evidence
    assert origin.op_name == "BCEWithLogitsLoss/binary_cross_entropy_with_logits_0", origin.evidence


def test_a_flag_is_no_partner_of_a_loss(tmp_path: Path) -> None:
    flag = torch.zeros(())
    model, data, wanted = clicks()
    actual = dump(tmp_path / "actual", model, lambda model, data: (model(data) - wanted).abs().sum(), data)
    model, data, wanted = clicks()
    criterion = nn.L1Loss(reduction="sum")
    reference = dump(
        tmp_path / "reference",
        model,
        lambda model, data: criterion(model(data), wanted),
        data,
        lambda: flag.eq(0).item(),
    )
    comparison = ascend_dump.compare(actual, reference)
    pairs = [(pair.actual, pair.reference) for pair in comparison.pairs]
    assert not [
        a for a, b in pairs if a is not None and b is not None and "bool" in (a.dtype, b.dtype) and a.dtype != b.dtype
    ]
    assert not comparison.origins, comparison.origins[0].evidence


class Attention(nn.Module):  # type: ignore[misc,unused-ignore]  # torch may be untyped
    """The attention of `nn.MultiheadAttention`, with the batch first in all tensors, and a layer a projection."""

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        weights, biases = source.in_proj_weight.chunk(3), source.in_proj_bias.chunk(3)
        self.projections, self.out_proj = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)), source.out_proj
        for layer, weight, bias in zip(self.projections, weights, biases):
            layer.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x) for layer in self.projections)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc,unused-ignore]  # torch may be untyped
    """An attention with a residual connection."""

    def __init__(self, *, is_port: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head, self.is_port = nn.Linear(WIDTH, WIDTH), is_port
        nn.init.normal_(self.attention.in_proj_bias)
        if not is_port:
            self.attention = Attention(self.attention)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_port:
            centred = x - x.mean(-1, keepdim=True)
            normed = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
            normed = normed * self.norm.weight + self.norm.bias
            return x + self.head(self.attention(normed, normed, normed, need_weights=False)[0])
        return x + self.head(self.attention(self.norm(x)))


def test_tokens_in_another_order_are_no_difference(tmp_path: Path) -> None:
    paths = []
    for name in ("actual", "reference"):
        model = nn.Sequential(*(Block(is_port=name == "actual") for _ in range(3)))
        torch.manual_seed(1)
        data = torch.randn(6, LENGTH, WIDTH) + OFFSET
        paths.append(dump(tmp_path / name, model, lambda model, data: model(data).square().mean(), data))
    comparison = ascend_dump.compare(*paths)
    assert not comparison.origins, comparison.origins[0].evidence
    assert not [pair for pair in comparison.pairs if pair.differs], comparison.counts


def differing_pair(tmp_path: Path, name: str, x: Tensor, y: Tensor) -> Pair:
    """Return the pair of two tensors in two programs, as if they differ."""
    records = []
    for side, tensor in (("actual", x), ("reference", y)):
        with ascend_dump.capture(None, path=tmp_path / name / side, steps="0", data="tensor", quiet=True):
            tensor.neg()
        [batch] = ascend_dump.open(tmp_path / name / side).batches()
        records.append(next(record for record in batch if record.io == "input"))
    return Pair(records[0], records[1], "order", 0.7, "different", "")


def test_inputs_have_the_same_elements_in_another_order_but_for_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, WIDTH)
    moved = x.flip(0) * (1 + 1e-6 * torch.randn(12, WIDTH))
    in_another_order = differing_pair(tmp_path, "moved", x, moved)
    enlarged = differing_pair(tmp_path, "enlarged", x, 1.01 * moved)
    assert operators_with(in_another_order).are_in_another_order
    assert not operators_with(in_another_order, enlarged).are_in_another_order
    assert not operators_with(replace(in_another_order, verdict="noise")).are_in_another_order


def operators_with(*inputs: Pair) -> OperatorPair:
    nothing = Operator(0, "aten::mm", "mm_0", "backward", "", "")
    operators = OperatorPair(Match(nothing, nothing, "order", 0.7))
    operators.inputs.extend(inputs)
    return operators


class Shrink(nn.Module):  # type: ignore[misc,unused-ignore]  # torch may be untyped
    """A convolution that halves the image, padded at two borders or at all of them."""

    def __init__(self, padding: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.shrink = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2)
        self.after, self.padding = nn.Conv2d(4, 2, 1), padding

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.before(x))
        if len(self.padding) == 1:
            x = functional.conv2d(x, self.shrink.weight, self.shrink.bias, 2, self.padding)
        else:
            x = self.shrink(functional.pad(x, self.padding))
        return self.after(functional.silu(x))


@pytest.mark.parametrize(("padding", "is_right"), [((1,), False), ((0, 1, 0, 1), True)])
def test_another_padding_is_named(tmp_path: Path, padding: tuple[int, ...], is_right: bool) -> None:
    paths = []
    for name, sizes in (("actual", padding), ("reference", (0, 1, 0, 1))):
        model = Shrink(sizes)
        torch.manual_seed(1)
        paths.append(
            dump(tmp_path / name, model, lambda model, data: model(data).square().mean(), torch.randn(2, 3, 8, 8))
        )
    comparison = ascend_dump.compare(*paths)
    if is_right:
        assert not comparison.origins
        return
    assert comparison.origins[0].evidence[0] == "aten::constant_pad_nd runs in the reference only"
