"""Two implementations of one network: other names of modules, weights that are divided differently, zeros as biases."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, LENGTH = 8, 5


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer as many programs begin: all biases are zero, so that they have one content."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    return layer


def attention(q: Tensor, k: Tensor, v: Tensor, factor: Optional[float] = None) -> Tensor:
    """Return the attention of one head by a single operator."""
    q, k, v = (part.unsqueeze(1) for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, scale=factor).squeeze(1)


class Fused(nn.Module):
    """Attention with a single weight for query, key and value, as timm has it.

    factor: of the scores; is_operator: attention is a single operator
    """

    def __init__(self, factor: float = WIDTH**-0.5, *, is_operator: bool = False) -> None:
        super().__init__()
        self.qkv, self.proj, self.factor = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH), factor
        self.is_operator = is_operator

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(-1, LENGTH, 3, WIDTH).unbind(2)
        if self.is_operator:
            return self.proj(attention(q, k, v, self.factor))
        return self.proj((q @ k.transpose(-1, -2) * self.factor).softmax(-1) @ v)


class Divided(nn.Module):
    """The same attention with three weights, as transformers has it. is_operator: as for `Fused`"""

    def __init__(self, *, is_operator: bool = False) -> None:
        super().__init__()
        self.is_operator = is_operator
        self.query, self.key, self.value = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.dense = linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.is_operator:
            return self.dense(attention(q, k, v))
        return self.dense((q @ k.transpose(-1, -2) * WIDTH**-0.5).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn, self.fc = nn.LayerNorm(WIDTH), attention, linear(WIDTH, WIDTH)
        self.activation = functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.activation(self.fc(x))


class Layer(nn.Module):
    def __init__(self, *, is_operator: bool) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Divided(is_operator=is_operator)
        self.intermediate = linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + functional.gelu(self.intermediate(x))


class Ours(nn.Module):
    """factor: of the scores in the second block"""

    def __init__(self, factor: float = WIDTH**-0.5, *, is_operator: bool = False) -> None:
        super().__init__()
        factors = (WIDTH**-0.5, factor, WIDTH**-0.5)
        self.blocks = nn.Sequential(*(Block(Fused(one, is_operator=is_operator)) for one in factors))
        self.head = linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))

    def load(self, reference: Theirs) -> Ours:
        for block, layer in zip(self.blocks, reference.encoder):
            attention = layer.attention
            parts = [attention.query.weight, attention.key.weight, attention.value.weight]
            block.attn.qkv.weight.data = torch.cat(parts).detach()
            block.attn.proj.load_state_dict(attention.dense.state_dict())
            block.fc.load_state_dict(layer.intermediate.state_dict())
        self.head.load_state_dict(reference.classifier.state_dict())
        return self


class Theirs(nn.Module):
    def __init__(self, *, is_operator: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(*(Layer(is_operator=is_operator) for _ in range(3)))
        self.classifier = linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.encoder(x))


def dumped(path: Path, model: nn.Module) -> Path:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    x = torch.randn(2, LENGTH, WIDTH)
    with ascend_dump.capture(model, path=path, steps="0|1", data="tensor"):
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return path


def compared(path: Path, actual: Ours, *, is_operator: bool = False, **settings: Any) -> Any:
    """Compare with the reference. is_operator: attention of the reference is a single operator"""
    reference = Theirs(is_operator=is_operator)
    sides = dumped(path / "actual", actual.load(reference)), dumped(path / "reference", reference)
    return ascend_dump.compare(*sides, **settings)


def test_the_same_network_has_no_origin(tmp_path: Path) -> None:
    found = compared(tmp_path, Ours())
    assert found.origins == ()
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    # The modules are paired by their weights, and the norms, which have none of their own, between them.
    pairs = {(pair.actual.op_name, pair.reference.op_name) for pair in found.pairs if pair.actual and pair.reference}
    assert ("blocks.2.norm/native_layer_norm_0", "encoder.2.before/native_layer_norm_0") in pairs
    assert ("blocks.1.fc/addmm_0", "encoder.1.intermediate/addmm_0") in pairs
    assert {f"blocks.{number}.attn" for number in range(3)} <= {part.name for part in found.rebuilt}


def test_updates_of_weights_that_are_divided_differently_are_counted(tmp_path: Path) -> None:
    notes = compared(tmp_path, Ours()).aligned
    assert "not compared: updates of 6 parameters, which only actual records" in notes
    assert "not compared: updates of 18 parameters, which only the reference records" in notes


def test_two_ranks_on_an_executor_have_no_origin_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records with the names of the other side are no records of the dump, so their positions are looked up."""
    pytest.importorskip("polars")
    reference = Theirs()
    actual = Ours().load(reference)
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        for name, model in (("actual", actual), ("reference", reference)):
            dumped(tmp_path / name, copy.deepcopy(model))
    with ThreadPoolExecutor(1) as executor:
        found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference", executor=executor)
    assert found.origins == ()
    assert {pair.record.rank for pair in found.pairs} == {0, 1}


def test_a_bias_of_keys_changes_no_result(tmp_path: Path) -> None:
    """Its gradient is rounding alone, of which Adam makes full updates, and one operator reads the keys."""
    found = compared(tmp_path, Ours(is_operator=True), is_operator=True)
    assert found.origins == ()
    assert set(found.counts) <= {"equal", "noise", "unmatched"}


def test_a_factor_is_not_at_the_projections_before_it(tmp_path: Path) -> None:
    """Query, key and value agree: they are parts of one tensor here, and results of three products there."""
    first = compared(tmp_path, Ours(factor=0.5, is_operator=True)).origins[0]
    assert first.module == "blocks.1.attn"
    assert first.op_type.startswith("aten::_scaled_dot_product")


def test_a_factor_inside_of_attention_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, Ours(factor=0.5))
    first = found.origins[0]
    assert first.op_name == "blocks.1.attn/mul_0"
    assert any("0.5 here, 0.35355" in line for line in first.evidence)


def test_another_activation_is_named_in_its_block(tmp_path: Path) -> None:
    """Its inputs agree, although the attention before it is built differently."""
    actual = Ours()
    actual.blocks[1].activation = functional.relu
    first = compared(tmp_path, actual).origins[0]
    assert (first.op_name, first.module) == ("blocks.1/relu_0", "blocks.1")
    assert "aten::relu in actual, aten::gelu in the reference" in first.evidence


def test_confused_weights_are_not_hidden(tmp_path: Path) -> None:
    """Both programs have both names, so a layer with the weights of another layer is no other name of it."""
    reference, actual = Theirs(), Theirs()
    actual.load_state_dict(reference.state_dict())
    layers = actual.encoder
    layers[0].intermediate.load_state_dict(reference.encoder[1].intermediate.state_dict())
    layers[1].intermediate.load_state_dict(reference.encoder[0].intermediate.state_dict())
    found = ascend_dump.compare(dumped(tmp_path / "actual", actual), dumped(tmp_path / "reference", reference))
    assert (found.origins[0].kind, found.origins[0].module) == ("parameter", "encoder.0.intermediate")


def test_rows_in_another_order_are_no_other_checkpoint(tmp_path: Path) -> None:
    reference, actual = Theirs(), Theirs()
    actual.load_state_dict(reference.state_dict())
    for layer in actual.encoder:
        for part in (layer.attention.query, layer.attention.key):
            part.weight.data = part.weight.data.roll(1, 0)
    found = ascend_dump.compare(dumped(tmp_path / "actual", actual), dumped(tmp_path / "reference", reference))
    assert found.origins[0].evidence[0].endswith(": probably the same values in another order")


def test_changed_values_are_not_in_another_order(tmp_path: Path) -> None:
    """The smallest and the largest value are the same."""
    reference, actual = Theirs(), Theirs()
    actual.load_state_dict(reference.state_dict())
    for layer in actual.encoder:
        for part in (layer.attention.query, layer.attention.key):
            order = part.weight.data.flatten().sort().indices
            part.weight.data.view(-1)[order[20:40]] *= 1.5
    found = ascend_dump.compare(dumped(tmp_path / "actual", actual), dumped(tmp_path / "reference", reference))
    assert found.origins[0].evidence[0].endswith(": another seed or checkpoint")
