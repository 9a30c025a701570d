"""An engine of functions keeps a window of tokens: new keys and values take the places of the oldest ones.

It also indexes the table of embeddings, counts positions in integers, and has no axis of rows before that of experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
WINDOW, SIZE, VOCABULARY, NEW = 4, 12, 40, 3


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """shift: added to the values that are read from the ring; keeps_last: the last place is taken again and again"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))
        self.shift, self.keeps_last = 0.0, False

    def forward(self, x: Any, positions: Any, ring: Optional[dict[str, Any]], rows: Any) -> Any:
        q, kv, places = self.q(x), self.kv(x), positions
        if ring is not None:
            new, slots = kv[:, -WINDOW:], positions[:, -WINDOW:]
            kept = ring["kv"][rows]
            kv = torch.cat([kept + self.shift if self.shift else kept, kv], 1)
            places = torch.cat([ring["places"][rows], positions], 1)
            taken = slots.clamp(max=WINDOW - 1) if self.keeps_last else slots % WINDOW
            ring["kv"][rows[:, None], taken] = new
            ring["places"][rows[:, None], taken] = slots
        far = positions[..., None] - places[:, None]
        sees = (places[:, None] >= 0) & (far >= 0) & (far < WINDOW)
        scores = (q @ kv.transpose(1, 2)).masked_fill(~sees, torch.finfo(q.dtype).min)
        return x + self.o(scores.softmax(-1) @ kv)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.frequencies = nn.Embedding(VOCABULARY, SIZE), nn.Buffer(0.5 ** torch.arange(SIZE))
        self.blocks, self.head = nn.ModuleList(Attention() for _ in range(2)), nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any, rings: Any = None, rows: Any = None) -> Any:
        x = self.embed(ids) if rings is None else self.embed.weight[ids]
        turned = (positions[..., None] if rings is not None else positions[..., None].float()) * self.frequencies
        x = x + turned.cos().to(x.dtype)
        for number, block in enumerate(self.blocks):
            x = block(x, positions, None if rings is None else rings[number], rows)
        large = 32 * x
        if rings is not None:
            x = torch.stack([large, x, -large], 2).sum(2)
        else:
            large, flat = large.flatten(0, 1), x.flatten(0, 1)
            x = torch.stack([large, -large, flat], 1).sum(1).view(x.shape)
        return self.head(x)


def compared(
    tmp_path: Path,
    lengths: tuple[int, ...],
    *,
    shift: float = 0.0,
    keeps_last: bool = False,
    dtype: Any = torch.float32,
) -> Any:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    places, network, rows = torch.arange(ids.shape[1]).expand(ids.shape), Network().to(dtype), torch.arange(len(ids))
    network.blocks[1].shift, network.blocks[1].keeps_last = shift, keeps_last
    room = len(ids), WINDOW
    rings = [{"kv": torch.zeros(*room, SIZE, dtype=dtype), "places": torch.full(room, -1)} for _ in network.blocks]
    with torch.no_grad(), ascend_dump.capture(path=tmp_path / "engine", steps="0-9") as capture:
        for row, length in enumerate(lengths):
            if row:
                capture.step()
            prompt = slice(0, length - NEW)
            network(ids[row : row + 1, prompt], places[row : row + 1, prompt], rings, rows[row : row + 1])
        for n in range(NEW):
            capture.step()
            at = torch.tensor(lengths)[:, None] - NEW + n
            network(ids.gather(1, at), at, rings, rows)
    right = Network()
    with torch.no_grad(), ascend_dump.capture(right, path=tmp_path / "trainer", steps="0"):
        right(ids, places)
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_ring_that_has_less_room_than_a_prompt(dtype: Any, tmp_path: Path) -> None:
    comparison = compared(tmp_path, (9, 11, 10), dtype=dtype)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "30 tokens of 3 requests" in comparison.aligned[-1]


def test_wrong_values_of_a_ring(tmp_path: Path) -> None:
    comparison = compared(tmp_path, (9, 11, 10), shift=0.3)
    assert comparison.verdict == "different"
    first = comparison.origins[0]
    assert first.op_name.startswith("blocks.1/cat_")
    assert "it reads other keys than the reference" in first.evidence[0]


def test_keys_that_are_lost_in_a_ring(tmp_path: Path) -> None:
    """Fewer keys are left, and the mask is right for them: they are not those of the reference."""
    first = compared(tmp_path, (9, 11, 10), keeps_last=True).origins[0]
    assert first.op_name.startswith("blocks.1/index_"), (first.op_name, first.evidence)
    assert "reads other keys" in first.evidence[0]
