"""Faults that statistics and hashes show without tensors, and rewrites that they must not call faults."""

from __future__ import annotations

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

WIDTH, LENGTH = 8, 6


class Attention(nn.Module):
    """Attention with a bias for each pair of positions. `turn` and `shift` change the bias and the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.turn: Callable[[Tensor], Tensor] = lambda bias: bias
        self.shift: Callable[[Tensor], Tensor] = lambda mask: mask

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2) + self.turn(bias)
        scores = scores.masked_fill(self.shift(mask), -1e9)
        return x + scores.softmax(-1) @ self.v(x)


class Norm(nn.LayerNorm):
    by_hand = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.by_hand:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(LENGTH, LENGTH))
        self.norms = nn.ModuleList(Norm(WIDTH) for _ in range(2))
        self.attentions = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
        mask[:, -2:] = True
        for norm, attention in zip(self.norms, self.attentions):
            x = attention(norm(x), self.bias, mask)
        return functional.gelu(self.head(x))


def dump(path: Path, change: Callable[[Any], object]) -> Path:
    torch.manual_seed(0)
    network = Network()
    change(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(1)
    with ascend_dump.capture(network, path=path, steps="0-1", mode="all", data="stats", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            network(torch.randn(4, LENGTH, WIDTH)).square().mean().backward()
            optimizer.step()
    return path


def compared(path: Path, change: Callable[[Any], object]) -> Any:
    return ascend_dump.compare(dump(path / "actual", change), dump(path / "reference", lambda network: None))


def test_elements_in_another_order_are_the_origin_of_what_differs_later(tmp_path: Path) -> None:
    """The statistics of a transposed bias are the same, so that a later operator is the first to differ for certain."""

    def transpose(network: Any) -> None:
        network.attentions[1].turn = lambda bias: bias.t()

    comparison = compared(tmp_path, transpose)
    origin = comparison.origins[0]
    assert comparison.verdict == "different"
    assert (origin.module, origin.op_type) in (("attentions.1", "aten::add"), ("attentions.1", "aten::t"))


def test_a_copy_of_elements_in_another_order_is_the_origin(tmp_path: Path) -> None:
    def flip(network: Any) -> None:
        network.attentions[0].turn = lambda bias: bias.flip(1)

    origin = compared(tmp_path, flip).origins[0]
    assert (origin.module, origin.op_type, origin.kind) == ("attentions.0", "aten::flip", "structure")


def test_flags_of_other_bytes_differ_for_certain(tmp_path: Path) -> None:
    """A rolled mask has as many flags as before, but a flag is never rounded."""

    def roll(network: Any) -> None:
        network.attentions[0].shift = lambda mask: mask.roll(1, 1)

    origin = compared(tmp_path, roll).origins[0]
    assert (origin.module, origin.op_type, origin.kind) == ("attentions.0", "aten::roll", "structure")
    assert "the type has no rounding" in " ".join(origin.evidence)


@pytest.mark.parametrize("eps", [1e-3, 2e-5])
def test_an_argument_that_changes_the_bytes_of_a_result_is_an_origin(tmp_path: Path, eps: float) -> None:
    def change(network: Any) -> None:
        network.norms[1].eps = eps

    [origin] = compared(tmp_path, change).origins
    assert (origin.module, origin.kind) == ("norms.1", "structure")
    assert f"eps: {eps} here, 1e-05 in the reference" in origin.evidence


def test_a_norm_by_hand_has_no_origin(tmp_path: Path) -> None:
    def by_hand(network: Any) -> None:
        for norm in network.norms:
            norm.by_hand = True

    comparison = compared(tmp_path, by_hand)
    assert not comparison.origins
    assert comparison.verdict in ("noise", "undecided")


class Generator(nn.Module):
    """A layer whose output is taken for images; `turn` changes the order of their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.out = nn.Linear(WIDTH, 4 * 9), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3, 1, 1)
        self.turn = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        images = h.view(-1, 9, 4).transpose(1, 2).reshape(-1, 4, 3, 3) if self.turn else h.view(-1, 4, 3, 3)
        return self.out(self.norm(images).relu())


def dump_images(path: Path, *, turn: bool) -> Path:
    torch.manual_seed(0)
    network = Generator()
    network.turn = turn
    with ascend_dump.capture(network, path=path, mode="all", data="stats", quiet=True):
        network(torch.randn(4, WIDTH)).square().mean().backward()
    return path


def test_elements_in_another_order_and_shape_are_the_origin_of_what_a_norm_returns(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        dump_images(tmp_path / "actual", turn=True), dump_images(tmp_path / "reference", turn=False)
    )
    assert found.origins[0].kind == "wiring"
    assert found.origins[0].module == ""


def small_part(x: Tensor) -> Tensor:
    return (3 * x)[32:64]


def masked(x: Tensor) -> Tensor:
    return (3 * x).masked_fill(torch.arange(96) < 48, -torch.inf)


@pytest.mark.parametrize("function", [small_part, masked])
def test_rounding_is_relative_to_the_elements_that_it_comes_from(
    tmp_path: Path, function: Callable[[Tensor], Tensor]
) -> None:
    """A slice may contain small elements only, and beside -Inf there is no norm. A sum behind it is an origin."""

    class Scaled(nn.Module):
        added = 0.0

        def forward(self, x: Tensor) -> Tensor:
            return function(x) + self.added

    def of(path: Path, rounding: float, added: float) -> Path:
        torch.manual_seed(0)
        x, noise = torch.randn(96), rounding * torch.randn(96)
        x[32:64] *= 1e-12
        network = Scaled()
        network.added = added
        with ascend_dump.capture(network, path=path, data="stats", quiet=True):
            network(x + noise)
        return path

    reference = of(tmp_path / "reference", 0.0, 0.0)
    right = ascend_dump.compare(of(tmp_path / "right", 3e-6, 0.0), reference)
    assert (right.origins, right.verdict) == ((), "undecided")
    wrong = ascend_dump.compare(of(tmp_path / "wrong", 3e-6, 0.5), reference)
    assert [origin.op_type for origin in wrong.origins] == ["aten::add"]


class Masked(nn.Module):
    """Scores with a mask that is made in the type of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.first(x)
        zero = torch.zeros((), dtype=x.dtype)
        mask = torch.where(torch.ones(16, 16, dtype=torch.bool).tril(), zero, torch.finfo(x.dtype).min)
        return self.second((scores + mask).softmax(-1))


def test_constants_in_the_type_in_which_a_program_computes_are_no_origin(tmp_path: Path) -> None:
    sides = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        network, x = Masked().to(torch.bfloat16).to(dtype), torch.randn(16, 16).to(torch.bfloat16).to(dtype)
        sides.append(tmp_path / str(dtype))
        with ascend_dump.capture(network, path=sides[-1], data="stats", quiet=True), torch.no_grad():
            network(x)
    assert not ascend_dump.compare(*sides).origins


class RootNorm(nn.Module):
    """A norm without a mean, that divides by a root or multiplies by its reciprocal."""

    def __init__(self, *, divides: bool) -> None:
        super().__init__()
        self.weight, self.divides = nn.Parameter(torch.rand(WIDTH) + 0.5), divides

    def forward(self, x: Tensor) -> Tensor:
        size = x.square().mean(-1, keepdim=True) + 1e-6
        return self.weight * (x / size.sqrt() if self.divides else x * size.rsqrt())


class Scaled(nn.Module):
    """A layer between two norms; its result is added with a factor."""

    def __init__(self, *, divides: bool, factor: float) -> None:
        super().__init__()
        self.norm, self.up, self.factor = RootNorm(divides=divides), nn.Linear(WIDTH, WIDTH), factor
        self.last, self.head = RootNorm(divides=divides), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.up(self.norm(x)) * self.factor
        return self.head(self.last(x))


def dump_scaled(path: Path, *, divides: bool, factor: float) -> Path:
    torch.manual_seed(0)
    network = Scaled(divides=divides, factor=factor)
    with ascend_dump.capture(network, path=path, mode="all", data="stats", quiet=True):
        functional.cross_entropy(
            network(torch.randn(4, LENGTH, WIDTH)).flatten(0, 1), torch.zeros(24).long()
        ).backward()
    return path


def test_a_rewrite_whose_result_agrees_closely_explains_no_later_difference(tmp_path: Path) -> None:
    """The root differs from its reciprocal, but min, max, mean and norm of the normed tensor agree."""
    reference = dump_scaled(tmp_path / "reference", divides=False, factor=0.5)
    right = ascend_dump.compare(dump_scaled(tmp_path / "right", divides=True, factor=0.5), reference)
    assert (right.origins, right.verdict) == ((), "undecided")
    wrong = ascend_dump.compare(dump_scaled(tmp_path / "wrong", divides=True, factor=1.0), reference)
    assert [origin.op_name for origin in wrong.origins] == ["mul_0"]
    assert "other: 1.0 here, 0.5 in the reference" in wrong.origins[0].evidence


class Small(nn.Module):
    """A norm by hand, another norm, and a head with small weights, so that the loss hardly depends on the input."""

    def __init__(self, *, eps: float) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(WIDTH, WIDTH), Norm(WIDTH, eps=eps), nn.Linear(WIDTH, 3)
        self.norm.by_hand, self.last = eps != 1e-5, nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.head.weight.mul_(1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.norm(self.first(x))))


def test_a_proven_difference_does_not_end_where_statistics_are_about_as_far_apart(tmp_path: Path) -> None:
    """A softmax of small scores rounds their difference away in part: that is no proof that both programs agree."""
    sides = []
    for eps in (1e-2, 1e-5):
        torch.manual_seed(0)
        network = Small(eps=eps)
        sides.append(tmp_path / str(eps))
        with ascend_dump.capture(network, path=sides[-1], mode="all", data="stats", quiet=True):
            scores = network(torch.randn(4, LENGTH, WIDTH)).flatten(0, 1)
            functional.cross_entropy(scores, torch.arange(24) % 3).backward()
    comparison = ascend_dump.compare(*sides)
    assert [(origin.module, origin.kind) for origin in comparison.origins] == [("norm", "structure")]


class TwoFactors(nn.Module):
    """A layer between two factors."""

    def __init__(self, before: float, after: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head, self.factors = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, 4), (before, after)

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.factors
        return self.head(torch.tanh(self.inner(x * before) * after))


def dump_factors(path: Path, before: float, after: float) -> Path:
    network = TwoFactors(before, after)
    torch.manual_seed(1)
    with ascend_dump.capture(network, path=path, steps="0", data="stats", quiet=True):
        network(torch.randn(32, WIDTH))
    return path


def test_a_factor_that_another_operator_applies_is_no_origin(tmp_path: Path) -> None:
    reference = dump_factors(tmp_path / "reference", 0.5, 0.3)
    assert not ascend_dump.compare(dump_factors(tmp_path / "moved", 0.25, 0.6), reference).origins
    found = ascend_dump.compare(dump_factors(tmp_path / "wrong", 0.25, 0.3), reference)
    assert [origin.op_name for origin in found.origins] == ["mul_0"]


class UnfoldedConvolution(nn.Conv2d):
    """A convolution by a product with the parts of its input."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        product = self.weight.flatten(1) @ functional.unfold(x, 3, padding=1)
        return product.view(len(x), -1, *x.shape[2:]) * self.scale + self.bias[:, None, None]


def dump_before_norm(path: Path, *, by_hand: bool, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    layer = (UnfoldedConvolution if by_hand else nn.Conv2d)(3, 4, 3, padding=1)
    layer.scale = scale
    network = nn.Sequential(layer, nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(1)
    with ascend_dump.capture(network, path=path, steps="0-1", data="stats", quiet=True):
        for batch in torch.randn(2, 4, 3, 12, 12).unbind():
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    return path


def test_the_gradient_of_a_bias_before_a_norm_is_rounding(tmp_path: Path) -> None:
    """The gradient is zero in exact arithmetic, so it is compared with the terms of its sum."""
    reference = dump_before_norm(tmp_path / "reference", by_hand=False)
    found = ascend_dump.compare(dump_before_norm(tmp_path / "right", by_hand=True), reference)
    assert not found.origins
    assert found.verdict != "different"
    wrong = ascend_dump.compare(dump_before_norm(tmp_path / "wrong", by_hand=True, scale=1.5), reference)
    assert wrong.origins[0].module == "0"


class Sum(nn.Module):
    """A sum of layers that all read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self.layers]).sum(0) * torch.arange(float(WIDTH))


def dump_sum(path: Path, change: Callable[[Tensor], Tensor]) -> Path:
    torch.manual_seed(0)
    network, x = Sum(), torch.randn(3, WIDTH)
    with torch.no_grad():
        for layer in network.layers:
            layer.weight.copy_(change(layer.weight))
        with ascend_dump.capture(network, path=path, steps="0", data="stats", quiet=True):
            network(x)
    return path


@pytest.mark.parametrize(
    ("change", "fact"),
    [(lambda weight: weight.flip(0), "in another order"), (lambda weight: weight.bfloat16(), "rounding to bfloat16")],
)
def test_how_parameters_differ(tmp_path: Path, change: Callable[[Tensor], Tensor], fact: str) -> None:
    reference = dump_sum(tmp_path / "reference", lambda weight: weight)
    origin = ascend_dump.compare(dump_sum(tmp_path / "changed", change), reference).origins[0]
    assert fact in origin.evidence[0], origin.evidence
