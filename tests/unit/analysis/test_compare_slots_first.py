"""A program as Megatron builds it, with axes for slots, rows and elements, against one with the rows first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
VOCABULARY, SIZE = 30, 8
ROWS = [[3, 7, 5, 9, 4], [6, 2, 8, 11, 13], [12, 1, 14, 10, 15]]


class Places(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def forward(self, positions: Any) -> Any:
        return (positions.float()[..., None] * torch.tensor([1.0, 0.5, 0.25, 0.125]).repeat(2)).cos()


class Trainer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """A model that reads all rows one behind another, with their positions."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(VOCABULARY, SIZE), nn.LayerNorm(SIZE)
        self.places = Places()
        self.query, self.key = nn.Linear(SIZE, SIZE, bias=bias), nn.Linear(SIZE, SIZE, bias=bias)
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, ids: Any, positions: Any) -> Any:
        is_row = torch.arange(ids.shape[1]) >= 0
        places = self.places(positions)
        x = self.norm(self.embed(ids)) * is_row[:, None]
        return self.head(self.query(x) * places + self.key(x))


class Engine(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """The same model, whose fused product adds its bias on its own. Its positions are floats, behind an offset."""

    def __init__(self, trainer: Trainer, eps: float) -> None:
        super().__init__()
        self.embed, self.places = trainer.embed, Places()
        self.norm = nn.LayerNorm(SIZE, eps=eps)
        self.norm.load_state_dict(trainer.norm.state_dict())
        self.fused = Fused(trainer.query, trainer.key)
        self.head = trainer.head

    def forward(self, ids: Any, offset: int) -> Any:
        is_row = torch.ones(ids.shape)
        for _ in range(20):
            is_row = is_row * is_row  # tensors without elements have the rows first
        x = self.embed(ids).transpose(0, 1).contiguous()
        places = self.places(torch.arange(ids.shape[1], dtype=torch.float32) + offset)[:, None]
        query, key = self.fused(self.norm(x)).split(SIZE, -1)
        return self.head(query * places + key)


class Fused(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]))
        self.bias = None if layers[0].bias is None else nn.Parameter(torch.cat([layer.bias for layer in layers]))

    def forward(self, x: Any) -> Any:
        product = torch.matmul(x, self.weight.t())
        return product if self.bias is None else product + self.bias


def compared(path: Path, eps: float, bias: bool) -> Any:
    trainer = Trainer(bias)
    engine, rows = Engine(trainer, eps), torch.tensor(ROWS)
    with torch.no_grad(), ascend_dump.capture(engine, path=path / "engine", steps="0-9"):
        engine(rows[:, :4], 0)
        engine(rows[:, 4:], 4)
    with torch.no_grad(), ascend_dump.capture(trainer, path=path / "trainer", steps="0"):
        trainer(rows.reshape(1, -1), torch.arange(5).repeat(3)[None])
    return ascend_dump.compare(path / "engine", path / "trainer")


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_slots_before_rows_are_the_same_tokens(tmp_path: Path, bias: bool) -> None:
    """A product joins slots and rows, so that its tensors have the tokens in another order than the trainer."""
    comparison = compared(tmp_path, 1e-5, bias)
    assert comparison.aligned
    assert comparison.verdict in ("equal", "noise")
    assert comparison.origins == ()


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_a_fault_is_found_in_front_of_a_product_with_a_bias_of_its_own(tmp_path: Path, bias: bool) -> None:
    """Positions that one program counts as floats, and the other as integers, are no cause."""
    comparison = compared(tmp_path, 0.5, bias)
    assert comparison.verdict == "different"
    assert [origin.module for origin in comparison.origins] == ["norm"]
