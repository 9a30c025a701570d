"""A trainer computes a loss with operators that the model of a rollout has too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
functional = nn.functional
SIZE, VOCABULARY, LENGTH, NEW, CAP = 16, 40, 9, 3, 5.0


class Trainer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, 2 * SIZE, bias=False)
        self.down, self.head = nn.Linear(2 * SIZE, SIZE, bias=False), nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        logits = self.head(x + self.down(functional.gelu(self.up(x)))) / CAP
        return torch.tanh(logits) * CAP


def rollout(weights: dict[str, Any], ids: Any, cap: float) -> Any:
    """Return the logits of the last token."""
    x = functional.embedding(ids, weights["embed"])
    x = x + functional.gelu(x @ weights["up"].T) @ weights["down"].T
    return cap * torch.tanh(x[:, -1] @ weights["head"].T / cap)


def compared(tmp_path: Path, cap: float = CAP, dtype: Any = torch.bfloat16) -> ascend_dump.Comparison:
    ids = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    trainer = Trainer()
    weights = {name.partition(".")[0]: weight.to(dtype) for name, weight in trainer.named_parameters()}
    with torch.no_grad(), ascend_dump.capture(None, path=tmp_path / "rollout", steps="0"):
        for part in (slice(0, LENGTH - NEW), *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH))):
            rollout(weights, ids[:, part], cap)
    with torch.no_grad(), ascend_dump.capture(None, path=tmp_path / "trainer", steps="0"):
        odds = (trainer(ids) / 1.0).log_softmax(-1)
        entropy = -(odds.exp() * odds).sum(-1)
        odds[:, :-1].gather(-1, ids[:, 1:, None])[..., 0] + 0.0 * entropy[:, :-1]
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer", align="tokens")


def test_operators_of_a_loss_are_no_partners_of_those_of_the_model(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert comparison.verdict == "noise", comparison.counts
    assert not comparison.origins


def test_another_cap_of_the_logits(tmp_path: Path) -> None:
    comparison = compared(tmp_path, cap=2.0)
    assert comparison.origins[0].op_name in ("div_0", "mul_1"), comparison.origins[0].evidence
