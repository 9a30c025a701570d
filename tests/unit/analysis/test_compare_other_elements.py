"""An engine that reads the wrong half of a tensor, or picks the wrong token: nothing is computed wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
functional = nn.functional
SIZE, VOCABULARY, LENGTH, NEW = 16, 40, 9, 3


class Trainer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)
        self.act, self.place, self.norm = nn.SiLU(), nn.Embedding(LENGTH, SIZE), nn.RMSNorm(SIZE, 1e-5)
        self.experts_in = nn.ModuleList(nn.Linear(SIZE, 2 * SIZE, bias=False) for _ in range(2))
        self.experts_out = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(2))

    def forward(self, ids: Any, positions: Any) -> Any:
        x = self.embed(ids) + self.place(positions)
        for wide, narrow in zip(self.experts_in, self.experts_out):
            gate, up = wide(x).chunk(2, -1)
            x = x + narrow(self.act(gate) * up)
        return self.head(self.norm(x))


class Engine(nn.Module):  # type: ignore[misc]
    """The same with stacked weights and few modules, which returns the logits of the last token of each row only."""

    def __init__(self, trainer: Trainer, fault: str = "") -> None:
        super().__init__()
        self.act, self.fault = nn.SiLU(), fault
        self.weights = [trainer.embed.weight, trainer.place.weight, trainer.norm.weight, trainer.head.weight]
        self.wide = torch.stack([layer.weight for layer in trainer.experts_in]).detach()
        self.narrow = torch.stack([layer.weight for layer in trainer.experts_out]).detach()

    def forward(self, ids: Any, positions: Any) -> Any:
        embed, place, norm, head = self.weights
        x = functional.embedding(ids, embed) + functional.embedding(positions, place)
        for wide, narrow in zip(self.wide, self.narrow):
            product = torch.bmm(x.flatten(0, 1)[None], wide.T[None]).view(*x.shape[:2], -1)
            first, second = product.split(SIZE, -1)
            gate, up = (second, first) if self.fault == "halves" else (first, second)
            x = x + functional.linear(self.act(gate) * up, narrow)
        x = x[:, -2 if self.fault == "token" and x.shape[1] > 1 else -1]
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return x * scale * norm @ head.T


def compared(tmp_path: Path, fault: str = "") -> ascend_dump.Comparison:
    """Compare a batch of prompts, and then one token of each after the other, with the whole sequences."""
    ids = torch.randint(1, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(3))
    trainer = Trainer()
    engine = Engine(trainer, fault)
    places = torch.arange(LENGTH).expand(ids.shape)
    parts = [slice(0, LENGTH - NEW), *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH))]
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "rollout", steps="0-9"):
        for part in parts:
            engine(ids[:, part], places[:, part])
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids, places)
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer", align="tokens")


def test_programs_that_agree(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise"), comparison.counts


def test_the_other_half_of_a_product(tmp_path: Path) -> None:
    first = compared(tmp_path, "halves").origins[0]
    assert (first.op_name.rpartition("_")[0], first.kind) == ("act/silu", "wiring"), first.evidence
    assert "another part of a tensor" in first.evidence[0]


def test_the_logits_of_another_token(tmp_path: Path) -> None:
    """Only the prompts have more than one token."""
    first = compared(tmp_path, "token").origins[0]
    assert (first.op_name.rpartition("_")[0], first.kind) == ("select", "wiring"), first.evidence
    assert "instead of" in first.evidence[0]
