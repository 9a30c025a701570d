"""Parts that are built differently, where shapes and order alone would pair operators that are not the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, EXPERTS = 8, 3


class SquareAttention(nn.Module):
    """Attention over 8 positions with 8 channels: each tensor keeps its shape if its axes are exchanged.

    way: "sdpa" or "einsum"
    """

    way = "einsum"

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(1, (3, WIDTH)).unbind(1)
        if self.way == "sdpa":
            heads = (part.transpose(1, 2)[:, None] for part in (q, k, v))
            mixed = functional.scaled_dot_product_attention(*heads)[:, 0].transpose(1, 2)
        else:
            scores = torch.einsum("nci,ncj->nij", q, k) / math.sqrt(WIDTH)
            mixed = torch.einsum("nij,ncj->nci", scores.softmax(-1), v)
        return x + self.out(mixed)


class Gate(nn.Module):
    """A gated linear unit. exchanged: the gate and the gated half are exchanged."""

    exchanged = False

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.up(x).chunk(2, -1)
        if self.exchanged:
            first, second = second, first
        return self.down(functional.silu(first) * second)


class DroppingAttention(nn.Module):
    """Attention with dropout on its weights over 8 positions of heads of size 8.

    by_hand: the softmax and its backward pass are made of many operators
    """

    by_hand = False

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).view(2, WIDTH, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        if not self.by_hand:
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, scale=1.0)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q * 1.0, k)
            exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
            weights = functional.dropout(exponentials / exponentials.sum(-1, keepdim=True), 0.2)
            mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return mixed.transpose(1, 2).reshape(x.shape)


class Experts(nn.Module):
    """A mixture of experts. dense: all experts compute all tokens. factor: of the shared expert."""

    dense = False
    factor = 1

    def __init__(self) -> None:
        super().__init__()
        self.router, self.shared = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, WIDTH)
        hidden = [nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH)) for _ in range(EXPERTS)]
        self.norm, self.experts = nn.LayerNorm(WIDTH), nn.ModuleList(hidden)

    def forward(self, tokens_in: Tensor) -> Tensor:
        x = self.norm(tokens_in)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        mixed = torch.zeros_like(x)
        if self.dense:
            shares = torch.zeros(len(x), EXPERTS).scatter(1, chosen, weights)
            mixed = torch.einsum("te,ted->td", shares, torch.stack([expert(x) for expert in self.experts], 1))
        else:
            for number, expert in enumerate(self.experts):
                tokens, slots = torch.where(chosen == number)
                mixed = mixed.index_add(0, tokens, expert(x[tokens]) * weights[tokens, slots][:, None])
        shared = self.shared(x)
        return tokens_in + mixed + (self.factor * shared if self.factor != 1 else shared)


class Norm(nn.Module):
    """A root mean square norm. way: "mean", "norm" (the same by other operators), or "absolute" (wrong)."""

    way = "mean"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "mean":
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        if self.way == "absolute":
            square = x.abs().mean(-1, keepdim=True).square()
        else:
            square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / WIDTH
        return self.weight * (x / (square + 1e-6).sqrt())


class Layers(nn.Module):
    """Three layers, each with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(3))
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears):
            x = x + linear(norm(x)).tanh()
        return x


def train(
    path: Path, network: Callable[[], nn.Module], change: Callable[[Any], None], *shape: int, data: str = "tensor"
) -> Path:
    """Record two steps of a training."""
    torch.manual_seed(0)
    module = network()
    change(module)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with ascend_dump.capture(module, path=path, steps="0-1", mode="all", data=data, quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.randn(*shape)).square().mean().backward()
            optimizer.step()
    return path


def compared(
    path: Path, network: Callable[[], nn.Module], change: Callable[[Any], None], *shape: int, data: str = "tensor"
) -> ascend_dump.Comparison:
    actual = train(path / "actual", network, change, *shape, data=data)
    return ascend_dump.compare(actual, train(path / "reference", network, lambda _: None, *shape, data=data))


def setting(name: str, value: object) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, value)


def test_a_view_with_its_axes_in_another_order_is_no_origin_if_the_results_agree(tmp_path: Path) -> None:
    found = compared(tmp_path, SquareAttention, setting("way", "sdpa"), 2, WIDTH, WIDTH)
    assert not found.origins
    assert found.verdict in ("noise", "unmatched")


def test_an_input_that_reads_another_part_of_a_tensor_is_wiring(tmp_path: Path) -> None:
    first = compared(tmp_path, Gate, setting("exchanged", True), 4, WIDTH).origins[0]
    assert (first.kind, first.op_name) == ("wiring", "silu_0")
    assert any("reads another part of up/addmm_0" in line for line in first.evidence)


def test_operators_are_paired_by_the_tensors_behind_views_that_are_not_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, DroppingAttention, setting("by_hand", True), 2, WIDTH, 16)
    assert not found.origins
    assert found.verdict in ("noise", "unmatched")


def test_operators_of_other_classes_are_partners_only_if_both_view_or_both_compute_numbers(tmp_path: Path) -> None:
    found = compared(tmp_path, DroppingAttention, setting("by_hand", True), 2, WIDTH, 16)
    views = ("view", "_unsafe_view", "squeeze", "unsqueeze", "transpose", "permute", "expand", "detach")
    pairs = [(pair.actual, pair.reference) for pair in found.pairs]
    outputs = [(a, b) for a, b in pairs if a is not None and b is not None and a.io == b.io == "output"]
    others = [(a, b) for a, b in outputs if a.op_type != b.op_type]
    names = [[record.op_type.partition("::")[2] for record in pair] for pair in others]
    assert all((a in views) == (b in views) for a, b in names)
    assert all(a.dtype == b.dtype for a, b in others)


def test_a_part_that_is_built_differently_is_not_blamed_for_weights_that_a_fault_changed(tmp_path: Path) -> None:
    def change(network: Any) -> None:
        for layer in network:
            layer.dense = True
        network[1].factor = 2

    found = compared(tmp_path, lambda: nn.Sequential(Experts(), Experts(), Experts()), change, 12, WIDTH)
    assert [origin.module for origin in found.origins] == ["1"]
    assert found.origins[0].pair.record.step == 0


def rewritten_norms(ways: str) -> Callable[[Any], None]:
    """Return a change of `Layers` that gives its norms these ways."""

    def change(network: Layers) -> None:
        for norm, way in zip(network.norms, ways.split()):
            norm.way = way

    return change


def test_a_rewritten_norm_is_not_blamed_for_gradients_of_a_later_fault(tmp_path: Path) -> None:
    """Its backward pass reads other saved values, and gets a gradient that the fault has changed."""
    right = compared(tmp_path / "right", Layers, rewritten_norms("norm norm norm"), 2, 5, WIDTH)
    assert not right.origins
    wrong = compared(tmp_path / "wrong", Layers, rewritten_norms("norm norm absolute"), 2, 5, WIDTH)
    assert wrong.origins
    assert {origin.module for origin in wrong.origins} == {"norms.2"}


def test_a_rewritten_norm_is_not_blamed_for_a_later_fault_if_there_are_statistics_only(tmp_path: Path) -> None:
    """Its squares of the norm are no squares of the elements, which have another shape."""
    wrong = compared(tmp_path, Layers, rewritten_norms("norm norm absolute"), 2, 5, WIDTH, data="stats")
    assert {origin.module for origin in wrong.origins} == {"norms.2"}


class Pooling(nn.Module):
    """A norm, the mean over positions, and a linear layer. wrong: the maximum in place of the mean."""

    wrong = False

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return self.linear(normed.amax(1) if self.wrong else normed.mean(1))


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_fault_between_a_rewritten_norm_and_the_next_module(tmp_path: Path, data: str) -> None:
    """The norm returns the same, so what is built differently in it is not the cause."""

    def change(network: Pooling) -> None:
        network.norm.way, network.wrong = "norm", True

    first = compared(tmp_path, Pooling, change, 2, 5, WIDTH, data=data).origins[0]
    assert (first.module, first.op_type) == ("", "aten::amax")


class MaskedAttention(nn.Module):
    """Attention with one head, by one operator or by hand."""

    by_hand = False
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), x
        if not self.by_hand:
            return x + functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], mask)[:, 0]
        scores = q @ k.transpose(1, 2) * (self.scale / math.sqrt(WIDTH)) + mask
        return x + scores.softmax(-1) @ v


class SharedMask(nn.Module):
    """Two attentions with one mask, which attention by hand adds to its scores."""

    by_hand = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MaskedAttention(), MaskedAttention()

    def forward(self, x: Tensor) -> Tensor:
        allowed = torch.ones(5, 5, dtype=torch.bool).tril()
        mask = torch.where(allowed, 0.0, -math.inf) if self.by_hand else allowed
        return self.second(self.first(x, mask), mask)


def test_a_mask_that_another_module_reads_rightly_is_not_the_cause(tmp_path: Path) -> None:
    def change(network: SharedMask) -> None:
        network.by_hand = network.first.by_hand = network.second.by_hand = True
        network.second.scale = 2.0

    assert compared(tmp_path, SharedMask, change, 2, 5, WIDTH).origins[0].module == "second"


class Skipping(nn.Module):
    """Two linear layers. skipped: the first one is not called."""

    skipped = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inside = x.tanh()
        return self.second(inside if self.skipped else self.first(inside))


def test_a_module_that_one_program_does_not_call_is_named_at_its_caller(tmp_path: Path) -> None:
    network = lambda: nn.Sequential(Skipping(), Skipping())  # noqa: E731  # a factory of modules
    found = compared(tmp_path, network, lambda module: setting("skipped", True)(module[1]), 2, WIDTH)
    assert (found.origins[0].op_name, found.origins[0].module) == ("1.first/addmm_0", "1")


def test_dropout_that_one_program_does_not_run_is_named_at_its_module(tmp_path: Path) -> None:
    """A module that only evaluates is called too, although it runs no operator."""
    network = lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0), nn.Linear(WIDTH, WIDTH))  # noqa: E731
    found = compared(tmp_path, network, lambda module: setting("p", 0.5)(module[1].eval().train()), 2, WIDTH)
    assert found.origins[0].module == "1"


class Adam:
    """Adam by hand. bias: corrected as in the paper, or not at all (wrong)."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, corrected: bool) -> None:
        self.parameters, self.rate, self.corrected, self.count = list(parameters), rate, corrected, 0
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        for parameter, mean, square in zip(self.parameters, self.means, self.squares):
            assert parameter.grad is not None
            mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            first, second = (1 - 0.9**self.count, 1 - 0.999**self.count) if self.corrected else (1.0, 1.0)
            parameter.sub_(self.rate * (mean / first) / ((square / second).sqrt() + 1e-8))

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@pytest.mark.parametrize("corrected", [True, False])
def test_an_optimizer_behind_gradients_that_differ_by_rounding(tmp_path: Path, corrected: bool) -> None:
    """The gradients of rewritten norms differ by rounding, which does not explain another update."""
    sides = []
    for name in ("actual", "reference"):
        torch.manual_seed(0)
        network = Layers()
        optimizer: Any = torch.optim.Adam(network.parameters(), 0.01)
        if name == "actual":
            rewritten_norms("norm norm norm")(network)
            optimizer = Adam(network.parameters(), 0.01, corrected)
        with ascend_dump.capture(network, path=tmp_path / name, steps="0-1", quiet=True):
            for _ in range(2):
                optimizer.zero_grad()
                network(torch.ones(2, 5, WIDTH).cumsum(1)).square().mean().backward()
                optimizer.step()
        sides.append(tmp_path / name)
    comparison = ascend_dump.compare(*sides)
    if corrected:
        assert not comparison.origins
    else:
        assert comparison.origins[0].module == ""
        assert comparison.origins[0].pair.record.phase == "other"


class OwnBatchNorm(nn.BatchNorm1d):
    """A batch norm of many operators. momentum: of its running averages"""

    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
            self.running_var.mul_(1 - self.momentum).add_(x.var(0), alpha=self.momentum)
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


@pytest.mark.parametrize(("momentum", "verdict"), [(0.1, "noise"), (0.2, "different")])
def test_running_averages_of_a_rewritten_batch_norm(momentum: float, verdict: str, tmp_path: Path) -> None:
    """No operator reads running averages in training, so that only their last values show a wrong momentum."""
    sides = []
    for name, norm in (("actual", OwnBatchNorm(WIDTH, momentum=momentum)), ("reference", nn.BatchNorm1d(WIDTH))):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.Linear(WIDTH, 1))
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        with ascend_dump.capture(network, path=tmp_path / name, steps="0-1", quiet=True):
            for _ in range(2):
                optimizer.zero_grad()
                network(torch.randn(9, WIDTH)).square().mean().backward()
                optimizer.step()
        sides.append(tmp_path / name)
    comparison = ascend_dump.compare(*sides)
    assert comparison.verdict == verdict
    assert [origin.module for origin in comparison.origins] == (["1"] if verdict == "different" else [])
