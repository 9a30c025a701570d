"""Operators that only move elements are named if a difference begins at their input, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
HEADS, SIZE, VOCABULARY = 4, 16, 40


class Heads(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """A model whose layer turns its heads to the front. rolled: the heads are moved by one before"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.fused, self.head = (
            nn.Embedding(VOCABULARY, SIZE),
            nn.Linear(SIZE, SIZE),
            nn.Linear(SIZE, VOCABULARY),
        )
        self.factors = nn.Parameter(torch.rand(HEADS, 1, SIZE // HEADS) + 0.5)
        self.rolled = False

    def forward(self, ids: Any) -> Any:
        x = self.fused(self.embed(ids)).unflatten(-1, (HEADS, -1))
        if self.rolled:
            x = x.roll(1, -2)
        x = torch.transpose(x, -2, -3) * self.factors
        return self.head(torch.transpose(x, -2, -3).flatten(-2))


def compared(path: Path, *, rolled: bool) -> ascend_dump.Comparison:
    """Compare a rollout, which runs a prompt and then single tokens, with the same model on the whole sequence."""
    ids = torch.randint(1, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(3))
    rollout, trainer = Heads(), Heads()
    rollout.rolled = rolled
    with torch.no_grad(), ascend_dump.capture(rollout, path=path / "rollout", steps="0-9"):
        for begin, end in [(0, 6), (6, 7), (7, 8), (8, 9)]:
            rollout(ids[:, begin:end])
    with torch.no_grad(), ascend_dump.capture(trainer, path=path / "trainer", steps="0"):
        trainer(ids)
    return ascend_dump.compare(path / "rollout", path / "trainer", align="tokens")


def test_a_move_whose_input_was_changed_is_named(tmp_path: Path) -> None:
    assert compared(tmp_path / "right", rolled=False).verdict in ("equal", "noise")
    [origin] = compared(tmp_path / "rolled", rolled=True).origins
    assert (origin.pair.record.label, origin.kind) == ("roll_0.output.0", "wiring")
    assert any("made by fused/addmm_0" in fact for fact in origin.evidence), origin.evidence
