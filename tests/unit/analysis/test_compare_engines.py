"""An engine computes the same as a trainer in other ways: fused and grouped products, rotary embeddings, rounding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
functional = torch.nn.functional
HEADS, GROUPS, HEAD, VOCABULARY = 4, 2, 4, 40
SIZE = HEADS * HEAD
FREQUENCIES = 0.1 ** torch.arange(HEAD // 2)


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """A norm. rounds_once: the weight is applied before the result is rounded to the type of the input"""

    def __init__(self, rounds_once: bool) -> None:
        super().__init__()
        self.weight, self.rounds_once, self.eps = nn.Parameter(torch.rand(SIZE) + 0.5), rounds_once, 1e-6

    def forward(self, x: Any) -> Any:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype) if self.rounds_once else self.weight * y.to(x.dtype)


class TrainerAttention(nn.Module):  # type: ignore[misc]
    """Attention with three projections, and halves of heads that are rotated by tables of the whole model."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (SIZE, GROUPS * HEAD, GROUPS * HEAD)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(SIZE, size) for size in sizes)
        self.o_proj = nn.Linear(SIZE, SIZE)

    def forward(self, x: Any, tables: tuple[Any, Any]) -> Any:
        rows, length, _ = x.shape
        q, k, v = (
            part(x).view(rows, length, -1, HEAD).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (self.rotated(part, *tables) for part in (q, k))
        k, v = (part.repeat_interleave(HEADS // GROUPS, 1) for part in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj(mixed.reshape(x.shape))

    @staticmethod
    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


class EngineAttention(nn.Module):  # type: ignore[misc]
    """Attention over flat tokens of one request, with one projection whose outputs are sorted by groups of heads."""

    def __init__(self, attention: TrainerAttention) -> None:
        super().__init__()
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        grouped = [
            torch.cat([getattr(part, name).detach().unflatten(0, (GROUPS, -1)) for part in parts], 1).flatten(0, 1)
            for name in ("weight", "bias")
        ]
        self.qkv, self.out = nn.Linear(SIZE, len(grouped[0])), attention.o_proj
        self.qkv.weight.data, self.qkv.bias.data = grouped
        self.scale, self.shift = HEAD**-0.5, 0
        self.cache: list[Any] = []

    def forward(self, x: Any, positions: Any) -> Any:
        grouped = self.qkv(x).view(len(x), GROUPS, HEADS // GROUPS + 2, HEAD)
        q, k, v = grouped.split([HEADS // GROUPS, 1, 1], 2)
        shifted = positions + (self.shift if len(x) == 1 else 0)
        q, k = self.rotated(q.flatten(1, 2), shifted), self.rotated(k.flatten(1, 2), positions)
        self.cache = [torch.cat(both) for both in zip(self.cache, (k, v.flatten(1, 2)))] or [k, v.flatten(1, 2)]
        keys, values = (part.repeat_interleave(HEADS // GROUPS, 1) for part in self.cache)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self.scale
        sees = torch.arange(len(keys)) <= positions[:, None]
        weights = scores.masked_fill(~sees, float("-inf")).float().softmax(-1).to(x.dtype)
        return self.out(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))

    @staticmethod
    def rotated(x: Any, positions: Any) -> Any:
        angles = positions[:, None, None] * FREQUENCIES
        factors = torch.polar(torch.ones_like(angles), angles)
        turned = torch.complex(*x.float().chunk(2, -1)) * factors
        return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, attention: Any, rounds_once: bool) -> None:
        super().__init__()
        self.norm, self.attention = Norm(rounds_once), attention

    def forward(self, x: Any, where: Any) -> Any:
        return x + self.attention(self.norm(x), where)


class Trainer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(VOCABULARY, SIZE), Norm(False)
        self.layers = nn.ModuleList(Layer(TrainerAttention(), False) for _ in range(2))
        self.head = nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embed(ids)
        angles = torch.cat([positions[..., None] * FREQUENCIES] * 2, -1)[:, None]
        tables = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, tables)
        return self.head(self.norm(x)) / 4.0


class Engine(nn.Module):  # type: ignore[misc]
    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.embedding, self.final_norm, self.lm_head = trainer.embed, Norm(True), trainer.head
        self.blocks = nn.ModuleList(Layer(EngineAttention(layer.attention), True) for layer in trainer.layers)
        norms = [layer.norm for layer in trainer.layers], [layer.norm for layer in self.blocks]
        for norm, own in zip((*norms[0], trainer.norm), (*norms[1], self.final_norm)):
            own.weight.data = norm.weight.detach().clone()
        self.factor = 0.25
        self.temperature: Optional[float] = None

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, positions)
        # Each second token is the input of a head that is not contiguous.
        logits = self.lm_head(self.final_norm(x)[None].transpose(0, 1)).squeeze(1)
        logits = logits * self.factor
        return logits if self.temperature is None else logits / self.temperature


def compared(
    tmp_path: Path,
    fault: Any = None,
    dtype: Any = torch.float32,
    *,
    chooses: bool = False,
    slices: bool = False,
    trains_in: Any = None,
    both: Any = None,
) -> Any:
    """Compare an engine, which runs a prompt and then single tokens, with a trainer.

    fault    changes the engine
    chooses  the engine keeps a copy of the logits, divides them by a temperature, draws the next token, and counts its
             tokens; the trainer computes a loss
    slices   both sides read the logits in parts only, to choose a token or to compute a loss
    trains_in  the type of the trainer, if it has another one
    both     changes the engine and the trainer
    """
    ids = torch.randint(1, VOCABULARY, (11,), generator=torch.Generator().manual_seed(3))
    trainer = Trainer().to(dtype)
    engine = Engine(trainer).to(dtype)
    if trains_in is not None:
        engine, trainer = copy.deepcopy(engine), trainer.to(trains_in)
    if both is not None:
        both(engine, trainer)
    if fault is not None:
        fault(engine)
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "engine", steps="0-9"):
        for begin, end in [(0, 7), (7, 8), (8, 9), (9, 10), (10, 11)]:
            logits = engine(ids[begin:end], torch.arange(begin, end))
            if chooses:
                copy.deepcopy(logits)
                torch.multinomial((logits[-1] / 0.7).softmax(-1), 1)
                (ids[begin:end] > 0).sum()
            if slices:
                logits[-1:].log_softmax(-1).argmax(-1)
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        logits = trainer(ids[None], torch.arange(11)[None])
        if chooses:
            mask, each = ids[None, 1:] > 0, functional.log_softmax(logits[:, :-1], -1).gather(-1, ids[None, 1:, None])
            -(each[..., 0] * mask).sum() / mask.sum()
        if slices:
            logits[:, :-1].log_softmax(-1).gather(-1, ids[None, 1:, None])
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer", align="tokens")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chooses", [False, True])
def test_a_right_engine_has_no_origin(dtype: Any, chooses: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, dtype=dtype, chooses=chooses)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    names = {(pair.actual.op_name, pair.reference.op_name) for pair in comparison.pairs}
    for name in ("q_proj", "k_proj", "v_proj"):
        assert ("blocks.1.attention.qkv/addmm_0", f"layers.1.attention.{name}/addmm_0") in names


def test_another_scale_of_one_layer(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.blocks[1].attention.scale = 0.3

    first = compared(tmp_path, fault).origins[0]
    assert "1.attention" in first.op_name


def test_positions_that_are_wrong_when_single_tokens_run(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.blocks[1].attention.shift = 1

    first = compared(tmp_path, fault).origins[0]
    assert "1.attention" in first.op_name


def test_another_factor_of_the_logits(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.factor = 0.5

    comparison = compared(tmp_path, fault)
    assert comparison.origins[0].op_type in ("aten::mul", "aten::div")
    assert len(comparison.origins) == 1


def test_a_lost_factor_of_the_logits_before_tokens_are_chosen(tmp_path: Path) -> None:
    """Only operators that choose tokens read the logits, and they are not compared: this proves no agreement."""

    def fault(engine: Any) -> None:
        engine.factor = 1.0

    comparison = compared(tmp_path, fault, slices=True)
    assert comparison.verdict != "noise", comparison.counts


def test_a_temperature_in_the_model(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.temperature = 0.7

    comparison = compared(tmp_path, fault)
    assert [origin.module for origin in comparison.origins] == [""]
    assert comparison.origins[0].kind in ("structure", "compute")


def test_another_eps_of_one_norm(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.blocks[1].norm.eps = 0.1

    first = compared(tmp_path, fault).origins[0]
    assert "1.norm" in first.op_name


def test_a_wrong_row_of_a_fused_weight(tmp_path: Path) -> None:
    def fault(engine: Any) -> None:
        engine.blocks[1].attention.qkv.weight.data[5] *= 2

    first = compared(tmp_path, fault).origins[0]
    assert first.kind == "parameter"
    assert "1.attention" in first.op_name


def test_positions_that_are_made_between_the_calls_of_one_step(tmp_path: Path) -> None:
    """They belong to the next call, and tell that a longer part of the prompt continues the request."""
    ids = torch.randint(1, VOCABULARY, (11,), generator=torch.Generator().manual_seed(3))
    trainer = Trainer()
    engine = Engine(trainer)
    with torch.no_grad(), ascend_dump.capture(path=tmp_path / "engine", data="tensor"):
        for begin, end in [(0, 4), (4, 9), (9, 10), (10, 11)]:
            engine(ids[begin:end], torch.arange(begin, end))
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids[None], torch.arange(11)[None])
    comparison = ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer", align="tokens")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "11 tokens of 1 request" in comparison.aligned[-1]


def test_numbers_that_look_like_boundaries_of_requests(tmp_path: Path) -> None:
    """The positions do not begin again at these numbers, which may be slots of a cache."""

    def fault(engine: Any) -> None:
        engine.blocks[0].attention.register_forward_pre_hook(lambda *_: [torch.tensor([0, 2, 4, 7]).clone(), None][1])

    comparison = compared(tmp_path, fault)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "11 tokens of 1 request" in comparison.aligned[-1]


def test_all_origins_of_another_scale_are_in_its_layer(tmp_path: Path) -> None:
    """Rotated heads agree, although no operator of the rotations is the same."""

    def fault(engine: Any) -> None:
        engine.blocks[1].attention.scale = 0.3

    origins = compared(tmp_path, fault).origins
    assert origins
    assert all("1.attention" in origin.op_name for origin in origins), origins


def test_a_trainer_in_a_narrower_type(tmp_path: Path) -> None:
    """Weights are the same if they are equal in the narrower type, and so are the parts of a fused weight."""
    comparison = compared(tmp_path, trains_in=torch.bfloat16)
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts
    modules = {
        (pair.actual.module, pair.reference.module) for pair in comparison.pairs if pair.actual and pair.reference
    }
    assert {("blocks.0.attention.qkv", f"layers.0.attention.{name}_proj") for name in "qkv"} <= modules

    def scales(engine: Any) -> None:
        engine.blocks[1].attention.scale *= 2.0

    faulty = compared(tmp_path / "faulty", scales, trains_in=torch.bfloat16)
    assert faulty.verdict == "different"
    assert faulty.origins[0].module in ("blocks.1.attention", "layers.1.attention")


def test_weights_of_norms_that_a_trainer_in_a_narrower_type_rounded(tmp_path: Path) -> None:
    """They are cast back before they are read, and differ by a rounding to the type of the trainer."""

    def widens(engine: Any, trainer: Any) -> None:
        for norm in (*(layer.norm for layer in trainer.layers), trainer.norm):
            norm.rounds_once = True

    def grows(engine: Any, trainer: Any) -> None:
        # The rounding of one large weight is large beside the other weights.
        widens(engine, trainer)
        for norm in (*(block.norm for block in engine.blocks), *(layer.norm for layer in trainer.layers)):
            norm.weight.data[0] = 9.97

    for name, change in (("right", widens), ("large", grows)):
        comparison = compared(tmp_path / name, trains_in=torch.bfloat16, both=change)
        assert comparison.origins == ()
        assert comparison.verdict == "noise", comparison.counts

    def scales(engine: Any) -> None:
        engine.blocks[1].norm.weight.data *= 1.2

    [origin, *_] = compared(tmp_path / "scaled", scales, trains_in=torch.bfloat16, both=widens).origins
    assert (origin.kind, origin.module) == ("parameter", "blocks.1.norm")

    def rounds(engine: Any) -> None:
        for block in engine.blocks:
            block.norm.weight.data = block.norm.weight.bfloat16().float()

    # Programs of one type round no weights.
    [origin, *_] = compared(tmp_path / "rounded", rounds, both=widens).origins
    assert (origin.kind, origin.module) == ("parameter", "blocks.0.norm")


def test_a_weight_of_a_norm_at_another_place_in_another_type(tmp_path: Path) -> None:
    """The trainer multiplies its weight with values, and the engine values with its weight."""

    def scales(engine: Any) -> None:
        engine.blocks[1].norm.weight.data *= 1.2

    [origin, *_] = compared(tmp_path, scales, trains_in=torch.bfloat16).origins
    assert (origin.kind, origin.module) == ("parameter", "blocks.1.norm")


def test_the_type_of_a_program_is_that_of_its_products(tmp_path: Path) -> None:
    """Most operators compute in float32 on both sides."""

    def lengthens(engine: Any, trainer: Any) -> None:
        for norm in (*(layer.norm for layer in (*trainer.layers, *engine.blocks)), trainer.norm, engine.final_norm):
            norm.forward = lambda x, norm=norm: Norm.forward(norm, negated(x.float()).to(x.dtype))

    def negated(x: Any) -> Any:
        for _ in range(12):
            x = -x
        return x

    comparison = compared(tmp_path, trains_in=torch.bfloat16, both=lengthens)
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts


@pytest.mark.parametrize("name", ["lm_head", "blocks.0.attention.qkv"])
def test_rows_of_a_weight_that_were_moved_by_one(name: str, tmp_path: Path) -> None:
    """Rows in another order are a layout only if blocks of one size have another order."""

    def moves(engine: Any) -> None:
        own = copy.deepcopy(engine.get_submodule(name))
        own.weight.data, own.bias.data = own.weight.detach().roll(1, 0), own.bias.detach().roll(1, 0)
        engine.set_submodule(name, own)

    comparison = compared(tmp_path, moves)
    assert comparison.verdict == "different"
    assert comparison.origins[0].module == name
    assert comparison.origins[0].kind == "parameter"


def test_a_residual_that_one_layer_lacks(tmp_path: Path) -> None:
    """The first operator that leads to the difference is named, and not the first one of all connected ones."""

    def lacks(engine: Any) -> None:
        block = engine.blocks[0]
        block.forward = lambda x, positions: block.attention(block.norm(x), positions)

    comparison = compared(tmp_path, lacks)
    assert comparison.verdict == "different"
    [origin, *_] = comparison.origins
    assert origin.pair.record.op_name == "layers.0/add_0"
    assert origin.evidence[0] == "aten::add runs in the reference only"


def test_positions_that_all_layers_count_otherwise(tmp_path: Path) -> None:
    """The angles differ first, not the results of the rotation, which other operators make from them."""

    def counts(engine: Any) -> None:
        for block in engine.blocks:
            rotated = block.attention.rotated
            block.attention.rotated = lambda x, positions, rotated=rotated: rotated(x, positions * 1.5)

    comparison = compared(tmp_path, counts)
    [origin, *_] = comparison.origins
    assert origin.kind == "structure"
    assert (origin.pair.actual.op_type, origin.pair.reference.op_name) == ("aten::mul", "mul_0")
    assert "compute different results from results that both have" in origin.evidence[0]
    assert not any(fact.startswith("it begins in one of these operators") for fact in origin.evidence)
