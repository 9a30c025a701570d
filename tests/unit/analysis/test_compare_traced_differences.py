"""A difference inside of an attention, or between experts, that two programs compute by other operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
functional = nn.functional
HEADS, SIZE, VOCABULARY, LENGTH, NEW = 2, 16, 40, 9, 3
HALF = SIZE // HEADS // 2


class Trainer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """A layer with separate projections, that rotates whole heads and scores all tokens at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.k_norm = nn.Parameter(torch.rand(SIZE // HEADS) + 0.5)
        self.has_norm = True
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE, bias=False), nn.Linear(2 * SIZE, SIZE, bias=False)

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embed(ids)
        angles = positions[..., None] / 10.0 ** torch.arange(HALF)
        angles = torch.cat((angles, angles), -1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.has_norm:
            k = k * k.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt() * self.k_norm
        q, k = (t * cos + torch.cat((-t[..., HALF:], t[..., :HALF]), -1) * sin for t in (q, k))
        scores = q @ k.transpose(2, 3) * HALF**-0.5
        weights = scores.masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -1e30).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        return self.head(x + self.down(functional.gelu(self.up(x))))


class Engine(nn.Module):  # type: ignore[misc]
    """The same layer as one function with fused weights, that rotates halves and keeps keys and values."""

    counts_from_five = False

    def __init__(self, trainer: Trainer, fault: str = "", *, fused: bool = False) -> None:
        super().__init__()
        self.trainer, self.fault, self.fused = [trainer], fault, fused
        self.w_qkv = torch.cat([part.weight for part in (trainer.q, trainer.k, trainer.v)]).detach()
        if fault == "stale values":
            self.w_qkv[2 * SIZE :] *= 1.1
        self.cache: Optional[list[Any]] = None

    def forward(self, ids: Any, positions: Any) -> Any:
        [trainer] = self.trainer
        x = functional.embedding(ids, trainer.embed.weight)
        counted = positions + (5 if self.counts_from_five else 0)
        if self.fault == "position" and positions.shape[1] == 1:
            counted = counted + 1
        angles = (counted[..., None] / 10.0 ** torch.arange(HALF))[:, :, None]
        product = x @ self.w_qkv.T
        if self.fault == "heads":
            fused = product.unflatten(-1, (HEADS, 3, -1)).transpose(2, 3)
        else:
            fused = product.unflatten(-1, (3, HEADS, -1))
        if self.fault == "exchanged":
            fused = fused.clone()  # a copy keeps the order of elements
        q, k, v = fused.unbind(2)
        if self.fault == "exchanged":
            k, v = v, k
        if self.fault not in ("no norm", "heads"):
            k = functional.rms_norm(k, k.shape[-1:], trainer.k_norm, 1e-5)
        q = self.rotated(q, angles.cos(), angles.sin())
        if self.fault != "unrotated keys":
            k = self.rotated(k, angles.cos(), angles.sin())
        if self.cache is not None:
            k, v = (torch.cat(parts, 1) for parts in zip(self.cache, (k, v)))
        self.cache = [k, v]
        hidden = torch.arange(k.shape[1]) > positions[..., None]
        attended = self.attended(q, k, v, hidden[:, None])
        x = x + attended.flatten(2) @ trainer.o.weight.T
        return (x + functional.gelu(x @ trainer.up.weight.T) @ trainer.down.weight.T) @ trainer.head.weight.T

    def attended(self, q: Any, k: Any, v: Any, hidden: Any) -> Any:
        if self.fused:
            parts = (part.transpose(1, 2) for part in (q, k, v))
            result = functional.scaled_dot_product_attention(*parts, attn_mask=~hidden, scale=HALF**-0.5)
            return result.transpose(1, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q * HALF**-0.5, k)
        weights = torch.where(hidden, -torch.inf, scores).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    def rotated(self, x: Any, cos: Any, sin: Any) -> Any:
        first, second = x[..., :HALF], x[..., HALF:]
        if self.fault == "pairs":
            first, second = x[..., 0::2], x[..., 1::2]
        if self.fault == "sign":
            return torch.cat((first * cos + second * sin, second * cos - first * sin), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def compared(tmp_path: Path, fault: str = "", *, fused: bool = False) -> ascend_dump.Comparison:
    """Compare the engine, a prompt and single tokens, with the trainer, which has the whole sequence."""
    ids = torch.randint(1, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(LENGTH)[None]
    trainer = Trainer()
    trainer.has_norm = fault != "heads"
    engine = Engine(trainer, fault, fused=fused)
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "rollout", steps="0-9"):
        for part in (slice(0, LENGTH - NEW), *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH))):
            engine(ids[:, part], positions[:, part])
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids, positions)
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer")


def line_of(text: str) -> int:
    """Return the number of the only line of this file that ends with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return number


@pytest.mark.parametrize("fused", [False, True])
def test_programs_that_agree(fused: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, fused=fused)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not comparison.origins


def test_the_first_result_that_the_other_program_lacks_is_named(tmp_path: Path) -> None:
    """Rotations of halves and of whole heads have results in common, but not those with another sign."""
    first = compared(tmp_path, "sign").origins[0]
    line = line_of("return torch.cat((first * cos + second * sin, second * cos - first * sin), -1)")
    assert (first.kind, str(first.source).rpartition("/")[2]) == ("structure", f"{Path(__file__).name}:{line}")
    assert first.op_name.startswith("mul"), "not cat, which joins the results"
    assert "of actual" in first.evidence[0]
    assert "from results that both have" in first.evidence[0]


@pytest.mark.parametrize("from_five", [False, True])
def test_a_position_that_does_not_follow_from_the_one_before(
    from_five: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rotation depends on distances, so that each side may begin to count anywhere."""
    monkeypatch.setattr(Engine, "counts_from_five", from_five)
    assert compared(tmp_path / "right").verdict in ("equal", "noise")
    first = compared(tmp_path / "wrong", "position").origins[0]
    assert str(first.source).endswith(f":{line_of('counted = counted + 1')}"), (first.op_name, first.evidence)
    expected = 12 if from_five else 7
    assert f"first token 6; its position is {expected} here, 6 in the reference: 3 of 9" in first.evidence[0]
    other = compared(tmp_path / "other", "sign").origins[0]
    assert "position" not in other.evidence[0], other.evidence


@pytest.mark.parametrize("fused", [False, True])
def test_an_operator_that_actual_lacks_is_named(fused: bool, tmp_path: Path) -> None:
    """The next operator of actual, the rotation, reads what the norm of the reference reads, and is right."""
    first = compared(tmp_path, "no norm", fused=fused).origins[0]
    assert first.pair.actual is None
    assert first.pair.reference is not None
    assert first.pair.reference.op_type == "aten::pow"
    assert "of the reference computes a result that actual lacks" in first.evidence[0]


@pytest.mark.parametrize("fused", [False, True])
def test_keys_that_are_computed_otherwise_are_no_wrong_choice_of_keys(fused: bool, tmp_path: Path) -> None:
    """The first key is the same without a rotation. The tables of the rotation, which the queries need, are right."""
    first = compared(tmp_path, "unrotated keys", fused=fused).origins[0]
    assert first.pair.reference is not None, first.evidence
    line = line_of("for t in (q, k))")
    assert str(first.pair.reference.source).endswith(f":{line}"), first.evidence
    assert "attention" not in first.op_name, "the result of the fused operator follows from the keys"


def test_operators_that_move_elements_on_one_side_are_named_if_the_tensor_before_them_agrees(tmp_path: Path) -> None:
    """Keys and values are exchanged where the result of the fused product is divided."""
    norm, moved = compared(tmp_path, "exchanged").origins[:2]
    assert "reads mm_0[32:48] here, k/mm_0 in the reference" in norm.evidence
    assert (moved.op_name, moved.kind) == ("unbind_0", "wiring")
    assert "its elements are moved by" in " ".join(moved.evidence)


@pytest.mark.parametrize(
    ("fault", "line"), [("heads", "(HEADS, 3, -1)).transpose(2, 3)"), ("pairs", "x[..., 0::2], x[..., 1::2]")]
)
def test_elements_that_are_picked_otherwise(fault: str, line: str, tmp_path: Path) -> None:
    """No tensor of the trainer has these elements: the operator that multiplies them is not the one that is wrong."""
    first = compared(tmp_path, fault, fused=True).origins[0]
    assert str(first.source).endswith(f":{line_of(line)}"), (first.op_name, first.evidence)
    assert "that the other program does not pick" in first.evidence[0]


def test_a_part_of_a_fused_weight_of_which_all_rows_are_stale(tmp_path: Path) -> None:
    """Its rows are those of no weight of the trainer, so it is known as the part that is left over."""
    first = compared(tmp_path, "stale values").origins[0]
    assert first.kind == "parameter"
    assert first.pair.actual is not None
    assert first.pair.reference is not None
    assert (first.pair.actual.op_name, first.pair.reference.op_name) == ("mm_0", "v/mm_0")
