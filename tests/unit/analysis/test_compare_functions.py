"""An engine of functions on a dictionary of tensors, without modules, is compared with a trainer that has modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = nn.functional
ROOM, SIZE, VOCABULARY = 16, 12, 40


class Layer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.qkv, self.o = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        sees = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2) * SIZE**-0.5).masked_fill(~sees, -1e30)
        x = x + self.o(scores.softmax(-1) @ v)
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, limit: float = 0.0) -> None:
        """limit: of the logits; 0 for none"""
        super().__init__()
        torch.manual_seed(0)
        self.limit = limit
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(ROOM, SIZE)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embed(ids) + self.place(positions)
        for layer in self.layers:
            x = layer(x)
        return limited(self.head(self.norm(x)), self.limit)


def limited(logits: Any, limit: float) -> Any:
    return torch.tanh(logits / limit) * limit if limit else logits


def norm(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Return the layer norm of x, from single operators."""
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Any, weights: dict[str, Any], name: str) -> Any:
    return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def call(weights: dict[str, Any], caches: Any, ids: Any, positions: Any, gelu: Any = functional.gelu) -> Any:
    """Return the logits of ids, [rows, tokens]. caches: [layers, 2, rows, ROOM, SIZE]; gelu: that of the last layer"""
    x = functional.embedding(ids, weights["embed.weight"]) + weights["place.weight"][positions]
    rows = torch.arange(len(ids))[:, None]
    for index, (keys, values) in enumerate(caches):
        layer = f"layers.{index}"
        normed = norm(x, weights, f"{layer}.norm")
        matrices, biases = (weights[f"{layer}.qkv.{name}"].chunk(3) for name in ("weight", "bias"))
        q, k, v = (functional.linear(normed, matrix, bias) for matrix, bias in zip(matrices, biases))
        keys[rows, positions], values[rows, positions] = k, v
        sees = torch.arange(ROOM) <= positions[..., None]
        scores = (q @ keys.transpose(1, 2) * SIZE**-0.5).masked_fill(~sees, -1e30)
        x = x + linear(scores.softmax(-1) @ values, weights, f"{layer}.o")
        up = linear(norm(x, weights, f"{layer}.second_norm"), weights, f"{layer}.up")
        x = x + linear((gelu if index else functional.gelu)(up), weights, f"{layer}.down")
    return linear(norm(x, weights, "norm"), weights, "head")


def requests() -> Any:
    return torch.randint(1, VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(5))


def engine(path: Path, weights: dict[str, Any], gelu: Any = functional.gelu, new: int = 3, limit: float = 0.0) -> Path:
    """Dump the prompts of all requests, then one token of each at a time."""
    ids = requests()
    caches = torch.zeros(2, 2, len(ids), ROOM, SIZE)
    count = ids.shape[1]
    places = torch.arange(count).expand(ids.shape)
    with torch.no_grad(), ascend_dump.capture(path=path, data="tensor"):
        for begin, end in [(0, count - new), *((n, n + 1) for n in range(count - new, count))]:
            logits = call(weights, caches, ids[:, begin:end], places[:, begin:end], gelu)
            logits = limited(logits[:, -1:], limit) if limit else logits
            _kept = [logits[row, slot].clone() for row in range(len(ids)) for slot in range(logits.shape[1])]
    return path


def engine_of_slots(path: Path, weights: dict[str, Any], new: int = 3) -> Path:
    """Dump the prompt of each request alone, then one token of all requests at a time."""
    ids = requests()
    caches = torch.zeros(2, 2, len(ids), ROOM, SIZE)
    count = ids.shape[1]
    with torch.no_grad(), ascend_dump.capture(path=path, data="tensor"):
        for row in range(len(ids)):
            call(weights, caches[:, :, row : row + 1], ids[row : row + 1, :-new], torch.arange(count - new)[None])
        for n in range(count - new, count):
            call(weights, caches, ids[:, n : n + 1], torch.full((len(ids), 1), n))
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return trainer(tmp_path / "trainer", Network())


def trainer(path: Path, network: Any) -> Path:
    ids = requests()
    with torch.no_grad(), ascend_dump.capture(network, path=path, data="tensor"):
        network(ids, torch.arange(ids.shape[1]).expand(ids.shape))
    return path


def test_a_right_engine_of_functions(reference: Path, tmp_path: Path) -> None:
    comparison = ascend_dump.compare(engine(tmp_path / "engine", Network().state_dict()), reference, align="tokens")
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.counts["equal"] + comparison.counts["noise"] >= 40
    assert "30 tokens of 3 requests" in comparison.aligned[-1]


def test_positions_of_functions_are_found_in_all_calls(reference: Path, tmp_path: Path) -> None:
    path = engine_of_slots(tmp_path / "engine", Network().state_dict())
    comparison = ascend_dump.compare(path, reference, align="tokens")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "30 tokens of " in comparison.aligned[-1]


def test_a_limit_of_logits_that_both_programs_have(tmp_path: Path) -> None:
    """Several operators follow the last one that has a partner, the same ones on both sides."""
    limited_trainer, weights = trainer(tmp_path / "trainer", Network(3.0)), Network().state_dict()
    comparison = ascend_dump.compare(engine(tmp_path / "engine", weights, limit=3.0), limited_trainer, align="tokens")
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert any(pair.record.op_name.startswith("tanh") for pair in comparison.pairs if pair.actual is not None)
    other = ascend_dump.compare(engine(tmp_path / "other", weights, limit=2.0), limited_trainer, align="tokens")
    assert other.origins[0].op_type in ("aten::div", "aten::mul")


def test_a_wrong_bias_is_an_origin(reference: Path, tmp_path: Path) -> None:
    weights = Network().state_dict()
    weights["layers.1.o.bias"] = weights["layers.1.o.bias"] + 0.1
    first = ascend_dump.compare(engine(tmp_path / "engine", weights), reference, align="tokens").origins[0]
    assert first.kind == "parameter"
    assert first.op_type == "aten::addmm"


def test_another_activation_is_an_origin(reference: Path, tmp_path: Path) -> None:
    faulty = engine(tmp_path / "engine", Network().state_dict(), lambda x: functional.gelu(x) * 1.01)
    first = ascend_dump.compare(faulty, reference, align="tokens").origins[0]
    assert first.op_type in ("aten::gelu", "aten::mul")


def test_a_norm_of_single_operators_is_named_by_its_module(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference begins behind the last result that agrees; the names of functions would tell little."""

    def sample_norm(x: Any, weights: dict[str, Any], name: str) -> Any:
        variance, mean = torch.var_mean(x, -1, correction=name == "layers.1.second_norm", keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    monkeypatch.setitem(call.__globals__, "norm", sample_norm)
    first = ascend_dump.compare(engine(tmp_path / "engine", Network().state_dict()), reference, align="tokens").origins[
        0
    ]
    assert first.module == "layers.1.second_norm"
    assert (first.op_name, first.evidence[0].partition(" of ")[0]) == ("var_mean_3", "var_mean_3")
