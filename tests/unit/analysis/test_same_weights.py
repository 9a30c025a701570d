"""Products with the same weight in two programs, found by the rows of the weight or by its module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.analysis.alignment.built_otherwise.products import same_weights, wide_products
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


class Projections(nn.Module):  # type: ignore[misc]
    """Products with parts of one weight, each in a module of its own."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, len(part), bias=False) for part in parts)
        for own, part in zip(self.parts, parts):
            own.weight.data = part

    def forward(self, x: Any) -> list[Any]:
        return [part(x) for part in self.parts]


class Calling(nn.ModuleDict):  # type: ignore[misc]
    """Calls all of its modules with the same input."""

    def forward(self, x: Any) -> list[Any]:
        return [module(x) for module in self.values()]


def test_the_part_of_a_wide_weight_that_is_left_over(tmp_path: Path) -> None:
    """All rows of the last part are stale. There is another stale weight of this shape, in another module."""
    torch.manual_seed(0)
    weight = torch.randn(12, 8)
    parts = weight.split(4)
    networks = {
        "wide": Calling({"attention": Projections(weight)}),
        "narrow": Calling(
            {"other": Projections(parts[2] + 1.0), "attention": Projections(parts[0], parts[1], parts[2] * 1.1)}
        ),
    }
    sides = {}
    for name, network in networks.items():
        with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / name, steps="0"):
            network(torch.ones(2, 8))
        sides[name] = operators(ascend_dump.open(tmp_path / name))
    divided = wide_products(sides["wide"], sides["narrow"], may_reorder=False)
    wide = [
        part for op in sides["wide"] for part in ([narrow.of(op) for narrow in divided.get(op.position, ())] or [op])
    ]
    names = same_weights(wide, sides["narrow"])
    assert {a.partition("[")[2]: b for a, b in names.items()} == {
        f"{n}:{n + 4}]": f"attention.parts.{n // 4}/mm_0" for n in (0, 4, 8)
    }


@pytest.mark.parametrize(("count", "seed"), [(1, 1), (2, 1), (2, 0)])
def test_a_stale_weight_is_that_of_its_module(count: int, seed: int, tmp_path: Path) -> None:
    """A wrapper adds a level to the path of the module. Of two products in one module, the rows have to be equal."""
    actual = dumped(tmp_path / "a", 0, count, "model")
    reference = dumped(tmp_path / "b", seed, count, "module")
    names = [f"{side}.gate/mm_{n}" for n in range(count) for side in ("model", "module")]
    expected = {} if count == 2 and seed else dict(zip(names[::2], names[1::2]))
    assert same_weights(actual, reference) == expected
