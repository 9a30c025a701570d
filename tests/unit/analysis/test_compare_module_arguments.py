"""Comparing dumps of `level="module"`: modules that are passed other arguments, return more, or are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump.analysis.compare import Comparison

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

from compare_training import Change, dump_training  # noqa: E402  (needs torch)

SIZE = 8


class Attention(torch.nn.Module):
    """Scores of one head. It returns the weights too if it computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(SIZE, SIZE) for _ in range(4))
        self.scale, self.is_eager = SIZE**-0.5, False

    def forward(self, x: Any, *, mask: Optional[Any] = None, cos: Any, sin: Any) -> Any:
        query, key, value = self.query(x) * cos + sin, self.key(x) * cos + sin, self.value(x)
        if mask is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape).masked_fill(~mask, -1e4)
        weights = (query @ key.transpose(1, 2) * self.scale + mask).softmax(-1)
        return self.out(weights @ value), weights if self.is_eager else None


class EagerAttention(Attention):
    pass


class Mlp(torch.nn.Module):
    """A gated product: the number of its linear layers depends on `fuse`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class FusedMlp(torch.nn.Module):
    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.gate_and_up, self.down = torch.nn.Linear(SIZE, 2 * SIZE), mlp.down
        self.gate_and_up.weight.copy_(torch.cat([mlp.gate.weight, mlp.up.weight]))
        self.gate_and_up.bias.copy_(torch.cat([mlp.gate.bias, mlp.up.bias]))

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_and_up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


class OwnNorm(torch.nn.Module):
    def __init__(self, norm: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, eps

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() + self.bias


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = torch.nn.LayerNorm(SIZE), Attention(), Mlp()

    def forward(self, x: Any, **keywords: Any) -> Any:
        x = x + self.attention(self.norm(x), **keywords)[0]
        return x + self.mlp(x)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer(), Layer()])
        self.head = torch.nn.Linear(SIZE, 4)
        self.mask: Optional[Any] = None

    def forward(self, x: Any) -> Any:
        positions = torch.arange(x.shape[1])[:, None] * torch.ones(SIZE)
        for layer in self.layers:
            x = layer(x, mask=self.mask, cos=positions.cos(), sin=positions.sin())
        return self.head(x).mean(1)


def dump(path: Path, change: Optional[Change] = None) -> Path:
    batch = lambda: (torch.randn(4, 6, SIZE), torch.arange(4))  # noqa: E731
    return dump_training(path, Network, batch, change, level="module", quiet=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("compare_module_arguments") / "reference")


def eager(network: Any) -> None:
    """Pass an additive mask to all layers, and return the weights of attention."""
    network.mask = torch.zeros(6, 6).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -1e4)
    for layer in network.layers:
        layer.attention.is_eager = True


def boolean(network: Any) -> None:
    network.mask = torch.ones(6, 6, dtype=torch.bool).tril()


def norms(network: Any, eps: float = 1e-5) -> None:
    for layer in network.layers:
        layer.norm = OwnNorm(layer.norm)
    network.layers[1].norm.eps = eps


def fused(network: Any) -> None:
    for layer in network.layers:
        layer.mlp = FusedMlp(layer.mlp)


def scaled(network: Any) -> None:
    network.layers[1].attention.scale *= 1.5


def is_quiet(found: Comparison) -> bool:
    return not found.origins and found.verdict not in ("different", "unreadable")


def test_an_argument_of_one_program_does_not_move_the_later_ones(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", eager), reference)
    assert is_quiet(found)
    paired = [pair for pair in found.pairs if pair.actual is not None and pair.reference is not None]
    assert all(pair.actual.argument == pair.reference.argument for pair in paired)  # type: ignore[union-attr]


def test_gradients_of_keyword_arguments_have_names(reference: Path) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention = torch.nn.Linear(SIZE, SIZE), Attention()

        def forward(self, x: Any) -> Any:
            shift = self.first(x)
            return self.attention(x, cos=shift, sin=shift.sin())[0].mean(1)

    path = reference.parent / "outer"
    batch = lambda: (torch.randn(4, 6, SIZE), torch.arange(4))  # noqa: E731
    dump_training(path, Outer, batch, level="module", quiet=True, steps=1)
    gradients = ascend_dump.open(path).select(op="attention/backward_0", io="output")
    assert [record.argument for record in gradients] == ["cos", "sin"]


def test_a_fault_behind_another_form_of_attention_is_named(reference: Path, tmp_path: Path) -> None:
    def both(network: Any) -> None:
        eager(network)
        scaled(network)

    found = ascend_dump.compare(dump(tmp_path / "actual", both), reference)
    assert [(one.op_name, one.module) for one in found.origins] == [
        ("layers.1.attention.out/forward_0", "layers.1.attention")
    ]


def test_a_mask_of_another_type_is_no_origin_where_the_module_returns_the_same(tmp_path: Path) -> None:
    def both(network: Any) -> None:
        eager(network)
        scaled(network)

    sides = dump(tmp_path / "harmless", eager), dump(tmp_path / "reference", boolean)
    assert is_quiet(ascend_dump.compare(*sides))
    found = ascend_dump.compare(dump(tmp_path / "actual", both), sides[1])
    assert [(one.kind, one.module) for one in found.origins] == [("unknown", "layers.1.attention")]


def test_a_mask_of_another_type_is_the_origin_where_the_module_returns_something_else(tmp_path: Path) -> None:
    def wrong(network: Any) -> None:
        eager(network)
        network.mask = torch.zeros(6, 6)

    found = ascend_dump.compare(dump(tmp_path / "actual", wrong), dump(tmp_path / "reference", boolean))
    assert any("float32 instead of bool" in line for line in found.origins[0].evidence)


def test_a_module_that_is_replaced_is_judged_by_what_it_returns(reference: Path, tmp_path: Path) -> None:
    def wrong(network: Any) -> None:
        norms(network, eps=0.1)

    assert is_quiet(ascend_dump.compare(dump(tmp_path / "harmless", norms), reference))
    found = ascend_dump.compare(dump(tmp_path / "actual", wrong), reference)
    assert [(one.kind, one.module) for one in found.origins] == [("structure", "layers.1.norm")]
    assert "OwnNorm in actual, LayerNorm in the reference" in found.origins[0].evidence


def test_a_module_of_another_name_is_paired_within_its_layer_only(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", fused), reference)
    assert is_quiet(found)
    layers = [
        [record.op_name.split(".")[1] for record in (pair.actual, pair.reference) if record is not None]
        for pair in found.pairs
        if pair.record.op_name.startswith("layers.")
    ]
    assert all(len(set(names)) == 1 for names in layers)
    of_fused = [pair for pair in found.pairs if "gate_and_up" in pair.record.op_name]
    assert {pair.verdict for pair in of_fused} == {"unmatched"}, "it computes what two layers compute"


def test_a_module_of_another_class_is_paired_though_it_returns_more(reference: Path, tmp_path: Path) -> None:
    def replaced(network: Any) -> None:
        eager(network)
        for layer in network.layers:
            layer.attention.__class__ = EagerAttention

    found = ascend_dump.compare(dump(tmp_path / "actual", replaced), reference)
    assert is_quiet(found)
    calls = [pair for pair in found.pairs if pair.record.op_name == "layers.1.attention/forward_0"]
    outputs = [pair.verdict for pair in calls if pair.record.io == "output"]
    assert set(outputs[::2]) <= {"equal", "noise"}
    assert outputs[1::2] == ["unmatched", "unmatched"]


def test_a_call_that_one_program_lacks_does_not_move_the_later_calls_of_the_module(tmp_path: Path) -> None:
    class Timed(torch.nn.Module):
        """A layer that calls one activation for its input, for a time, and for its sum."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.time, self.last = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(3, SIZE), Mlp()
            self.activation, self.is_activated = torch.nn.SiLU(), True

        def forward(self, x: Any) -> Any:
            x, time = self.first(self.activation(x)), torch.ones(1, 3)
            x = x + self.time(self.activation(time) if self.is_activated else time)
            return self.last(self.activation(x)).mean(1)

    def forgotten(network: Any) -> None:
        network.is_activated = False

    batch = lambda: (torch.randn(4, 6, SIZE), torch.arange(4))  # noqa: E731
    sides = [
        dump_training(tmp_path / name, Timed, batch, change, level="module", quiet=True, steps=1)
        for name, change in (("actual", forgotten), ("reference", None))
    ]
    found = ascend_dump.compare(*sides)
    assert [(origin.kind, origin.op_name) for origin in found.origins] == [("structure", "activation/forward_1")]
    assert "SiLU runs in the reference only" in found.origins[0].evidence


def test_a_module_in_a_wrapper_is_paired_by_its_path(reference: Path, tmp_path: Path) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Network()

        def forward(self, x: Any) -> Any:
            return self.module(x)

    batch = lambda: (torch.randn(4, 6, SIZE), torch.arange(4))  # noqa: E731
    change = lambda wrapper: norms(wrapper.module)  # noqa: E731
    path = dump_training(tmp_path / "actual", Wrapper, batch, change, level="module", quiet=True)
    found = ascend_dump.compare(path, reference)
    assert is_quiet(found)
    assert {pair.record.op_name for pair in found.pairs if pair.verdict == "unmatched"} <= {"forward_0", "backward_0"}


class Shared(torch.nn.Module):
    """Two layers that read the result of one layer, as one tensor or as two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (torch.nn.Linear(SIZE, SIZE) for _ in range(3))
        self.is_apart = False

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return self.left(y) * self.right(y.view_as(y) if self.is_apart else y)


def test_the_gradient_of_one_reader_is_no_origin_where_the_sum_of_all_agrees(tmp_path: Path) -> None:
    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.shared, self.head = torch.nn.Linear(SIZE, SIZE), Shared(), torch.nn.Linear(SIZE, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.shared(self.enter(x))).mean(1)

    def apart(network: Any) -> None:
        network.shared.is_apart = True

    batch = lambda: (torch.randn(4, 6, SIZE), torch.arange(4))  # noqa: E731
    sides = [
        dump_training(tmp_path / name, Around, batch, change, level="module", quiet=True)
        for name, change in (("actual", apart), ("reference", None))
    ]
    assert is_quiet(ascend_dump.compare(*sides))
