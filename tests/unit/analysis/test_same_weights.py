"""Products with the same weight in two programs, found by the rows of the weight or by its module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.analysis.alignment.built_otherwise.products import same_weights
from ascend_dump.analysis.operators.operator import Operator, operators

torch: Any = pytest.importorskip("torch")
nn = torch.nn


class Gate(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """A product, or two products in one module."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(3, 8) for _ in range(count))

    def forward(self, x: Any) -> list[Any]:
        return [x @ weight.T for weight in self.weights]


def dumped(path: Path, seed: int, count: int, name: str) -> list[Operator]:
    torch.manual_seed(seed)
    network = nn.Sequential()
    network.add_module(name, nn.Sequential())
    network.get_submodule(name).add_module("gate", Gate(count))
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0"):
        network(torch.ones(4, 8))
    return operators(ascend_dump.open(path))


@pytest.mark.parametrize(("count", "seed"), [(1, 1), (2, 1), (2, 0)])
def test_a_stale_weight_is_that_of_its_module(count: int, seed: int, tmp_path: Path) -> None:
    """A wrapper adds a level to the path of the module. Of two products in one module, the rows have to be equal."""
    actual = dumped(tmp_path / "a", 0, count, "model")
    reference = dumped(tmp_path / "b", seed, count, "module")
    names = [f"{side}.gate/mm_{n}" for n in range(count) for side in ("model", "module")]
    expected = {} if count == 2 and seed else dict(zip(names[::2], names[1::2]))
    assert same_weights(actual, reference) == expected
