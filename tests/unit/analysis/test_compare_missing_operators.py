"""A rollout lacks an operator of the trainer, or has another order of heads, and is built otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import ascend_dump

# Private: rules on the order of origins, which small programs do not tell apart.
from ascend_dump.analysis.alignment.token_groups import makes_other_kind
from ascend_dump.analysis.compare.by_tokens import traced_difference
from ascend_dump.analysis.compare.by_tokens.origins import _in_order_of_differences
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.reading import Record

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
functional = nn.functional
HEADS, SIZE, VOCABULARY, LENGTH, NEW, EXPERTS = 2, 16, 40, 9, 3, 4
HEAD = SIZE // HEADS
HALF = HEAD // 2


class Layer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Attention with a sink, that rotates halves of heads, and experts that run one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.norm, self.sink = nn.Parameter(torch.rand(SIZE) + 0.5), nn.Parameter(torch.randn(HEADS))
        self.router = nn.Linear(SIZE, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, SIZE, 2 * SIZE) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, SIZE, SIZE) / 4)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-4) * self.norm
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., HALF:], t[..., :HALF]), -1) * sin for t in (q, k))
        scores = q @ k.transpose(2, 3) * HEAD**-0.5
        scores = scores.masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -1e30)
        scores = torch.cat((scores, self.sink[:, None, None].expand(1, HEADS, LENGTH, 1)), -1)
        weights = (scores - scores.max(-1, keepdim=True).values).softmax(-1)
        x = x + self.o((weights[..., :-1] @ v).transpose(1, 2).flatten(2))
        tokens = x.view(-1, SIZE)
        weights, ids = self.router(tokens).softmax(-1).topk(2, -1)
        weights = weights * 2.5
        made = torch.zeros_like(tokens)
        for expert in ids.unique().tolist():
            numbers, places = torch.where(ids == expert)
            gate, up = (tokens[numbers] @ self.up[expert]).chunk(2, -1)
            rows = (functional.silu(gate) * up) @ self.down[expert]
            made.index_add_(0, numbers, rows * weights[numbers, places, None])
        return x + made.view(x.shape)


class Trainer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embed(ids) * 4.0
        angles = positions[..., None] / 10.0 ** torch.arange(HALF)
        angles = torch.cat((angles, angles), -1)[:, None]
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(x)


class Engine(nn.Module):  # type: ignore[misc]
    """One function with interleaved heads, that rotates complex numbers and runs all experts for all tokens."""

    def __init__(self, trainer: Trainer, fault: str) -> None:
        super().__init__()
        self.trainer, self.fault, self.cache = [trainer], fault, [[], []]  # type: list[Trainer], str, list[list[Any]]
        self.draws = False
        self.weights = [
            [interleaved(layer.q.weight), layer.k.weight.detach().clone()]
            if fault == "order of keys" and number
            else [interleaved(part.weight) for part in (layer.q, layer.k)]
            for number, layer in enumerate(trainer.layers)
        ]

    def forward(self, ids: Any, positions: Any) -> Any:
        [trainer] = self.trainer
        if self.draws:
            ids = torch.where(torch.randint(VOCABULARY, ids.shape) < 0, 0, ids)
        x = functional.embedding(ids, trainer.embed.weight)
        x = x if self.fault == "embedding" else x * 4.0
        turns = torch.polar(torch.ones(()), positions[..., None] / 10.0 ** torch.arange(HALF))[:, :, None]
        for number, layer in enumerate(trainer.layers):
            x = self.of_layer(x, positions, turns, number, layer, self.fault if number else "")
        return x @ trainer.head.weight.T

    def of_layer(self, x: Any, positions: Any, turns: Any, number: int, layer: Layer, fault: str) -> Any:
        y = functional.rms_norm(x, x.shape[-1:], layer.norm, 1e-4)
        q, k, v = ((y @ w.T).unflatten(-1, (HEADS, -1)) for w in (*self.weights[number], layer.v.weight))
        q, k = (
            torch.view_as_real(torch.view_as_complex(part.unflatten(-1, (-1, 2))) * turns).flatten(-2)
            for part in (q, k)
        )
        k, v = (torch.cat(parts, 1) for parts in zip(self.cache[number], (k, v))) if self.cache[number] else (k, v)
        self.cache[number] = [k, v]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * HEAD**-0.5
        scores = scores.masked_fill((torch.arange(k.shape[1]) > positions[..., None])[:, None], -torch.inf)
        if fault != "sink":
            scores = torch.cat((scores, layer.sink[:, None, None].expand(1, HEADS, x.shape[1], 1)), -1)
        weights = scores.softmax(-1)[..., : k.shape[1]]
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)
        if fault.startswith("dropout"):
            mixed = functional.dropout(mixed, 0.0 if fault == "dropout of nothing" else 0.3, training=True)
        x = x + mixed @ layer.o.weight.T
        tokens = x.view(-1, SIZE)
        chosen, ids = (tokens @ layer.router.weight.T).softmax(-1).topk(2, -1)
        chosen = chosen if fault == "scale" else chosen * 2.5
        of_experts = torch.zeros(len(tokens), EXPERTS).scatter(1, ids, chosen)
        gate, up = torch.einsum("th,ehi->tei", tokens, layer.up).chunk(2, -1)
        gate, up = (up, gate) if fault == "gate" else (gate, up)
        rows = torch.einsum("tei,eih->teh", functional.silu(gate) * up, layer.down)
        return x + (rows * of_experts[..., None]).sum(1).view(x.shape)


def interleaved(weight: Any) -> Any:
    return weight.detach().view(HEADS, 2, HALF, SIZE).transpose(1, 2).reshape(SIZE, SIZE)


def compared(tmp_path: Path, fault: str = "", *, draws: bool = False) -> ascend_dump.Comparison:
    """Compare the engine, a prompt and single tokens, with the trainer, which has the whole sequence.

    draws: the engine computes its tokens from random numbers
    """
    ids = torch.randint(1, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(LENGTH)[None]
    trainer = Trainer()
    engine = Engine(trainer, fault)
    engine.draws = draws
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "rollout", steps="0-9"):
        for part in (slice(0, LENGTH - NEW), *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH))):
            engine(ids[:, part], positions[:, part])
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids, positions)
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer")


def lines_of(text: str) -> set[str]:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return {f"{Path(__file__).name}:{number}" for number, line in enumerate(lines, 1) if text in line}


@pytest.mark.parametrize("fault", ["", "dropout of nothing"])
def test_programs_that_agree(fault: str, tmp_path: Path) -> None:
    comparison = compared(tmp_path, fault)
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise", "unmatched"), comparison.counts


def test_the_same_axis_is_no_change(tmp_path: Path) -> None:
    """The norm of the engine has axis 2 of three axes, and that of the trainer the last axis."""
    assert not compared(tmp_path, "embedding").changed


def test_heads_in_another_order_are_no_difference(tmp_path: Path) -> None:
    """Keys of one layer are not interleaved. Queries are, as in the other layer."""
    first = compared(tmp_path, "order of keys").origins[0]
    assert str(first.source).rpartition("/")[2] in lines_of("torch.view_as_real(")
    assert not any("not recorded" in fact or "outside" in fact for fact in first.evidence)


@pytest.mark.parametrize(
    ("fault", "name", "line"),
    [
        ("embedding", "aten::mul", "x = self.embed(ids) * 4.0"),
        ("scale", "aten::mul", "weights = weights * 2.5"),
        ("gate", "aten::silu", "functional.silu(gate) * up, layer.down)"),
        ("sink", "aten::_softmax", "weights = scores.softmax(-1)[..., : k.shape[1]]"),
        ("dropout", "aten::bernoulli_", "mixed = functional.dropout("),
    ],
)
def test_the_operator_that_one_side_lacks(fault: str, name: str, line: str, tmp_path: Path) -> None:
    first = compared(tmp_path, fault).origins[0]
    assert (first.pair.record.op_type, str(first.source).rpartition("/")[2] in lines_of(line)) == (name, True)
    facts = {
        "embedding": "of the reference computes a result that actual lacks",
        "scale": "of the reference computes a result that actual lacks",
        "gate": "compute different results",
        "sink": "the scores agree, but not what the softmax computes from them: only the reference runs ",
        "dropout": "runs in actual only, and draws random numbers",
    }
    assert facts[fault] in first.evidence[0]


@pytest.mark.parametrize(("small", "far", "traced"), [(0, 2, 1), (3, 2, 4), (20, 2, 9), (20, 0, 8)])
def test_a_difference_is_traced_from_the_first_tensor_that_is_far_off(
    small: int, far: int, traced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a norm that hides a factor, a whole attention differs by less than what counts as the same result."""
    monkeypatch.setattr(traced_difference, "_is_small", lambda pair: pair.reason == "small")
    record = Record(None, path=Path("f"), op_name="mul_0", op_type="aten::mul", io="output")
    ends = [Pair(record, record, "", 0.0, "different", reason) for reason in [*["small"] * small, *["far"] * far]]
    found = traced_difference._first_ends(ends)
    assert len(found) == traced
    assert [pair.reason for pair in found].count("far") == min(far, 1)


def test_random_numbers_from_which_tokens_are_computed_are_no_origin(tmp_path: Path) -> None:
    """A rollout draws its tokens, which the trainer reads."""
    assert not compared(tmp_path / "right", draws=True).origins
    assert compared(tmp_path, "gate", draws=True).origins[0].pair.record.op_type == "aten::silu"


def test_complex_numbers_are_no_partners_of_real_ones() -> None:
    """A rotation that multiplies complex numbers is not the same as one of its products of real numbers."""

    def match(*dtypes: str) -> Match:
        operators = [
            Operator(0, "aten::mul", "mul_0", "", "", "", [], [Record(None, path=Path("f"), io="output", dtype=dtype)])
            for dtype in dtypes
        ]
        return Match(operators[0], operators[1], "order", 0.5)

    assert makes_other_kind(match("complex64", "float32"))
    assert makes_other_kind(match("bool", "int64"))
    assert not makes_other_kind(match("complex64", "complex128"))
    assert not makes_other_kind(match("bfloat16", "float32"))


def test_operators_of_one_side_come_behind_the_first_result_that_differs() -> None:
    """The operators of one side begin anywhere, such as at a rotary embedding that leads to other tensors too."""
    names = ("polar_0", "add_0", "add_0", "mul_0")
    records = [Record(None, path=Path("f"), op_name=name, op_type="aten::add", io="output") for name in names]
    alone = Origin("structure", Pair(records[0], None, "", 0.0, "unmatched"), ())
    sure = Origin("structure", Pair(records[1], records[2], "order", 0.8, "different"), ())
    unknown = Origin("unknown", sure.pair, ())

    class Before:
        """An alignment in which the operators of one side read results of `names`."""

        def __init__(self, *names: str) -> None:
            self.operators = [Mock(op_name=name) for name in names]

        def operators_before(self, _side: int, _record: Record) -> list[Mock]:
            return self.operators

    nothing: Any = Before()
    behind: Any = Before("add_0")
    assert _in_order_of_differences([alone, sure], [sure.pair], nothing) == [sure, alone]
    assert _in_order_of_differences([alone, unknown], [sure.pair], nothing) == [alone, unknown]
    assert _in_order_of_differences([alone, unknown], [sure.pair], behind) == [unknown, alone]
    later = Pair(records[3], records[3], "order", 0.8, "different")
    assert _in_order_of_differences([alone, sure], [later, sure.pair], nothing) == [alone, sure]
