"""Programs of which one casts to a narrower type, as autocast does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional


class Layers(torch.nn.Module):
    """Layers of products and norms, and a constant in the type of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.products = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for product, norm in zip(self.products, self.norms):
            y = product(norm(x))
            x = x + torch.cat([y, torch.zeros(1, 16, dtype=y.dtype)])[:-1]
        return x


class Twice(torch.autograd.Function):
    """Doubles a gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


def dump(path: Path, *, cast: bool, wrong: bool = False, twice: bool = False, steps: int = 2, **settings: Any) -> Path:
    torch.manual_seed(0)
    network, x = Layers(), torch.randn(8, 16)
    if twice:
        network.products[2].register_forward_hook(lambda _module, _inputs, output: Twice.apply(output))
    if wrong:
        network.products[1].weight.data.mul_(1.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with ascend_dump.capture(network, path=path, steps="all", quiet=True, **settings):
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                loss = network(x).square().mean()
            loss.backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("settings", [{"data": "tensor"}, {"data": "stats"}, {"level": "module"}], ids=str)
def test_autocast_is_no_origin_and_hides_none(tmp_path: Path, settings: dict[str, str]) -> None:
    reference = dump(tmp_path / "reference", cast=True, **settings)
    right = ascend_dump.compare(dump(tmp_path / "right", cast=False, **settings), reference)
    assert (right.origins, right.verdict in ("noise", "undecided", "unmatched")) == ((), True)
    wrong = ascend_dump.compare(dump(tmp_path / "wrong", cast=False, wrong=True, **settings), reference)
    assert (wrong.origins[0].module, wrong.origins[0].step) == ("products.1", 0)


def test_a_doubled_gradient_behind_a_cast_is_an_origin_with_statistics(tmp_path: Path) -> None:
    """It is as far off as what follows from it, though other inputs allow for much rounding."""
    reference = dump(tmp_path / "reference", cast=True, data="stats")
    found = ascend_dump.compare(dump(tmp_path / "actual", cast=False, twice=True, data="stats"), reference)
    assert ("aten::mul", 0, "backward") in [
        (origin.op_type, origin.step, origin.pair.record.phase) for origin in found.origins
    ]


class Tied(torch.nn.Module):
    """The table of an embedding is the weight of the last product too."""

    stops = False

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 16)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        x = x.detach() if self.stops else x
        return functional.linear(self.inner(x), self.table.weight)


def tied(path: Path, *, stops: bool, cast: bool) -> Path:
    torch.manual_seed(0)
    network, ids = Tied(), torch.arange(8)
    network.stops = stops
    with ascend_dump.capture(network, path=path, data="stats", quiet=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = functional.cross_entropy(network(ids), ids)
        loss.backward()
        torch.optim.SGD(network.parameters(), lr=0.1).step()
    return path


def test_a_gradient_that_ends_is_an_origin_even_where_statistics_of_its_sum_agree(tmp_path: Path) -> None:
    reference = tied(tmp_path / "reference", stops=False, cast=True)
    assert ascend_dump.compare(tied(tmp_path / "right", stops=False, cast=False), reference).origins == ()
    found = ascend_dump.compare(tied(tmp_path / "wrong", stops=True, cast=False), reference)
    [origin] = found.origins
    assert (origin.kind, origin.pair.record.phase) == ("structure", "backward")
    assert "run in the reference only" in origin.evidence[0]


class Rounded(torch.nn.Module):
    """narrow: a result is rounded to bfloat16 and back"""

    narrow = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.first(x))
        return self.last(y.bfloat16().float() if self.narrow else y)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_rounding_of_one_side_is_the_origin_and_not_its_reader(tmp_path: Path, data: str) -> None:
    def of(path: Path, narrow: bool) -> Path:
        torch.manual_seed(0)
        network = Rounded()
        network.narrow = narrow
        with ascend_dump.capture(network, path=path, data=data, quiet=True):
            network(torch.randn(8, 16)).sum().backward()
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", True), of(tmp_path / "reference", False))
    assert (found.origins[0].kind, found.origins[0].op_type) == ("structure", "aten::_to_copy")


class Residual(torch.nn.Module):
    """moved: the columns of the first result are moved by one"""

    moved = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        y = self.first(torch.tanh(x))
        return self.last(x + (y.roll(1, -1) if self.moved else y))


def test_moved_elements_are_the_origin_where_statistics_show_only_the_sum(tmp_path: Path) -> None:
    """The inputs differ by rounding, so that statistics of moved elements are not the same."""

    def of(path: Path, *, moved: bool) -> Path:
        torch.manual_seed(0)
        network, x = Residual(), torch.randn(8, 16)
        network.moved = moved
        with ascend_dump.capture(network, path=path, data="stats", quiet=True):
            network(torch.nextafter(x, 2 * x) if moved else x)
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", moved=True), of(tmp_path / "reference", moved=False))
    assert [(origin.kind, origin.op_type) for origin in found.origins] == [("structure", "aten::roll")]


def test_another_layout_in_memory_is_no_sign_of_moved_elements(tmp_path: Path) -> None:
    """With statistics, other bytes in another layout may be the same elements; a sign behind it is the origin."""

    class Signed(torch.nn.Module):
        sign = 1

        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.convolution(x) + 1) * self.sign

    def of(path: Path, sign: int, layout: Any) -> Path:
        torch.manual_seed(0)
        network, x = Signed(), torch.randn(2, 3, 8, 8)
        network.sign = sign
        network = network.to(memory_format=layout)
        with ascend_dump.capture(network, path=path, data="stats", quiet=True):
            network(x.to(memory_format=layout))
        return path

    sides = of(tmp_path / "actual", -1, torch.channels_last), of(tmp_path / "reference", 1, torch.contiguous_format)
    assert [origin.op_type for origin in ascend_dump.compare(*sides).origins] == ["aten::mul"]


@pytest.mark.parametrize("count", [0, 16])
def test_a_constant_of_a_list_in_the_type_of_a_product_is_no_origin(tmp_path: Path, count: int) -> None:
    """No recorded operator makes it; caches begin as an empty one. Another product is an origin."""

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.products = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Any) -> Any:
            for product in self.products:
                y = product(x.square().mean(-1, keepdim=True).rsqrt() * x.sin().cos().tanh())
                cache = torch.tensor([2.0] * count, dtype=y.dtype)
                x = x + torch.cat([cache, y.reshape(-1)])[count:].reshape(x.shape)
            return x

    def of(path: Path, *, cast: bool, factor: float = 1.0) -> Path:
        torch.manual_seed(0)
        network, x = Cached(), torch.randn(8, 16)
        network.products[1].weight.data.mul_(factor)
        with ascend_dump.capture(network, path=path, quiet=True), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            network(x)
        return path

    reference = of(tmp_path / "reference", cast=True)
    assert ascend_dump.compare(of(tmp_path / "right", cast=False), reference).origins == ()
    wrong = ascend_dump.compare(of(tmp_path / "wrong", cast=False, factor=1.5), reference)
    assert [origin.module for origin in wrong.origins] == ["products.1"]
