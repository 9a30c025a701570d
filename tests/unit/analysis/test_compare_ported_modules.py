"""Tests of `compare` with dumps of modules of a network and of its port, whose modules have other names and classes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
functional = torch.nn.functional

_WIDTH, _HEADS, _LAYERS = 16, 2, 3


class Scale(torch.nn.Module):
    """A norm of the port."""

    def __init__(self, norm: Any, eps: float = 1e-5) -> None:
        super().__init__()
        # The updates of these parameters have other numbers than in the reference.
        self.shift, self.gain, self.eps = norm.bias, norm.weight, eps

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain + self.shift


class Mix(torch.nn.Module):
    """The attention of the port, with one module for each product."""

    def __init__(self, attention: Any, factor: float) -> None:
        super().__init__()
        self.joined = torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.joined.weight, self.joined.bias = attention.in_proj_weight, attention.in_proj_bias
        self.leave, self.factor = attention.out_proj, factor

    def forward(self, x: Any) -> Any:
        parts = self.joined(x).view(*x.shape[:2], 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) * self.factor / parts.shape[-1] ** 0.5
        return self.leave((scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    """A layer of the port."""

    def __init__(self, layer: Any, fault: str) -> None:
        super().__init__()
        self.mix = Mix(layer.self_attn, 1.5 if fault == "factor" else 1.0)
        self.after_mix = Scale(layer.norm1, 0.1 if fault == "eps" else 1e-5)
        self.wide, self.narrow = layer.linear1, layer.linear2
        self.after_narrow = Scale(layer.norm2)
        self.activate = functional.silu if fault == "silu" else functional.relu

    def forward(self, x: Any) -> Any:
        x = self.after_mix(x + self.mix(x))
        return self.after_narrow(x + self.narrow(self.activate(self.wide(x))))


class Port(torch.nn.Module):
    """A network with the weights of a `TransformerEncoder`."""

    def __init__(self, encoder: Any, fault: str, layer: int) -> None:
        super().__init__()
        blocks = [Block(old, fault if number == layer else "") for number, old in enumerate(encoder.layers)]
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def encoder() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, _HEADS, 32, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)


def dump(model: Any, path: Path, rate: float = 0.1, **settings: Any) -> None:
    """Dump two steps of a training."""
    torch.manual_seed(1)
    data = torch.randn(2, 4, 5, _WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with ascend_dump.capture(model, steps="0|1", level="module", path=str(path), quiet=True, **settings):
        for x in data:
            optimizer.zero_grad()
            (model(x) * x).mean().backward()
            optimizer.step()


def compared(tmp_path: Path, fault: str = "", layer: int = 1, data: str = "tensor") -> ascend_dump.Comparison:
    dump(encoder(), tmp_path / "reference", data=data)
    dump(Port(encoder(), fault, layer), tmp_path / "port", data=data)
    return ascend_dump.compare(tmp_path / "port", tmp_path / "reference")


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_right_port_has_no_origin(tmp_path: Path, data: str) -> None:
    result = compared(tmp_path, data=data)
    assert not result.origins
    assert not any(pair.differs for pair in result.pairs)
    names = {(pair.actual.module, pair.reference.module) for pair in result.pairs if pair.actual and pair.reference}
    assert {(f"blocks.{n}.after_mix", f"layers.{n}.norm1") for n in range(_LAYERS)} <= names


@pytest.mark.parametrize("rate", [0.1, 0.11])
def test_another_rate_is_named_at_the_updates(tmp_path: Path, rate: float) -> None:
    dump(encoder(), tmp_path / "reference")
    dump(Port(encoder(), "", 0), tmp_path / "port", rate=rate)
    origins = ascend_dump.compare(tmp_path / "port", tmp_path / "reference").origins
    assert [origin.op_name.rpartition("/")[2][:7] for origin in origins] == ([] if rate == 0.1 else ["update_"])


@pytest.mark.parametrize("layer", range(_LAYERS))
@pytest.mark.parametrize(
    ("fault", "module"),
    [("eps", "blocks.{}.after_mix"), ("factor", "blocks.{}.mix"), ("silu", "blocks.{}.narrow")],
)
def test_the_first_module_with_a_wrong_tensor_is_named(tmp_path: Path, fault: str, module: str, layer: int) -> None:
    """The modules behind it, which differ too, are paired and follow from it."""
    result = compared(tmp_path, fault, layer)
    assert [origin.module for origin in result.origins] == [module.format(layer)]
    pairs = {(pair.actual.module, pair.reference.module) for pair in result.pairs if pair.actual and pair.reference}
    assert (f"blocks.{_LAYERS - 1}.narrow", f"layers.{_LAYERS - 1}.linear2") in pairs


class Twins(torch.nn.Module):
    """Two modules of one size, called in either order."""

    def __init__(self, first: Any, second: Any, *, is_turned: bool, factor: float) -> None:
        super().__init__()
        self.first, self.second, self.is_turned, self.factor = first, second, is_turned, factor

    def forward(self, x: Any) -> Any:
        x = x * self.factor
        if self.is_turned:
            second, first = self.second(x.cos()), self.first(x.sin())
        else:
            first, second = self.first(x.sin()), self.second(x.cos())
        return first + second


def twins(*, is_turned: bool, factor: float, name: str) -> Any:
    """Return a network of two layers, of which the second one gets another factor."""
    torch.manual_seed(0)
    layers = [
        Twins(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, _WIDTH), is_turned=is_turned, factor=by)
        for by in (1.0, factor)
    ]
    return torch.nn.Sequential(OrderedDict([(name, torch.nn.Sequential(*layers))]))


def test_a_module_of_a_layer_is_known_from_another_layer(tmp_path: Path) -> None:
    """Behind the fault the order tells nothing: both programs call two modules of one size, in other orders."""
    dump(twins(is_turned=False, factor=1.0, name="layers"), tmp_path / "reference")
    dump(twins(is_turned=True, factor=1.5, name="blocks"), tmp_path / "port")
    result = ascend_dump.compare(tmp_path / "port", tmp_path / "reference")
    pairs = {(pair.actual.module, pair.reference.module) for pair in result.pairs if pair.actual and pair.reference}
    assert {("blocks.1.first", "layers.1.first"), ("blocks.1.second", "layers.1.second")} <= pairs
    assert ("blocks.1.first", "layers.1.second") not in pairs
    assert result.origins[0].module.startswith("blocks.1")


class Doubled(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


class Bent(torch.nn.Module):
    """A layer that calls a module for its activation, or one that doubles the tensor before it."""

    def __init__(self, weights: Any, *, is_doubled: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.weights, self.factor = weights, factor
        self.bend = Doubled() if is_doubled else torch.nn.Tanh()
        self.is_doubled = is_doubled

    def forward(self, x: Any) -> Any:
        x = self.weights(x)
        return (torch.tanh(self.bend(x) / 2) if self.is_doubled else self.bend(x)) * self.factor


class Losses(torch.nn.Module):
    """A network that returns its loss. is_flat: layers are no calls, so that only the loss shows that they agree"""

    def __init__(self, name: str, *, is_doubled: bool, factor: float, is_flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        linears = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(2)]
        layers = [Bent(linears[0], is_doubled=is_doubled), Bent(linears[1], is_doubled=is_doubled, factor=factor)]
        self.order = layers
        self.layers = torch.nn.ModuleDict({f"{name}_{number}": layer for number, layer in enumerate(layers)})
        self.is_flat = is_flat

    def forward(self, x: Any) -> Any:
        for layer in self.order:
            x = layer.forward(x) if self.is_flat else layer(x)
        return x.pow(2).mean()


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_modules_that_one_program_has_inside_are_no_origin(tmp_path: Path, factor: float, *, is_flat: bool) -> None:
    """They read the same tensor and make others of one size, but what both programs make of them agrees."""
    for name, is_doubled, by in (("reference", False, 1.0), ("port", True, factor)):
        model = Losses(name, is_doubled=is_doubled, factor=by, is_flat=is_flat)
        with ascend_dump.capture(model, steps="0|1", level="module", path=str(tmp_path / name), quiet=True):
            for _ in range(2):
                model(torch.ones(2, _WIDTH).cumsum(-1) / _WIDTH).backward()
    modules = [origin.module for origin in ascend_dump.compare(tmp_path / "port", tmp_path / "reference").origins]
    if factor == 1.0:
        assert not modules
    elif not is_flat:
        assert [path[: len("layers.port_1")] for path in modules] == ["layers.port_1"]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    dump(encoder(), tmp_path / "reference")
    dump(Port(encoder(), "", 0), tmp_path / "port")
    for file in (tmp_path / "reference").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:64])
    result = ascend_dump.compare(tmp_path / "port", tmp_path / "reference")
    assert any(pair.verdict == "unreadable" for pair in result.pairs)
    assert str(result.verdict) not in ("equal", "noise")


class Alone(torch.nn.Module):
    """A port without modules."""

    def __init__(self, network: Any, factor: float = 1.0) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(network.parameters())
        self.factor = factor

    def forward(self, x: Any) -> Any:
        first, first_bias, last, last_bias = self.weights
        return functional.linear(functional.linear(x, first, first_bias).relu() * self.factor, last, last_bias)


@pytest.mark.parametrize(("factor", "origins"), [(1.0, []), (1.1, [""])])
def test_a_port_by_functions_is_compared_by_its_result(tmp_path: Path, factor: float, origins: list[str]) -> None:
    """The modules that the reference alone has are no origins."""
    for name in ("reference", "port"):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(_WIDTH, 8), torch.nn.ReLU(), torch.nn.Linear(8, _WIDTH))
        dump(network if name == "reference" else Alone(network, factor), tmp_path / name)
    result = ascend_dump.compare(tmp_path / "port", tmp_path / "reference")
    assert [origin.module for origin in result.origins] == origins
