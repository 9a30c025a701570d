"""Parts that are built differently and wrong: the origin is at operators that may be the cause, and at no others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, LENGTH = 16, 6


def compared(
    path: Path, run: Callable[[Any], object], actual: nn.Module, reference: nn.Module, data: str = "tensor"
) -> Any:
    """Compare two programs with the same weights. run: calls a model"""
    actual.load_state_dict(reference.state_dict())
    for name, model in (("actual", actual), ("reference", reference)):
        torch.manual_seed(1)
        with ascend_dump.capture(model, path=path / name, mode="all", data=data):
            run(model)
    return ascend_dump.compare(path / "actual", path / "reference")


def forward(model: Any) -> object:
    return model(torch.randn(3, LENGTH, WIDTH))


def train(model: Any) -> None:
    """Run a step with a limit of the norm of all gradients."""
    model(torch.randn(3, LENGTH, WIDTH)).square().mean().backward()
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    nn.utils.clip_grad_norm_(parameters, 0.01, foreach=True)
    torch.optim.SGD(parameters, lr=0.1, foreach=False).step()


class Attention(nn.Module):
    """Attention of PyTorch; with a mask by hand. factor: of the scores; another one than 1 is a fault"""

    def __init__(self, factor: Optional[float]) -> None:
        super().__init__()
        self.qkv, self.factor = nn.Linear(WIDTH, 3 * WIDTH), factor

    def forward(self, x: Tensor, mask: Optional[Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.factor is None:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) * (self.factor / math.sqrt(WIDTH))
        return (scores + mask).softmax(-1) @ v


class Layers(nn.Module):
    """Layers of attention that read one mask. factors: of each layer, see `Attention`"""

    def __init__(self, *factors: Optional[float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(factor) for factor in factors)

    def forward(self, x: Tensor) -> Tensor:
        mask = None
        if self.layers[0].factor is not None:
            places = torch.arange(LENGTH)
            mask = torch.where(places[:, None] >= places[None], 0.0, -1e9)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_mask_that_all_layers_read_is_no_cause_of_one_wrong_layer(tmp_path: Path, wrong: int) -> None:
    factors = [1.5 if layer == wrong else 1.0 for layer in range(2)]
    found = compared(tmp_path, train, Layers(*factors), Layers(None, None))
    assert found.origins[0].module == f"layers.{wrong}"


def test_a_mask_by_hand_is_no_origin(tmp_path: Path) -> None:
    assert compared(tmp_path, train, Layers(1.0, 1.0), Layers(None, None)).origins == ()


class Product(nn.Linear):
    """A linear layer, and the same by hand."""

    def __init__(self, is_by_hand: bool, *, is_detached: bool = False) -> None:
        super().__init__(WIDTH, WIDTH)
        self.is_by_hand, self.is_detached = is_by_hand, is_detached

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach() if self.is_detached else x
        return torch.einsum("...i,oi->...o", x, self.weight) + self.bias if self.is_by_hand else super().forward(x)


class Norm(nn.LayerNorm):
    """A layer norm, and the same by hand with an own epsilon."""

    def __init__(self, eps: Optional[float]) -> None:
        super().__init__(WIDTH)
        self.own_eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.own_eps is None:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.own_eps) * self.weight + self.bias


class Chain(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.last = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(self.second(self.first(x))))


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_layer_by_hand_with_the_right_result_is_no_cause_of_a_wrong_norm_behind_it(tmp_path: Path, data: str) -> None:
    found = compared(
        tmp_path,
        train,
        Chain(nn.Identity(), Product(True), Norm(0.5)),
        Chain(nn.Identity(), Product(False), Norm(None)),
        data,
    )
    assert found.origins[0].module == "last"


def test_a_module_that_one_program_lacks_is_missed_where_it_is_called(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self, skips: bool) -> None:
            super().__init__()
            self.norm, self.product, self.skips = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), skips

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.product(x) if self.skips else self.norm(self.product(x)))

    def chain(skips: bool) -> Chain:
        return Chain(nn.Identity(), Block(skips), nn.Identity())

    [origin] = compared(tmp_path, forward, chain(True), chain(False)).origins
    assert (origin.module, origin.op_type) == ("second", "aten::native_layer_norm")


class Sums(nn.Module):
    """Adds three products of one tensor, normed before."""

    def __init__(self, eps: Optional[float], *, is_detached: bool) -> None:
        super().__init__()
        self.before, self.norm = nn.Linear(WIDTH, WIDTH), Norm(eps)
        self.products = nn.ModuleList(Product(False, is_detached=is_detached and number == 1) for number in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(self.before(x))
        return torch.stack([torch.tanh(product(normed)) for product in self.products]).sum(0)


def test_a_gradient_that_is_lost_beside_a_norm_by_hand_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, train, Sums(1e-5, is_detached=True), Sums(None, is_detached=False))
    assert found.verdict == "different"
    assert found.origins[0].module == "products.1"


def test_a_parameter_without_a_gradient_is_the_origin_before_the_norm_of_all_gradients(tmp_path: Path) -> None:
    actual = Chain(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    actual.second.weight.requires_grad_(False)
    reference = Chain(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    origin = compared(tmp_path, train, actual, reference).origins[0]
    assert (origin.kind, origin.module) == ("structure", "second")
    assert origin.pair.actual is None


def test_rounding_of_one_tensor_of_a_list_does_not_explain_another_tensor(tmp_path: Path) -> None:
    """The sum of a normed row is rounding alone. The norm by hand rounds in another way."""

    def run(model: Any) -> None:
        with torch.no_grad():
            normed = model(torch.randn(3, LENGTH, WIDTH))
            factor = 0.5 if model.second.own_eps is None else 0.51
            torch._foreach_mul([normed.sum(-1), normed.square()], factor)

    models = (Chain(nn.Identity(), Norm(eps), nn.Identity()) for eps in (1e-5, None))
    found = compared(tmp_path, run, *models)
    assert found.origins[0].op_type == "aten::_foreach_mul"


def test_a_constant_is_shown_where_it_is_read(tmp_path: Path) -> None:
    def run(model: Any) -> None:
        with torch.no_grad():
            live = torch.randn(3, LENGTH, WIDTH)
            values = model(torch.randn(3, LENGTH, WIDTH))
            live = torch.ones_like(live) if model.is_wrong else live
            (values * live).sum()

    models = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    models[0].is_wrong, models[1].is_wrong = True, False  # type: ignore[assignment]
    [origin] = compared(tmp_path, run, *models).origins
    assert origin.op_type == "aten::mul"


def test_an_operator_of_the_reference_only_is_shown_where_its_result_is_missed(tmp_path: Path) -> None:
    def run(model: Any) -> None:
        with torch.no_grad():
            values = model(torch.randn(3, LENGTH, WIDTH))
            error = values.square().mean()
            error = error if model.is_wrong else 0.5 * error
            _ = values.mean() + error

    models = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    models[0].is_wrong, models[1].is_wrong = True, False  # type: ignore[assignment]
    [origin] = compared(tmp_path, run, *models).origins
    assert (origin.op_type, origin.evidence[0]) == ("aten::add", "aten::mul runs in the reference only")


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_write_of_the_reference_only_is_the_origin_itself(tmp_path: Path, is_missing: bool) -> None:
    """Its reader may be far away, and is right."""

    def run(model: Any) -> None:
        model(torch.randn(3, LENGTH, WIDTH)).square().mean().backward()
        if not (is_missing and model.is_actual):
            model.weight.grad.mul_(0.5)
        torch.optim.SGD(model.parameters(), lr=0.1, foreach=False).step()

    models = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    for model, is_actual in zip(models, (True, False)):
        model.is_actual = is_actual  # type: ignore[assignment]  # a mark for `run`
    found = compared(tmp_path, run, *models)
    first = [(origin.op_type, origin.evidence[0]) for origin in found.origins[:1]]
    assert first == ([("aten::mul_", "aten::mul_ runs in the reference only")] if is_missing else [])


class Grown(nn.Module):
    """A block and a resized result; in the reference the block ends with a division by one.

    mode: how the result is resized; "bilinear" is a fault
    """

    def __init__(self, factor: Optional[float], mode: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(LENGTH, LENGTH, 1), nn.Conv1d(LENGTH, LENGTH, 1)
        self.factor, self.mode = factor, mode

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x).relu()
        x = x if self.factor is None else x / self.factor
        return self.last(functional.interpolate(x, scale_factor=2, mode=self.mode))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_an_operator_that_changes_nothing_is_no_cause(tmp_path: Path, mode: str) -> None:
    inner = Grown(1.0, "nearest")
    actual, reference = Grown(None, mode), nn.Sequential(inner)
    actual.load_state_dict(inner.state_dict())
    for name, model in (("actual", actual), ("reference", reference)):
        torch.manual_seed(1)
        with ascend_dump.capture(model, path=tmp_path / name, mode="all", data="tensor"):
            train(model)
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    types = [origin.pair.record.op_type.split("::")[1].rstrip("12d") for origin in found.origins[:1]]
    assert types == ([] if mode == "nearest" else ["upsample_nearest"])


class Clicks(nn.Module):
    """Sums of rows of tables behind a product, all of them modules."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(8, WIDTH, mode=mode) for mode in ("sum", "mean"))
        self.dense, self.top = nn.Linear(WIDTH, WIDTH), nn.Linear(3 * WIDTH, 1)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.top(torch.cat([self.dense(x).relu(), *(bag(rows) for bag in self.bags)], 1))


class Functions(nn.Module):
    """The same by functions alone, without modules. is_wrong: the mean is a sum"""

    def __init__(self, source: Clicks, *, is_wrong: bool) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weight.detach().clone() for weight in source.parameters())
        self.is_wrong = is_wrong

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        first, second, matrix, bias, top, shift = self.weights
        taken = second[rows]
        mean = taken.sum(1) if self.is_wrong else taken.sum(1) / rows.shape[1]
        features = [torch.addmm(bias, x, matrix.t()).clamp_min(0), first[rows].sum(1), mean]
        return torch.addmm(shift, torch.cat(features, 1), top.t())


def test_functions_without_modules_are_no_program_of_a_compiler(tmp_path: Path) -> None:
    """One script runs both programs, which have the lines of the loss in common."""
    reference = Clicks()
    for name, model in (("actual", Functions(reference, is_wrong=True)), ("reference", reference)):
        torch.manual_seed(1)
        with ascend_dump.capture(model, path=tmp_path / name, mode="all", data="tensor"):
            model(torch.randn(5, WIDTH), torch.randint(8, (5, 3))).square().sum().backward()
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert found.inside == found.left_out == (0, 0)  # only across frameworks
    assert found.origins[0].module == "bags.1"
