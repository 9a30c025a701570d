"""One program has other weights, because it computes a part of the network before it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ascend_dump

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

LAYERS, WIDTH = 3, 8


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(LAYERS))
        for norm in self.norms:
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = torch.relu(norm(conv(x)))
        return x.mean((2, 3))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.ins = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.outs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for norm, first, second in zip(self.norms, self.ins, self.outs):
            x = x + second(torch.tanh(first(norm(x))))
        return x


def dumped(net: nn.Module, x: Tensor, path: Path) -> str:
    with ascend_dump.capture(net, steps="0", path=str(path), quiet=True), torch.no_grad():
        net(x)
    return str(path)


def convolutions(path: Path, folded: bool = False, wrong: int = -1) -> str:
    """Dump a network with batch norms. folded: they are folded into the convolutions; wrong: in this layer wrongly."""
    torch.manual_seed(0)
    net = Convolutions().eval()
    for layer in range(LAYERS) if folded else ():
        net.convs[layer] = fuse_conv_bn_eval(net.convs[layer], net.norms[layer])
        if layer == wrong:
            with torch.no_grad():
                net.convs[layer].bias += net.norms[layer].running_mean
        net.norms[layer] = nn.Identity()
    return dumped(net, torch.randn(2, 4, 6, 6), path)


def blocks(path: Path, folded: bool = False, wrong: int = -1) -> str:
    """Dump a network. folded: norms have factors that the layers behind them divide by; wrong: but for this layer."""
    torch.manual_seed(0)
    net, x = Blocks().eval(), torch.randn(5, WIDTH)
    for layer in range(LAYERS) if folded else ():
        factors = torch.rand(WIDTH) + 0.5
        with torch.no_grad():
            net.norms[layer].weight *= factors
            net.norms[layer].bias *= factors
            if layer != wrong:
                net.ins[layer].weight /= factors
    return dumped(net, x, path)


@pytest.mark.parametrize("network", [convolutions, blocks])
@pytest.mark.parametrize("is_turned", [False, True])
def test_folded_weights_are_no_origin(network: Callable[..., str], is_turned: bool, tmp_path: Path) -> None:
    sides = [network(tmp_path / "actual", folded=True), network(tmp_path / "reference")]
    comparison = ascend_dump.compare(*(reversed(sides) if is_turned else sides))
    assert (comparison.verdict, comparison.origins) == ("noise", ())
    first = "convs.0.weight" if network is convolutions else "norms.0.weight"
    assert first in [part.name for part in comparison.rebuilt]


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_wrongly_folded_norm_is_named(layer: int, tmp_path: Path) -> None:
    actual = convolutions(tmp_path / "actual", folded=True, wrong=layer)
    comparison = ascend_dump.compare(actual, convolutions(tmp_path / "reference"))
    assert [origin.module for origin in comparison.origins] == [f"convs.{layer}"]


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_factor_that_was_moved_on_one_side_only_is_named(layer: int, tmp_path: Path) -> None:
    actual = blocks(tmp_path / "actual", folded=True, wrong=layer)
    comparison = ascend_dump.compare(actual, blocks(tmp_path / "reference"))
    assert comparison.origins[0].module == f"norms.{layer}"
