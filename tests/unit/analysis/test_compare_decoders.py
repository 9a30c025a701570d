"""A decoder that answers texts of an encoder token by token is compared with a forward pass over whole answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
SIZE, VOCABULARY, LENGTHS = 12, 40, (9, 6, 8)


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.scale = SIZE**-0.5

    def forward(self, x: Any, read: Any, sees: Any, cache: Any = None) -> Any:
        """sees: [rows, queries, keys]. cache: the keys and values of the calls before, to which those of `read` go"""
        q, k, v = self.q(x), self.k(read), self.v(read)
        if cache is not None:
            k, v = cache[:] = [torch.cat(both, 1) for both in zip(cache, (k, v))] if cache else [k, v]
        scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~sees, -1e30)
        return x + self.o(scores.softmax(-1) @ v)


class Encoder(nn.Module):  # type: ignore[misc]
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.embed, self.attention = table, Attention()

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.embed(ids)
        return self.attention(x, x, mask.bool()[:, None])


class Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(16, SIZE)
        self.embed.weight = table.weight
        self.attention, self.cross, self.head = Attention(), Attention(), nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, encoded: Any, mask: Any, cache: Any) -> Any:
        is_text = mask.bool()[:, None]
        held = cache[0].shape[1] if cache else 0
        positions = torch.arange(held, held + ids.shape[1])
        sees = (torch.arange(held + ids.shape[1]) <= positions[:, None])[None]
        x = self.embed(ids) + self.place(positions)
        x = self.attention(x, x, sees, cache)
        return self.head(self.cross(x, encoded, is_text))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = nn.Embedding(VOCABULARY, SIZE)
        self.encoder, self.decoder = Encoder(table), Decoder(table)

    def forward(self, texts: Any, mask: Any, ids: Any, encoded: Any, cache: Any) -> Any:
        encoded = self.encoder(texts, mask) if encoded is None else encoded
        return self.decoder(ids, encoded, mask, cache), encoded


def compared(tmp_path: Path, rollout: Any, trainer: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    texts = torch.randint(1, VOCABULARY, (3, max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(1, VOCABULARY, (3, 7), generator=generator)
    ids[:, 0] = 0
    encoded, cache = None, []
    with torch.no_grad(), ascend_dump.capture(rollout, path=tmp_path / "rollout", steps="0-9"):
        for n in range(ids.shape[1]):
            _, encoded = rollout(texts * mask, mask, ids[:, n : n + 1], encoded, cache)
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(texts * mask, mask, ids, None, [])
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer")


def test_the_tokens_of_a_decoder_are_compared(tmp_path: Path) -> None:
    """The mask of the texts is no mask of the tokens of the decoder."""
    comparison = compared(tmp_path, Network(), Network())
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "21 tokens of 3 requests: " in comparison.aligned[-1]


@pytest.mark.parametrize("module", ["encoder.attention", "decoder.attention", "decoder.cross"])
def test_a_scale_of_the_encoder_or_decoder(module: str, tmp_path: Path) -> None:
    faulty = Network()
    faulty.get_submodule(module).scale = 1.0
    origin = compared(tmp_path, faulty, Network()).origins[0]
    assert (origin.module, origin.op_type) == (module, "aten::mul")
