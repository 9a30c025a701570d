"""A step that repeats another one has the same records, and each thing that it changes shows in them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from host_dumps import lines_of  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("modes_as_before")

_Program = Callable[[Any, "_Net", bool], Any]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.constant = torch.ones(2)
        self.others = [nn.Parameter(torch.ones(4, 4))]

    def forward(self, x: Any, program: _Program, changed: bool) -> Any:
        return program(x, self, changed)


def _exponent(x: Any, net: _Net, changed: bool) -> Any:
    return x.pow(3.0 if changed else 2.0)


def _kind_of_number(x: Any, net: _Net, changed: bool) -> Any:
    return torch.full((2,), 7.0 if changed else 7, dtype=torch.float32)


def _function(x: Any, net: _Net, changed: bool) -> Any:
    return x.sin() if changed else x.cos()


def _line(x: Any, net: _Net, changed: bool) -> Any:
    if changed:
        return x.exp()
    return x.exp()


def _module(x: Any, net: _Net, changed: bool) -> Any:
    return (net.b if changed else net.a)(x)


def _shape(x: Any, net: _Net, changed: bool) -> Any:
    return torch.ones(3 if changed else 2).neg()


def _stride(x: Any, net: _Net, changed: bool) -> Any:
    y = torch.ones(4, 4)
    return (y.t() if changed else y.view(4, 4)).neg()


def _dtype(x: Any, net: _Net, changed: bool) -> Any:
    return torch.ones(2, dtype=torch.float64 if changed else torch.float32).neg()


def _storage(x: Any, net: _Net, changed: bool) -> Any:
    a, b = torch.ones(2), torch.ones(2)
    return a.neg() + (a if changed else b)


def _requires_grad(x: Any, net: _Net, changed: bool) -> Any:
    return net.constant.requires_grad_(changed).neg()


def _grad_mode(x: Any, net: _Net, changed: bool) -> Any:
    net.zero_grad()
    with torch.set_grad_enabled(not changed):
        y = net.a(x)
    return (y + net.b(x)).sum().backward()


def _parameter(x: Any, net: _Net, changed: bool) -> Any:
    return (net.b if changed else net.a).weight.neg()


def _registration(x: Any, net: _Net, changed: bool) -> Any:
    if changed:
        net.a.register_parameter("weight", net.others[0])
    return torch.mul(net.a.weight, 2.0)


def _value(x: Any, net: _Net, changed: bool) -> Any:
    return torch.full((2,), 7.0 if changed else 8.0).neg()


_CHANGES: list[tuple[_Program, set[str]]] = [
    (_function, {"op_type", "op_name"}),
    (_line, {"source"}),
    (_module, {"module", "op_name"}),
    (_exponent, {"call"}),
    (_kind_of_number, {"call"}),
    (_shape, {"shape"}),
    (_stride, {"stride"}),
    (_dtype, {"dtype"}),
    (_storage, {"storage"}),
    (_requires_grad, {"requires_grad"}),
    (_grad_mode, {"module"}),
    (_parameter, {"parameter"}),
    (_registration, {"parameter"}),
    (_value, {"hash", "stats"}),
]


@pytest.mark.parametrize(("program", "fields"), _CHANGES, ids=[program.__name__ for program, _ in _CHANGES])
def test_a_change_shows_in_the_step_that_has_it(dumps: Path, program: _Program, fields: set[str]) -> None:
    torch.manual_seed(0)
    net = _Net()
    x = torch.rand(2, 4) + 0.5
    with ascend_dump.capture(net, path=dumps, data="stats", keep=4, strict=True):
        for step in range(4):
            net(x, program, step == 3)
    steps = [[_fixed(line) for line in lines_of(dumps, step)] for step in (1, 2, 3)]
    assert steps[0] == steps[1]
    assert fields <= {
        name
        for before, after in itertools.zip_longest(steps[1], steps[2], fillvalue={})
        for name in before.keys() | after.keys()
        if str(before.get(name)) != str(after.get(name))  # 7 equals 7.0
    }


def _fixed(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("time", "address", "version")}
