"""An engine with one row of a cache for each request, right padding and a factor of 1 is compared with a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
ROOM, SIZE, VOCABULARY = 16, 12, 40


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """cache: keys and values, [rows, ROOM, SIZE]; None to attend to the tokens of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.scale, self.shift = SIZE**-0.5, 0

    def forward(self, x: Any, positions: Any, cache: Any, mask: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if cache is not None:
            rows = torch.arange(len(x))[:, None]
            cache[0][rows, positions + self.shift], cache[1][rows, positions + self.shift] = k, v
            k, v = cache
        sees = torch.arange(k.shape[1]) <= positions[..., None]
        sees = sees if mask is None else sees & mask[:, None]
        scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~sees, torch.finfo(x.dtype).min)
        return x + self.o(scores.softmax(-1) @ v)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, factor: float = 0.0) -> None:
        """factor: of the embeddings; 0 for a network without one"""
        super().__init__()
        torch.manual_seed(0)
        self.factor = factor
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(ROOM + 1, SIZE)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any, caches: Any = None, mask: Any = None) -> Any:
        mask = None if mask is None else mask.bool()
        x = self.embed(ids)
        x = (x * self.factor if self.factor else x) + self.place(positions)
        for index, block in enumerate(self.blocks):
            x = block(x, positions, None if caches is None else caches[index], mask)
        return self.head(x)


def requests(lengths: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(sequences: list[Any]) -> Any:
    return nn.utils.rnn.pad_sequence(sequences, batch_first=True)


def engine(path: Path, network: Any, sequences: list[Any], new: int = 3, *, masked: bool = False) -> Path:
    """Dump prompts with padding on the right, whose positions count on, then tokens that overwrite the padding.

    masked: the network is given a mask with a number for each place of the cache
    """

    def mask(length: int) -> Any:
        return (torch.arange(ROOM) < length).long().expand(len(sequences), -1) if masked else None

    ids = padded([sequence[:-new] for sequence in sequences])
    caches = torch.zeros(len(network.blocks), 2, len(sequences), ROOM, SIZE)
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-9"):
        logits = network(ids, torch.arange(ids.shape[1]).expand(ids.shape), caches, mask(ids.shape[1]))
        _kept = [logits[row, slot].clone() for slot in range(ids.shape[1]) for row in range(len(ids))]
        for n in range(-new, 0):
            positions = torch.tensor([[len(sequence) + n] for sequence in sequences])
            new_ids = torch.stack([sequence[n] for sequence in sequences])[:, None]
            logits = network(new_ids, positions, caches, mask(len(sequences[0]) + n + 1))
            _kept = [logits[row, 0].clone() for row in range(len(sequences))]
    return path


def trainer(path: Path, network: Any, sequences: list[Any]) -> Path:
    """Dump whole sequences, and keep the logits of each token."""
    ids = padded(sequences)
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-9"):
        logits = network(ids, torch.arange(ids.shape[1]).expand(ids.shape))
        _kept = [logits[row, slot].clone() for row, ids in enumerate(sequences) for slot in range(len(ids))]
    return path


@pytest.mark.parametrize("lengths", [(9, 9, 9), (10, 8, 12)])
def test_a_right_engine(lengths: tuple[int, ...], tmp_path: Path) -> None:
    sequences = requests(lengths)
    reference = trainer(tmp_path / "trainer", Network(), sequences)
    comparison = ascend_dump.compare(engine(tmp_path / "engine", Network(1.0), sequences), reference)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert f"{sum(lengths)} tokens of 3 requests" in comparison.aligned[-1]
    assert comparison.omitted["without an effect on one side"] == 2  # a factor of 1


def test_a_mask_with_a_number_for_each_place_of_a_cache(tmp_path: Path) -> None:
    """It ends with zeros for tokens that do not exist yet, also where the tokens of the call are."""
    sequences = requests((9, 9, 9))
    reference = trainer(tmp_path / "trainer", Network(), sequences)
    comparison = ascend_dump.compare(engine(tmp_path / "engine", Network(), sequences, masked=True), reference)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "27 tokens of 3 requests" in comparison.aligned[-1]
    faulty = Network()
    faulty.blocks[1].scale = 0.5
    first = ascend_dump.compare(engine(tmp_path / "faulty", faulty, sequences, masked=True), reference).origins[0]
    assert first.module == "blocks.1"


def test_another_factor_is_an_origin(tmp_path: Path) -> None:
    sequences = requests((10, 8, 12))
    reference = trainer(tmp_path / "trainer", Network(), sequences)
    first = ascend_dump.compare(engine(tmp_path / "engine", Network(1.5), sequences), reference).origins[0]
    assert (first.op_type, first.module) == ("aten::mul", "")


def test_another_scale_is_an_origin(tmp_path: Path) -> None:
    sequences, faulty = requests((10, 8, 12)), Network(1.0)
    faulty.blocks[1].scale = 0.5
    reference = trainer(tmp_path / "trainer", Network(), sequences)
    first = ascend_dump.compare(engine(tmp_path / "engine", faulty, sequences), reference).origins[0]
    assert (first.op_type, first.module) == ("aten::mul", "blocks.1")
