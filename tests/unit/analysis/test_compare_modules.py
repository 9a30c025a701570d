"""Comparing dumps of `level="module"`, which have neither parameters nor what is computed between modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump.analysis.compare import Origin

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

from compare_training import Change, dump_training  # noqa: E402  (needs torch)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.between = functional.gelu
        self.after = torch.relu

    def forward(self, x: Any) -> Any:
        return self.after(x + self.down(self.between(self.up(x))))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block(), Block()])
        self.head = torch.nn.Linear(8, 4)
        self.beside = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = x
        for block in self.blocks:
            y = block(y * 2)
        return self.head(y) + self.beside(x)


def dump(path: Path, change: Optional[Change] = None, *, shift: int = 0, **settings: Any) -> Path:
    settings = {"level": "module", "quiet": True, **settings}
    return dump_training(path, Network, lambda: (torch.randn(8, 8), (torch.arange(8) + shift) % 4), change, **settings)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("compare_modules") / "reference")


def places(origins: tuple[Origin, ...]) -> list[tuple[str, str, Optional[int]]]:
    return [(one.kind, one.op_name, one.step) for one in origins]


def up_weight(network: Any) -> None:
    network.blocks[1].up.weight.mul_(1.1)


def tells_that_parameters_are_missing(origin: Origin) -> bool:
    return any("records neither parameters nor the functions between modules" in one for one in origin.evidence)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_wrong_parameter_is_one_origin_of_unknown_cause(reference: Path, tmp_path: Path, data: str) -> None:
    """Explain everything that follows: functions behind the origin, modules around it, gradients, and later steps."""
    if data == "stats":
        reference = dump(tmp_path / "reference", data=data)
    found = ascend_dump.compare(dump(tmp_path / "actual", up_weight, data=data), reference)
    assert found.verdict == "different"
    assert places(found.origins) == [("unknown", "blocks.1.up/forward_0", 0)]
    [origin] = found.origins
    assert tells_that_parameters_are_missing(origin)
    assert origin.first_seen
    assert origin.next == {"layers": "blocks.1.up", "level": "all", "data": "tensor", "steps": "0", "ranks": "0"}


def test_what_the_next_capture_records_names_the_parameter(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", up_weight), dump(tmp_path / "reference"))
    settings = {**found.origins[0].next, "quiet": True}
    for name, change in (("actual", up_weight), ("reference", None)):
        torch.manual_seed(0)
        network = Network()
        with torch.no_grad():
            if change is not None:
                change(network)
            with ascend_dump.capture(network, path=tmp_path / "next" / name, **settings):
                network(torch.randn(8, 8))
    narrow = ascend_dump.compare(tmp_path / "next/actual", tmp_path / "next/reference")
    assert [(one.kind, one.module) for one in narrow.origins] == [("parameter", "blocks.1.up")]


def test_a_function_between_modules_is_first_seen_at_the_module_that_is_given_its_result(
    reference: Path, tmp_path: Path
) -> None:
    def relu(network: Any) -> None:
        network.blocks[1].between = functional.relu

    found = ascend_dump.compare(dump(tmp_path / "actual", relu), reference)
    assert places(found.origins) == [("unknown", "blocks.1.down/forward_0", 0)]
    assert found.origins[0].pair.record.io == "input"
    assert tells_that_parameters_are_missing(found.origins[0])


def test_a_function_after_all_modules_inside_is_of_the_module_around_them(reference: Path, tmp_path: Path) -> None:
    def other(network: Any) -> None:
        network.blocks[2].after = functional.silu

    found = ascend_dump.compare(dump(tmp_path / "actual", other), reference)
    assert places(found.origins) == [("unknown", "blocks.2/forward_0", 0)]


def test_modules_with_equal_inputs_are_origins_of_their_own(reference: Path, tmp_path: Path) -> None:
    def two(network: Any) -> None:
        up_weight(network)
        network.beside.bias.add_(1)

    found = ascend_dump.compare(dump(tmp_path / "actual", two), reference)
    assert places(found.origins) == [("unknown", "blocks.1.up/forward_0", 0), ("unknown", "beside/forward_0", 0)]


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        return gradient * 1.5


def test_a_wrong_backward_pass_is_one_origin(reference: Path, tmp_path: Path) -> None:
    """The modules around it, the gradients behind it, and what the optimizer makes of these are explained."""

    def inner(network: Any) -> None:
        network.blocks[1].up.register_forward_pre_hook(lambda _module, args: (Wrong.apply(args[0]),))
        network.blocks[1].between = lambda x: functional.gelu(x)

    def on_weights(network: Any) -> None:
        network.blocks[1].between = lambda x: Wrong.apply(functional.gelu(x))

    found = ascend_dump.compare(dump(tmp_path / "weights", on_weights), reference)
    assert places(found.origins) == [("unknown", "blocks.1.up/backward_0", 0)]
    found = ascend_dump.compare(dump(tmp_path / "inner", inner), reference)
    assert [(kind, step) for kind, _, step in places(found.origins)] == [("unknown", 0)]
    assert "blocks.1" in found.origins[0].op_name


def test_other_labels_are_an_origin_at_the_output_of_the_model(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", shift=1), reference)
    [origin] = found.origins
    assert (origin.kind, origin.pair.record.io, origin.step) == ("unknown", "input", 0)
    assert origin.op_name == "backward_0"
    assert any("gradient of an output of the model" in line for line in origin.evidence)


def test_a_module_of_one_side_explains_the_module_around_it_and_what_is_given_its_result(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return functional.gelu(x) * 1.25

    def more(network: Any) -> None:
        network.blocks[1].between = Scaled()

    found = ascend_dump.compare(dump(tmp_path / "actual", more, steps=1), dump(tmp_path / "reference", steps=1))
    assert places(found.origins) == [("structure", "blocks.1.between/forward_0", 0)]
    assert found.origins[0].module == "blocks.1"  # its forward function makes the call


class Experts(torch.nn.Module):
    """Applies its activation to the rows that are chosen, or to all rows and drops the others."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.takes_all = torch.nn.SiLU(), False

    def forward(self, x: Any) -> Any:
        y = x.clone()
        y[::2] = self.act(x)[::2] if self.takes_all else self.act(x[::2])
        return y


def with_experts(network: Any) -> None:
    network.blocks[0].between = Experts()


def test_calls_of_another_shape_end_inside_a_module_whose_output_agrees(tmp_path: Path) -> None:
    def all_rows(network: Any) -> None:
        with_experts(network)
        network.blocks[0].between.takes_all = True

    def faulty(network: Any) -> None:
        all_rows(network)
        up_weight(network)

    reference = dump(tmp_path / "reference", with_experts)
    assert not ascend_dump.compare(dump(tmp_path / "right", all_rows), reference).origins
    found = ascend_dump.compare(dump(tmp_path / "faulty", faulty), reference)
    assert places(found.origins) == [("unknown", "blocks.1.up/forward_0", 0)]


def test_what_a_module_drops_is_no_origin(tmp_path: Path) -> None:
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            return functional.gelu(x) + 0 * self.inner(x)

    def dropping(network: Any) -> None:
        network.blocks[1].between = Dropping()

    def changed(network: Any) -> None:
        dropping(network)
        network.blocks[1].between.inner.weight.mul_(1.1)

    sides = dump(tmp_path / "actual", changed, steps=1), dump(tmp_path / "reference", dropping, steps=1)
    found = ascend_dump.compare(*sides)
    assert (found.verdict, found.origins) == ("different", ())


def test_a_change_that_agrees_in_one_layer_does_not_explain_a_difference_in_another(tmp_path: Path) -> None:
    def with_layers(network: Any) -> None:
        for block in network.blocks[:2]:
            block.between = Packed()

    def packed(network: Any) -> None:
        with_layers(network)
        for block in network.blocks[:2]:
            block.between.packed = True
        network.blocks[1].after = functional.silu

    found = ascend_dump.compare(dump(tmp_path / "actual", packed), dump(tmp_path / "reference", with_layers))
    assert places(found.origins) == [("unknown", "blocks.1/forward_0", 0)]


class Packed(torch.nn.Module):
    """The product of two layers, by calling both, or in one product of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.packed = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), False

    def forward(self, x: Any) -> Any:
        if not self.packed:
            return self.one(x) + self.two(x)
        weight = torch.cat([self.one.weight, self.two.weight])
        bias = torch.cat([self.one.bias, self.two.bias])
        return sum(functional.linear(x, weight, bias).chunk(2, -1))


def test_calls_of_one_side_are_no_origin_of_what_an_earlier_call_explains(tmp_path: Path) -> None:
    def with_layers(network: Any) -> None:
        network.blocks[1].between = Packed()

    def packed(network: Any) -> None:
        with_layers(network)
        network.blocks[1].between.packed = True
        network.blocks[2].up.weight.mul_(1.1)

    found = ascend_dump.compare(dump(tmp_path / "actual", packed), dump(tmp_path / "reference", with_layers))
    assert places(found.origins) == [("unknown", "blocks.2.up/forward_0", 0)]


def test_equal_runs_have_no_origin(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual"), reference)
    assert (found.verdict, found.origins) == ("equal", ())
