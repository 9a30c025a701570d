"""Programs whose integers and flags have other types on both sides, with equal values: no origin by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")


class Embedding(torch.nn.Module):
    """Adds an embedding of positions, which count tokens without padding, and adds up the tokens of a batch.

    flags     the mask has flags; else integers of 32 bits, which are cast
    first     the number of the first position
    by_index  the mask is used as an index, which selects rows by numbers and elements by flags
    """

    def __init__(self, *, flags: bool, first: int = 1, by_index: bool = False) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Embedding(12, 8)
        self.flags, self.first, self.by_index = flags, first, by_index

    def forward(self, x: Any) -> Any:
        if self.by_index:
            kept = x[0] != 1
            return self.words(x[0]).exp()[kept if self.flags else kept.long()].sum(0)
        kept = x != 1
        if self.flags:
            places = torch.cumsum(kept, 1) * kept + self.first
        else:
            mask = kept.int()
            places = (torch.cumsum(mask, 1).type_as(mask) * mask).long() + self.first
        return (self.words(x) + self.places(places)).tanh().sum(1)


def dump(path: Path, data: str = "tensor", **changed: Any) -> Path:
    torch.manual_seed(0)
    network = Embedding(**changed)
    x = torch.tensor([[5, 7, 3, 9, 1], [4, 1, 1, 1, 1], [6, 2, 8, 1, 1]])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with ascend_dump.capture(network, path=path, data=data, steps="all", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
    return path


def test_equal_numbers_in_another_type_of_integers_are_no_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "a", flags=True), dump(tmp_path / "b", flags=False))
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    reasons = {pair.reason for pair in found.pairs if pair.verdict == "noise"}
    assert "the same numbers in another type of integers" in reasons


def test_other_numbers_in_another_type_of_integers_are_found(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "a", flags=True, first=0), dump(tmp_path / "b", flags=False))
    assert found.verdict == "different"
    assert found.origins[0].pair.record.op_name == "add_0"


def test_the_type_of_an_index_is_evidence_where_it_changes_the_result(tmp_path: Path) -> None:
    """Equal numbers select other elements: the result has another shape, and then another sum."""
    settings: dict[str, Any] = {"by_index": True}
    found = ascend_dump.compare(
        dump(tmp_path / "a", flags=False, **settings), dump(tmp_path / "b", flags=True, **settings)
    )
    assert found.verdict in ("different", "structure")
    origin = found.origins[0]
    assert (origin.kind, origin.pair.record.op_type) == ("structure", "aten::index")
    assert any("int64 instead of bool, of the same values" in line for line in origin.evidence)
