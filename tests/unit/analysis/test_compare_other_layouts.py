"""Ports with other layouts: the origin is at operators that may be the cause, not where a layout changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.alignment.ranks_and_steps import operators_in
from ascend_dump.analysis.explaining.borders import agreeing_inside
from ascend_dump.analysis.explaining.output_origins import has_no_substitute
from ascend_dump.analysis.explaining.rank_state import RankState
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.arguments import DifferingArgument
from ascend_dump.analysis.pairing.stretches import Stretch

BATCH, CHANNELS, LENGTH, WIDTH = 3, 8, 5, 8


def compared(
    path: Path, actual: nn.Module, reference: nn.Module, x: Tensor, data: Any = "tensor", *, trains: bool = True
) -> Any:
    for name, model in (("actual", actual), ("reference", reference)):
        with ascend_dump.capture(model, path=path / name, mode="all", data=data, quiet=True):
            loss = model(x).square().mean()
            if trains:
                loss.backward()
    return ascend_dump.compare(path / "actual", path / "reference")


def line_of(function: Callable[..., object], text: str) -> str:
    """Return the file and line of a statement of a function, as origins have it."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(number for number, line in enumerate(lines) if text in line)}"


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class Squeeze(nn.Module):
    """Weights of channels, by convolutions of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(CHANNELS, 4, 1), nn.Conv2d(4, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1))))
        return x * functional.hardsigmoid(weights)


class SqueezeByProducts(Squeeze):
    """The same by matrix products, with no axes of length 1. is_wrong: with a sigmoid"""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.linear(x.mean((2, 3)), self.down.weight.flatten(1), self.down.bias).relu()
        weights = functional.linear(pooled, self.up.weight.flatten(1), self.up.bias)
        weights = torch.sigmoid(weights) if self.is_wrong else (weights / 6 + 0.5).clamp(0, 1)  # the gate
        return x * weights[..., None, None]


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_results_without_axes_of_length_1_are_right(tmp_path: Path, data: Any) -> None:
    x = 3 * normal(BATCH, CHANNELS, LENGTH, LENGTH)
    found = compared(tmp_path, SqueezeByProducts(True), Squeeze(), x, data)
    assert found.origins[0].source == line_of(SqueezeByProducts.forward, "# the gate")


def test_a_port_without_axes_of_length_1_is_no_origin(tmp_path: Path) -> None:
    x = 3 * normal(BATCH, CHANNELS, LENGTH, LENGTH)
    assert compared(tmp_path, SqueezeByProducts(False), Squeeze(), x).origins == ()


class Table(nn.Module):
    """Cosines and sines for both halves."""

    def forward(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


class Rotation(nn.Module):
    """Rotated queries and keys: of angles that are repeated for both halves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.table = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Table()

    @staticmethod
    def angles() -> Tensor:
        return torch.outer(torch.arange(1, LENGTH + 1).float(), 10.0 ** -torch.arange(WIDTH // 2))

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.table(self.angles())

        def turned(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat([-second, first], -1) * sin

        return turned(self.query(x)) @ turned(self.key(x)).mT


class RotationOfHalves(Rotation):
    """The same with each angle once. is_wrong: neighbours are rotated instead of halves"""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, x: Tensor) -> Tensor:
        angles = self.angles()
        cos, sin = angles.cos(), angles.sin()

        def turned(y: Tensor) -> Tensor:
            first, second = (y[..., 0::2], y[..., 1::2]) if self.is_wrong else y.chunk(2, -1)
            pair = first * cos - second * sin, second * cos + first * sin
            return torch.stack(pair, -1).flatten(-2) if self.is_wrong else torch.cat(pair, -1)

        return turned(self.query(x)) @ turned(self.key(x)).mT


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_table_that_one_program_repeats_is_right(tmp_path: Path, data: Any) -> None:
    found = compared(tmp_path, RotationOfHalves(True), Rotation(), normal(BATCH, LENGTH, WIDTH), data)
    lines = [line_of(RotationOfHalves.forward, text) for text in ("pair = ", "return torch.stack")]
    lines += [line_of(Rotation.forward, "return y * cos")]
    assert found.origins[0].source in lines


def test_angles_that_one_program_repeats_are_no_origin(tmp_path: Path) -> None:
    found = compared(tmp_path, RotationOfHalves(False), Rotation(), normal(BATCH, LENGTH, WIDTH))
    assert found.origins == ()


class Spread(nn.Module):
    """A transposed convolution, by zeros between pixels. is_wrong: the kernel is not turned around"""

    def __init__(self, source: nn.ConvTranspose2d, is_wrong: bool) -> None:
        super().__init__()
        self.kernel = nn.Parameter(source.weight.detach().transpose(0, 1).clone())
        self.is_wrong = is_wrong

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        spread = x.new_zeros(batch, channels, 2 * height - 1, 2 * width - 1)
        spread[:, :, ::2, ::2] = x
        kernel = self.kernel if self.is_wrong else self.kernel.flip(2, 3)
        return functional.conv2d(spread, kernel, padding=2)


def painter() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = zip((4, 8, 6), (8, 6, 1))
    layers = [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=after == 1) for before, after in sizes]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.Tanh())


class Port(nn.Module):
    """Three transposed convolutions by hand. wrong: the index of the wrong one"""

    def __init__(self, source: nn.Sequential, wrong: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spread(source[2 * index], index == wrong) for index in range(3))
        self.brightness = nn.Parameter(source[4].bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return torch.tanh(self.layers[-1](x) + self.brightness)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_what_one_program_lacks_behind_a_product_that_differs_is_no_cause(tmp_path: Path, wrong: int) -> None:
    source = painter()
    found = compared(tmp_path, Port(source, wrong), source, normal(BATCH, 4, 4, 4))
    assert found.origins[0].pair.actual.module == f"layers.{wrong}"


def test_convolutions_by_hand_are_no_origin(tmp_path: Path) -> None:
    source = painter()
    assert compared(tmp_path, Port(source, -1), source, normal(BATCH, 4, 4, 4)).origins == ()


class Small(nn.Module):
    """A branch whose differences are smaller than the rounding of the sum. approximate: of the GELU"""

    def __init__(self, approximate: str, is_by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.approximate, self.is_by_hand = approximate, is_by_hand

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter.bias + (x[..., None, :] * self.enter.weight).sum(-1) if self.is_by_hand else self.enter(x)
        y = self.leave(functional.gelu(y, approximate=self.approximate))  # the function
        return x + 1e-4 * y


def test_another_way_to_compute_a_function_is_the_origin_although_its_effect_fades(tmp_path: Path) -> None:
    found = compared(tmp_path, Small("tanh", True), Small("none", False), normal(BATCH, LENGTH, WIDTH), trains=False)
    assert [origin.source for origin in found.origins] == [line_of(Small.forward, "# the function")]


def test_the_same_function_behind_a_product_by_hand_is_no_origin(tmp_path: Path) -> None:
    assert compared(tmp_path, Small("none", True), Small("none", False), normal(BATCH, LENGTH, WIDTH)).origins == ()


@pytest.mark.parametrize(
    ("name", "values", "has_none"),
    [
        ("approximate", ("tanh", "none"), True),
        ("eps", (1e-5, 1e-6), True),
        ("alpha", (2, 1), False),
        ("dtype", ("float32", "bfloat16"), False),
    ],
)
def test_nothing_makes_up_for_a_word(name: str, values: tuple[Any, Any], has_none: bool) -> None:
    assert has_no_substitute(DifferingArgument(name, *values)) is has_none


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_tensor_that_one_program_repeats_agrees_inside(tmp_path: Path, data: Any, factor: float) -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([factor * x, factor * x], -1).sin()

    sides = []
    for name, model in (("actual", Whole()), ("reference", Repeated())):
        with ascend_dump.capture(model, path=tmp_path / name, mode="all", data=data, quiet=True):
            model(normal(LENGTH, WIDTH))
        sides.append(operators_in([[*ascend_dump.open(tmp_path / name)]], None))  # type: ignore[list-item]
    state = RankState(Rules(), None, NoiseJudge(Rules()))
    agreeing = agreeing_inside(state, Stretch((sides[0], sides[1])), with_layouts=True)
    results = [next(operator for operator in side if operator.function == "sin").outputs[0] for side in sides]
    assert [id(record) in agreeing for record in results] == [factor == 1.0] * 2
