"""An engine that runs several requests in one row, against a trainer with a batch of the same width."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn = torch.nn
VOCABULARY, SIZE = 30, 8
SEQUENCES = [[3, 7, 5, 9, 4], [6, 2, 8, 11, 13, 17]]


class Model(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self, eps: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(9, SIZE)
        self.norm, self.hidden = nn.LayerNorm(SIZE, eps=eps), nn.Linear(SIZE, SIZE)
        self.head = nn.Linear(SIZE, VOCABULARY)

    def forward(self, ids: Any, positions: Any, last: Optional[Any] = None) -> Any:
        x = self.hidden(self.norm(self.embed(ids) + self.places(positions)))
        return self.head(x if last is None else x[last])


def compared(path: Path, eps: float, early: int = 0) -> Any:
    """Compare an engine, which computes the logits of the last token of each request only, with a trainer.

    early: the engine picks the row of an earlier token in the first call
    """
    engine, trainer = Model(eps), Model(1e-5)
    calls = [([3, 4], [(0, 3), (0, 4)]), ([1, 1], [(3, 4), (4, 5)]), ([1, 1], [(4, 5), (5, 6)])]
    with torch.no_grad(), ascend_dump.capture(engine, path=path / "engine", steps="0-9"):
        for counts, parts in calls:
            ids = [n for sequence, (begin, end) in zip(SEQUENCES, parts) for n in sequence[begin:end]]
            positions = [n for begin, end in parts for n in range(begin, end)]
            last = torch.tensor(counts).cumsum(0) - 1
            engine(torch.tensor(ids), torch.tensor(positions), last - early if max(counts) > 1 else last)
    rows = torch.tensor([sequence + [0] * (7 - len(sequence)) for sequence in SEQUENCES])
    with torch.no_grad(), ascend_dump.capture(trainer, path=path / "trainer", steps="0"):
        trainer(rows, torch.arange(7).expand(2, 7))
    return ascend_dump.compare(path / "engine", path / "trainer")


def test_calls_of_one_width_are_compared_by_tokens(tmp_path: Path) -> None:
    """The first call of the engine has 7 tokens of two requests, and the trainer has 7 slots in each row."""
    comparison = compared(tmp_path, 1e-5)
    assert any(text.startswith("11 tokens of 2 requests") for text in comparison.aligned)
    assert comparison.verdict in ("equal", "noise")
    assert comparison.origins == ()


def test_tokens_that_are_picked_come_from_the_tensor_and_not_from_the_indices(tmp_path: Path) -> None:
    """The head reads what the index returned, so that the norm explains its difference."""
    comparison = compared(tmp_path, 0.5)
    assert [(origin.module, origin.kind) for origin in comparison.origins] == [("norm", "argument")] or [
        origin.module for origin in comparison.origins
    ] == ["norm"]


def test_rows_of_other_tokens_than_the_last_ones_are_a_difference(tmp_path: Path) -> None:
    """The trainer has the logits of these tokens too, but the engine chooses the next token by them."""
    first = compared(tmp_path, 1e-5, early=1).origins[0]
    assert (first.op_name, first.kind) == ("index_0", "wiring")
    assert any("its elements are moved by aten::index here" in fact for fact in first.evidence)


def test_a_draft_that_is_right_again_behind_a_wrong_token(tmp_path: Path) -> None:
    """The last token of the draft has the id and the position of the next token of the other request too."""
    rows = [[3, 7, 5, 9, 4, 12, 14], [6, 2, 8, 11, 13, 12, 17]]
    calls = [
        (rows[0][:3] + rows[1][:5], [0, 1, 2, 0, 1, 2, 3, 4]),
        ([9, 20, 12, 12], [3, 4, 5, 5]),
        ([4, 12, 17], [4, 5, 6]),
    ]
    engine, trainer = Model(1e-5), Model(1e-5)
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "engine", steps="0-9"):
        for ids, positions in calls:
            engine(torch.tensor(ids), torch.tensor(positions))
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(torch.tensor(rows), torch.arange(7).expand(2, 7))
    comparison = ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")
    assert "left out: 2 tokens of actual that a later call replaces, as after a rejected draft" in comparison.aligned
    assert any(text.startswith("13 tokens of 2 requests") for text in comparison.aligned)
    assert comparison.verdict in ("equal", "noise")


@pytest.mark.parametrize(("padding", "rejected"), [([0, 0, 0], False), ([21, 20, 19], True), ([0], False)])
def test_padding_behind_the_tokens_of_prompts_is_no_draft(tmp_path: Path, padding: list[int], rejected: bool) -> None:
    """The decode steps write at the positions of the padding. Tokens of a draft have several ids."""
    rows = [[3, 7, 5, 9, 4, 12, 14, 16], [6, 2, 8, 11, 13, 12, 17, 10, 15]]
    lengths = 7 - len(padding), 7
    calls = [([rows[0][: lengths[0]] + padding, rows[1][:7]], [[*range(7)]] * 2)]
    for n in range(2):
        positions = [length + n for length in lengths]
        calls.append(([[row[at]] for row, at in zip(rows, positions)], [[at] for at in positions]))
    engine, trainer = Model(1e-5), Model(1e-5)
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "engine", steps="0-9"):
        for ids, places in calls:
            engine(torch.tensor(ids), torch.tensor(places))
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(torch.tensor([rows[0] + [0], rows[1]]), torch.arange(9).expand(2, 9))
    comparison = ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")
    assert any(text.startswith(f"{sum(lengths) + 4} tokens of 2 requests") for text in comparison.aligned)
    assert any("a rejected draft" in text for text in comparison.aligned) == rejected, comparison.aligned
    assert comparison.verdict in ("equal", "noise")
