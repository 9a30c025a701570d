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
    """shift: added to the values that are read from the cache"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.latents, self.shift = torch.zeros(ROWS, ROOM, SIZE), 0.0

    def forward(self, x: Any, positions: Any, rows: Any) -> Any:
        q, kv = self.q(x), self.kv(x)
        if rows is not None:
            self.latents[rows[:, None], positions] = kv
            if x.shape[1] == 1:
                kv = self.latents[rows, : int(positions.max()) + 1] + self.shift
        sees = torch.arange(kv.shape[1]) <= positions[..., None]
        scores = (q @ kv.transpose(1, 2)).masked_fill(~sees, float("-inf"))
        return x + self.o(scores.softmax(-1) @ kv)


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


def compared(tmp_path: Path, shift: float = 0.0) -> Any:
    ids = torch.randint(1, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(5))
    places, network, rows = torch.arange(LENGTH).expand(ids.shape), Network(), torch.tensor([3, 0, 4])
    network.blocks[1].shift = shift
    with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / "engine", steps="0-9"):
        for row in range(len(ids)):
            network(ids[row : row + 1, :-NEW], places[row : row + 1, :-NEW], rows[row : row + 1])
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
