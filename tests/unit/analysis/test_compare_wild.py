"""An optimizer makes full steps of gradients that are rounding alone: those elements tell nothing, the others do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")


class Half(torch.nn.Module):
    """Half of a linear layer is normalised, so that the gradient of that half of its bias is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(4), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return self.last(torch.cat([self.norm(y[:, :4]), y[:, 4:]], 1).tanh())


def train(path: Path, *, last_places: int = 0, fault: Optional[Callable[[Any], None]] = None) -> Path:
    """One step. last_places: so many parameters are off by one in their last place."""
    torch.manual_seed(0)
    model, x = Half(), torch.randn(16, 6)
    with torch.no_grad():
        for parameter in list(model.parameters())[:last_places]:
            parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, 9)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    with ascend_dump.capture(model, path=path, steps="0"):
        model(x).square().mean().backward()
        if fault is not None:
            fault(model.first.bias.grad)
        optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("wild") / "reference")


def test_elements_that_are_rounding_alone_are_no_origin(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", last_places=2), reference)
    assert found.verdict == "noise", found.worst_pairs()
    assert not found.origins
    wild = [pair for pair in found.pairs if "are rounding alone in its inputs already" in pair.reason]
    assert wild
    assert {pair.reason.partition(" ")[0] for pair in wild} == {"4"}, "those of the half that is normalised"
    assert all(pair.record.shape == (8,) for pair in wild)


def test_a_fault_in_the_other_elements_is_seen(reference: Path, tmp_path: Path) -> None:
    def wrong(gradient: Any) -> None:
        with torch.no_grad():
            gradient[6] *= 1.05

    found = ascend_dump.compare(train(tmp_path / "actual", last_places=2, fault=wrong), reference)
    assert found.verdict == "different"
    assert found.origins
