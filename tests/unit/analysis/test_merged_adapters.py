"""One program keeps a low-rank adapter apart, the other one has merged it into the weight."""

from __future__ import annotations

from pathlib import Path

import pytest

import ascend_dump
from ascend_dump import compare_weights

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

WIDTH, RANK, LAYERS, FACTOR = 16, 2, 3, 2.0


class Adapted(nn.Module):
    """A linear layer with an adapter, with the names that PEFT gives its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, RANK, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(RANK, WIDTH, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * FACTOR

    def merged(self, factor: float) -> nn.Linear:
        linear = nn.Linear(WIDTH, WIDTH, bias=False)
        product = self.lora_B["default"].weight @ self.lora_A["default"].weight
        linear.weight = nn.Parameter(self.base_layer.weight + factor * product)
        return linear


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(WIDTH), Adapted()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.proj(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


def network(factors: dict[int, float]) -> Net:
    """Return the network. factors: the factor with which the adapter of a layer is merged, by layer."""
    torch.manual_seed(0)
    net = Net().eval()
    for layer, factor in factors.items():
        net.layers[layer].proj = net.layers[layer].proj.merged(factor)
    return net


def dumped(net: Net, path: Path) -> str:
    torch.manual_seed(1)
    x = torch.randn(4, WIDTH)
    with ascend_dump.capture(net, steps="0", path=str(path), quiet=True), torch.no_grad():
        net(x)
    return str(path)


ALL = dict.fromkeys(range(LAYERS), FACTOR)


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_merged_adapter_is_no_difference(is_turned: bool, tmp_path: Path) -> None:
    sides = [dumped(network(ALL), tmp_path / "merged"), dumped(network({}), tmp_path / "apart")]
    comparison = ascend_dump.compare(*(reversed(sides) if is_turned else sides))
    assert (comparison.verdict, comparison.origins) == ("noise", ())


@pytest.mark.parametrize("layer", range(LAYERS))
def test_an_adapter_merged_with_another_factor_is_named(layer: int, tmp_path: Path) -> None:
    merged = dumped(network({**ALL, layer: 4.0}), tmp_path / "merged")
    comparison = ascend_dump.compare(merged, dumped(network({}), tmp_path / "apart"))
    [origin] = comparison.origins
    assert (origin.kind, origin.module) == ("parameter", f"layers.{layer}.proj")
    formula = "base_layer + 4 * lora_B.default @ lora_A.default in the reference"
    assert f"layers.{layer}.proj.weight here is {formula}" in origin.evidence


def test_another_weight_under_another_name_is_named(tmp_path: Path) -> None:
    """Names alone excuse nothing: the result of the layer differs."""
    wrong = network(ALL)
    with torch.no_grad():
        wrong.layers[1].proj.weight[0, 0] += 1
    comparison = ascend_dump.compare(dumped(wrong, tmp_path / "merged"), dumped(network({}), tmp_path / "apart"))
    [origin] = comparison.origins
    assert (origin.kind, origin.module) == ("parameter", "layers.1.proj")
    assert not any("lora_B" in line for line in origin.evidence)


def test_a_weight_of_the_same_name_is_always_named(tmp_path: Path) -> None:
    """A weight that changes no result of this input is another weight all the same."""
    sides = []
    for name, value in (("actual", 1.0), ("reference", 2.0)):
        net = network({})
        with torch.no_grad():
            net.layers[0].proj.lora_A["default"].weight.mul_(value)
            net.layers[0].proj.lora_B["default"].weight.zero_()
        sides.append(dumped(net, tmp_path / name))
    comparison = ascend_dump.compare(*sides)
    assert [origin.module for origin in comparison.origins] == ["layers.0.proj.lora_A.default"]


def checkpoint(net: Net, path: Path, dtype: torch.dtype = torch.float32) -> Path:
    save_file({name: value.to(dtype) for name, value in net.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_merged_weights_of_checkpoints(dtype: torch.dtype, tmp_path: Path) -> None:
    net = network({}).to(dtype)
    apart = checkpoint(net, tmp_path / "a.safetensors", dtype)
    for block in net.float().layers:
        block.proj = block.proj.merged(FACTOR)
    merged = checkpoint(net, tmp_path / "m.safetensors", dtype)
    for sides in ((merged, apart), (apart, merged)):
        comparison = compare_weights(*sides)
        assert comparison.verdict == "noise"
        found = [finding for finding in comparison.findings if finding.relation == "merged"]
        assert {finding.text for finding in found} == {"base_layer + 2 * lora_B.default @ lora_A.default"}
        assert len(found) == LAYERS
        assert not comparison.counts.keys() - {"equal", "merged"}


def test_one_layer_merged_with_another_factor(tmp_path: Path) -> None:
    apart = checkpoint(network({}), tmp_path / "a.safetensors")
    comparison = compare_weights(checkpoint(network({**ALL, 1: 3.0}), tmp_path / "m.safetensors"), apart)
    [wrong] = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert wrong.actual == ("layers.1.proj.weight",)
    assert "3 * lora_B.default" in wrong.text
    assert "in 2 other layers merged" in wrong.text


@pytest.mark.parametrize("spoil", ["nan", "shape", "zero", "noise"])
def test_weights_that_are_not_merged(spoil: str, tmp_path: Path) -> None:
    """The adapter of layer 0 is damaged, so its weight is different or has no partner, and nothing fails."""
    state = network({}).state_dict()
    down, up = (f"layers.0.proj.lora_{letter}.default.weight" for letter in "AB")
    if spoil == "nan":
        state[down][0, 0] = float("nan")
    elif spoil == "shape":
        state[up] = state[up][:, :1].clone()
    elif spoil == "zero":
        state[up] = torch.zeros_like(state[up])
    else:
        state[up] = state[up] + torch.randn(state[up].shape)
    save_file(state, tmp_path / "a.safetensors")
    comparison = compare_weights(checkpoint(network(ALL), tmp_path / "m.safetensors"), tmp_path / "a.safetensors")
    assert sum(finding.relation == "merged" for finding in comparison.findings) == LAYERS - 1
    assert comparison.verdict == "different"
