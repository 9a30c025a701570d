"""Ports with axes, flags, states and parts in another order, and the faults beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.numerics.permutations import find_layout, order_of_axes

HEADS = LENGTH = 4
SIZE = 6
WIDTH = HEADS * SIZE

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def tokens_before_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of [batch, tokens, heads, size]; the norms of query and key see this order of axes."""
    query, key = (functional.normalize(part, dim=-1) for part in (query, key))
    weights = torch.einsum("bthd,bshd->bhts", query, key).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, value).flatten(2)


def heads_before_tokens(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    query, key = (functional.normalize(part, dim=-1) for part in (query, key))
    return ((query @ key.mT).softmax(-1) @ value).transpose(1, 2).flatten(2)


def heads_as_tokens(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return an attention over heads: the axes are not exchanged."""
    query, key = (functional.normalize(part, dim=-1) for part in (query, key))
    return ((query @ key.mT).softmax(-1) @ value).flatten(2)


class Network(nn.Module):
    """A layer of attention, and a head."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).unbind(2)
        return self.head((x + self.out(self.mix(*parts))).relu())


def dump(path: Path, network: nn.Module, step: Callable[[Tensor], None], x: Tensor) -> Path:
    with ascend_dump.capture(network, path=path, steps="0-1", mode="all", data="tensor", quiet=True):
        for _ in range(2):
            step(network(x).square().mean())
    return path


def trained(path: Path, mix: Mix) -> Path:
    torch.manual_seed(0)
    network = Network(mix)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return dump(path, network, step, torch.randn(3, LENGTH, WIDTH))


def test_as_many_heads_as_tokens_may_be_in_another_order(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        trained(tmp_path / "actual", tokens_before_heads), trained(tmp_path / "reference", heads_before_tokens)
    )
    assert not found.origins
    assert found.verdict != "different"


def test_an_attention_over_heads_in_place_of_tokens_is_an_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        trained(tmp_path / "actual", heads_as_tokens), trained(tmp_path / "reference", heads_before_tokens)
    )
    assert found.origins
    source = found.origins[0].pair.record.source or ""
    assert Path(source.rpartition(":")[0]).name == Path(__file__).name


def test_axes_of_one_length_are_found_by_values() -> None:
    values = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
    turned = np.ascontiguousarray(values.transpose(0, 2, 1, 3))
    found = order_of_axes(turned, values)
    assert found is not None
    assert np.array_equal(found.of(turned), values)
    assert order_of_axes(values, values) is None
    assert order_of_axes(turned + 1, values) is None
    assert order_of_axes(values[:, :1], values[:, :1] * 2) is None


def test_flags_in_another_order_have_to_be_the_same_flags() -> None:
    flags = np.random.default_rng(0).random((3, 4, 2)) < 0.5
    turned = np.ascontiguousarray(flags.transpose(1, 0, 2))
    found = find_layout(turned, flags)
    assert found is not None
    assert np.array_equal(found.of(turned), flags)
    turned[0, 0, 0] ^= True
    assert find_layout(turned, flags) is None


class Joined(nn.Module):
    """Attention over the tokens of two sources, without a backward pass. wrong: one source gets the other's tokens."""

    def __init__(self, order: tuple[int, int], *, wrong: bool = False) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.order, self.wrong = order, wrong

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        sources = self.first(images), self.second(words)
        parts = [sources[number] for number in self.order]
        joined = torch.cat(parts, 1).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*joined).transpose(1, 2).flatten(2)
        ends = dict(zip(self.order, mixed.split([part.shape[1] for part in parts], 1)))
        return torch.cat([ends[0].mean(1), ends[1].sum(1) * (2 if self.wrong else 1)], 1)


@pytest.mark.parametrize("wrong", [False, True])
def test_two_sources_may_be_joined_in_another_order(tmp_path: Path, *, wrong: bool) -> None:
    sides = []
    for name, network in (("actual", (1, 0)), ("reference", (0, 1))):
        torch.manual_seed(0)
        model = Joined(network, wrong=wrong and name == "actual")
        torch.manual_seed(1)
        images, words = torch.randn(2, 9, WIDTH), torch.randn(2, 5, WIDTH)
        with (
            torch.no_grad(),
            ascend_dump.capture(model, path=tmp_path / name, steps="0", mode="all", data="tensor", quiet=True),
        ):
            model(images, words)
        sides.append(tmp_path / name)
    found = ascend_dump.compare(*sides)
    assert bool(found.origins) == wrong
    assert found.verdict == "different" if wrong else found.verdict != "different"


def averaged(path: Path, *, flat: bool, forgets: bool = False) -> Path:
    """Train with averages of the weights. flat: one tensor for all parameters. forgets: they are not averaged."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(5, WIDTH)
    parameters = [*network.parameters()]
    averages = [parameter.detach().clone() for parameter in parameters]
    if flat:
        memory = torch.cat([parameter.detach().flatten() for parameter in parameters])
        averages = [memory.clone()]
        ends = torch.tensor([0, *(parameter.numel() for parameter in parameters)]).cumsum(0).tolist()
        for parameter, begin, end in zip(parameters, ends, ends[1:]):
            parameter.data = memory[begin:end].view_as(parameter)

    def step(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            if flat:
                memory.sub_(torch.cat([gradient.flatten() for gradient in gradients]), alpha=0.1)
                values: Iterator[Tensor] = iter([memory])
            else:
                for parameter, gradient in zip(parameters, gradients):
                    parameter.sub_(gradient, alpha=0.1)
                values = iter(parameters)
            for average, value in zip(averages, values):
                if not forgets:
                    average.mul_(0.9).add_(value, alpha=0.1)

    return dump(path, network, step, x)


def test_flat_memory_is_no_update_that_the_other_side_lacks(tmp_path: Path) -> None:
    found = ascend_dump.compare(averaged(tmp_path / "a", flat=True), averaged(tmp_path / "b", flat=False))
    assert not found.origins


def test_averages_that_one_side_forgets_are_an_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        averaged(tmp_path / "a", flat=False, forgets=True), averaged(tmp_path / "b", flat=False)
    )
    assert found.origins


class Block(nn.Module):
    """A norm, a product and a sum of squares, under names of its own."""

    def __init__(self, names: tuple[str, str], *, by_hand: bool) -> None:
        super().__init__()
        self.names, self.by_hand = names, by_hand
        setattr(self, names[0], nn.LayerNorm(WIDTH))
        setattr(self, names[1], nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        norm, linear = (getattr(self, name) for name in self.names)
        if self.by_hand:
            centred = x - x.mean(-1, keepdim=True)
            x = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
            return x @ linear.weight.T + linear.bias
        return linear(norm(x))


def test_a_port_with_other_names_is_no_program_of_a_compiler(tmp_path: Path) -> None:
    sides = []
    for name, names, by_hand in (("actual", ("scale", "mix"), True), ("reference", ("norm", "dense"), False)):
        torch.manual_seed(0)
        network = nn.Sequential()
        for number in range(3):
            network.add_module(f"{name}{number}", Block(names, by_hand=by_hand))
        sides.append(dump(tmp_path / name, network, lambda loss: loss.backward(), torch.randn(2, 5, WIDTH)))
    found = ascend_dump.compare(*sides)
    assert found.inside == (0, 0)
    assert not found.origins
