"""An engine writes prompts one by one to a cache with a row for each request, and reads it while decoding only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
ROWS, ROOM, SIZE, VOCABULARY, LENGTH, NEW = 5, 16, 12, 40, 9, 3


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """shift: added to the values that are read from the cache; wrong_row: row of the cache with other prompts"""

    wrong_row: Optional[int] = None

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.latents, self.shift = torch.zeros(ROWS, ROOM, SIZE), 0.0

    def forward(self, x: Any, positions: Any, rows: Any) -> Any:
        q, kv = self.q(x), self.kv(x)
        if rows is not None:
            self.latents[rows[:, None], positions] = kv
            if x.shape[1] == 1 or positions.min():
                kv = self.latents[rows, : int(positions.max()) + 1] + self.shift
        sees = torch.arange(kv.shape[1]) <= positions[..., None]
        scores = (q @ kv.transpose(1, 2)).masked_fill(~sees, float("-inf"))
        factor = 0.5 if x.shape[1] > 1 and rows is not None and int(rows[0]) == self.wrong_row else 1.0
        return x + self.o(scores.softmax(-1) @ kv) * factor


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(ROOM, SIZE)
        self.blocks, self.head = nn.ModuleList(Attention() for _ in range(2)), nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any, rows: Optional[Any] = None) -> Any:
        x = self.embed(ids) + self.place(positions)
        for block in self.blocks:
            x = block(x, positions, rows)
        return self.head(x)


def compared(tmp_path: Path, shift: float = 0.0, wrong_row: Optional[int] = None, cached: int = 0) -> Any:
    """Compare an engine with a trainer. cached: number of first tokens that all requests have, cached for the first"""
    ids = torch.randint(1, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(5))
    ids[:, :cached] = ids[0, :cached]
    places, network, rows = torch.arange(LENGTH).expand(ids.shape), Network(), torch.tensor([3, 0, 4])
    network.blocks[1].shift, network.blocks[1].wrong_row = shift, wrong_row
    with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / "engine", steps="0-9"):
        for row in range(len(ids)):
            for block in network.blocks if cached else ():
                block.latents[rows[row], :cached] = block.latents[rows[0], :cached]
            part = slice(row, row + 1), slice(cached if row else 0, -NEW)
            network(ids[part], places[part], rows[part[0]])
        for n in range(LENGTH - NEW, LENGTH):
            network(ids[:, n : n + 1], places[:, n : n + 1], rows)
    right = Network()
    with torch.no_grad(), ascend_dump.capture(right, path=tmp_path / "trainer", steps="0"):
        right(ids, places)
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")


def test_a_cache_that_prompts_only_write(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "10 appended to a cache" in comparison.aligned[-1]
    assert comparison.omitted["appended to a cache"] == 10


def test_wrong_values_of_the_cache(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 0.3)
    assert comparison.verdict == "different"
    assert comparison.origins[0].module.startswith("blocks.1")


def test_a_prompt_that_has_the_request_of_its_row_while_decoding(tmp_path: Path) -> None:
    """Only one prompt is wrong, in the last layer, so that no key of the cache shows it."""
    comparison = compared(tmp_path, wrong_row=4)
    first = comparison.origins[0]
    assert (first.module, first.op_name) == ("blocks.1", "blocks.1/mul_0")
    assert any(text.startswith("first token 0 of request 2; ") for text in first.evidence), "of three, counted from 0"


def test_prompts_whose_first_tokens_are_cached(tmp_path: Path) -> None:
    """No tokens of the first prompt were rejected because the second one begins at an earlier position."""
    comparison = compared(tmp_path, cached=3)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not any("rejected" in text for text in comparison.aligned), comparison.aligned
    assert comparison.aligned[-1].startswith("27 tokens of 3 requests")
