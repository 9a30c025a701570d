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
        self.share = 1.0

    def forward(self, x: Any) -> Any:
        return self.after(x + self.share * self.down(self.between(self.up(x))))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block(), Block()])
        self.head = torch.nn.Linear(8, 4)
        self.beside = torch.nn.Linear(8, 4)
        self.factor = 2

    def forward(self, x: Any) -> Any:
        y = x
        for block in self.blocks:
            y = block(y * self.factor)
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
    [origin] = found.origins
    assert origin.pair.record.io == "input"
    assert tells_that_parameters_are_missing(origin)
    assert any("computed inside of blocks.1, whose inputs agree" in line for line in origin.evidence)
    assert (origin.module, origin.next["layers"]) == ("blocks.1", "blocks.1")


def test_an_input_of_a_module_is_traced_to_the_outermost_call_that_is_given_it(reference: Path, tmp_path: Path) -> None:
    def other(network: Any) -> None:
        network.factor = 3

    found = ascend_dump.compare(dump(tmp_path / "actual", other), reference)
    assert places(found.origins) == [("unknown", "blocks.0/forward_0", 0)]
    assert (found.origins[0].module, "layers" in found.origins[0].next) == ("", False)


def test_other_data_are_traced_to_the_call_of_the_model(reference: Path, tmp_path: Path) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def forward(self, x: Any) -> Any:
            return self.network(x)

    def of(path: Path, shift: float) -> Path:
        batch = lambda: (torch.randn(8, 8) + shift, torch.arange(8) % 4)  # noqa: E731
        return dump_training(path, Outer, batch, level="module", quiet=True)

    found = ascend_dump.compare(of(tmp_path / "actual", 1.0), of(tmp_path / "reference", 0.0))
    assert found.origins[0].kind == "input"


def test_an_update_that_is_not_recorded_is_the_probable_cause_in_the_next_step(tmp_path: Path) -> None:
    """The program updates its parameters by hand, so no optimizer is recorded."""

    def of(path: Path, factor: float) -> Path:
        torch.manual_seed(0)
        network, x, y = Network(), torch.randn(8, 8), torch.arange(8) % 4
        with ascend_dump.capture(network, path=path, steps="0|1", level="module", quiet=True):
            for _ in range(2):
                gradients = torch.autograd.grad(functional.cross_entropy(network(x), y), list(network.parameters()))
                with torch.no_grad():
                    for (name, parameter), gradient in zip(network.named_parameters(), gradients):
                        parameter -= (factor if name == "blocks.1.up.weight" else 0.1) * gradient
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", 0.2), of(tmp_path / "reference", 0.1))
    [origin] = found.origins
    assert (origin.op_name, origin.step, origin.next["steps"]) == ("blocks.1.up/forward_0", 1, "0|1")
    assert any("it agrees in step 0: the update after it" in line for line in origin.evidence)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_parameters_that_an_unrecorded_update_changed_are_one_origin_over_all_steps(tmp_path: Path, data: str) -> None:
    def of(path: Path, rate: float) -> Path:
        torch.manual_seed(0)
        network, x = Network(), torch.randn(8, 8)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate)
        with ascend_dump.capture(network, path=path, steps="all", layers="blocks.0.up", data=data, quiet=True):
            for _ in range(3):
                optimizer.zero_grad()
                network(x).square().mean().backward()
                optimizer.step()
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", 0.2), of(tmp_path / "reference", 0.1))
    [origin] = found.origins
    assert (origin.kind, origin.step, origin.next["steps"], "layers" in origin.next) == ("parameter", 1, "0|1", False)
    assert any("it agrees in step 0: the update after it" in line for line in origin.evidence)
    assert not any("another seed" in line for line in origin.evidence)


def test_gradients_inside_of_a_module_whose_output_agrees_have_an_origin(tmp_path: Path) -> None:
    """The module adds so little to its input that its output and its gradient agree."""

    def little(network: Any) -> None:
        network.blocks[1].share = 1e-9

    def wrong(network: Any) -> None:
        little(network)
        network.blocks[1].between = torch.tanh

    sides = dump(tmp_path / "actual", wrong, steps=1), dump(tmp_path / "reference", little, steps=1)
    found = ascend_dump.compare(*sides)
    assert (found.verdict, [origin.module for origin in found.origins]) == ("different", ["blocks.1"])


def test_a_gradient_that_ends_in_a_recording_of_one_step_is_one_origin(reference: Path, tmp_path: Path) -> None:
    def ending(network: Any) -> None:
        network.blocks[1].after = lambda x: torch.relu(x).detach()

    found = ascend_dump.compare(dump(tmp_path / "actual", ending, steps=1), dump(tmp_path / "reference", steps=1))
    [origin] = found.origins
    assert (origin.kind, origin.op_name) == ("structure", "blocks.1.down/backward_0")


class Gated(torch.nn.Module):
    """A branch whose factor is 0 at first, and learned. Its gradient is computed from the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.factor = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.Linear(1, 1)
        self.between = functional.gelu
        torch.nn.init.zeros_(self.factor.weight)
        torch.nn.init.zeros_(self.factor.bias)

    def forward(self, x: Any) -> Any:
        return x + self.factor(self.down(self.between(self.up(x)))[..., None])[..., 0]


def test_a_branch_that_is_switched_off_at_first_is_the_origin_of_later_steps(tmp_path: Path) -> None:
    """The layer around it agrees in the first step, in values and gradients."""

    def gated(network: Any) -> None:
        network.blocks[1].between = Gated()

    def wrong(network: Any) -> None:
        gated(network)
        network.blocks[1].between.between = lambda x: -functional.gelu(x)

    found = ascend_dump.compare(dump(tmp_path / "actual", wrong), dump(tmp_path / "reference", gated))
    assert [(origin.step, origin.module) for origin in found.origins] == [(0, "blocks.1.between")]


class Little(torch.nn.Module):
    """Adds so little that values and gradients around the inner layer agree, though that layer learns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.ends = torch.nn.Linear(16, 16), False
        self.inner.weight.register_hook(lambda gradient: gradient * 1e9)

    def forward(self, x: Any) -> Any:
        y = 1e-9 * self.inner(x)
        return functional.gelu(x) + (y.detach() if self.ends else y)


def test_a_gradient_that_ends_inside_of_a_module_explains_its_parameters_later(tmp_path: Path) -> None:
    def little(network: Any) -> None:
        network.blocks[1].between = Little()

    def ending(network: Any) -> None:
        little(network)
        network.blocks[1].between.ends = True

    found = ascend_dump.compare(dump(tmp_path / "actual", ending), dump(tmp_path / "reference", little))
    assert places(found.origins) == [("structure", "blocks.1.between.inner/backward_0", 0)]
    [later] = [pair for pair in found.pairs if pair.verdict == "different"]
    assert (later.record.step, later.record.op_name, later.explained) == (1, "blocks.1.between.inner/forward_0", True)


class Normed(torch.nn.Module):
    """The gradient of the bias before the norm is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)
        self.shift = 0.0

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.norm(self.first(x + self.shift - self.shift))))


def test_full_steps_of_gradients_that_are_rounding_alone_are_undecided(tmp_path: Path) -> None:
    def of(path: Path, shift: float) -> Path:
        torch.manual_seed(0)
        network, x, y = Normed(), torch.randn(8, 8), torch.arange(8) % 4
        network.shift = shift
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        with ascend_dump.capture(network, path=path, steps="all", level="module", quiet=True):
            for _ in range(3):
                optimizer.zero_grad()
                functional.cross_entropy(network(x), y).backward()
                optimizer.step()
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", 0.5), of(tmp_path / "reference", 0.0))
    assert (found.verdict, found.origins) == ("undecided", ())


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


def test_a_difference_that_ends_in_a_later_step_only_keeps_its_origin(tmp_path: Path) -> None:
    class Fading(Block):
        def forward(self, x: Any) -> Any:
            result = super().forward(x)
            self.share = 1e-9
            return result

    def of(path: Path, factor: float) -> Path:
        torch.manual_seed(0)
        network, x = Network(), torch.randn(8, 8)
        network.blocks[1] = Fading()
        with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0|1", level="module", quiet=True):
            network.blocks[1].up.weight.mul_(factor)
            for _ in range(2):
                network(x)
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", 1.1), of(tmp_path / "reference", 1.0))
    assert places(found.origins) == [("unknown", "blocks.1.up/forward_0", 0)]


class Weighted(torch.nn.Module):
    """A layer between, of which one program detaches the weights and calls no module for them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.detaches = torch.nn.Linear(16, 16), False

    def forward(self, x: Any) -> Any:
        if self.detaches:
            return x * torch.sigmoid(functional.linear(x.detach(), self.gate.weight, self.gate.bias))
        return x * torch.sigmoid(self.gate(x))


def test_a_backward_call_of_one_side_stays_the_origin_though_later_forward_passes_agree(tmp_path: Path) -> None:
    def of(path: Path, *, detaches: bool) -> Path:
        torch.manual_seed(0)
        network, x, y = Network(), torch.randn(8, 8), torch.arange(8) % 4
        network.blocks[1].between = Weighted()
        network.blocks[1].between.detaches = detaches
        with ascend_dump.capture(network, path=path, steps="0|1", level="module", quiet=True):
            functional.cross_entropy(network(x), y).backward()
            network(x)
        return path

    found = ascend_dump.compare(of(tmp_path / "actual", detaches=True), of(tmp_path / "reference", detaches=False))
    assert [(one.kind, one.module, one.step) for one in found.origins] == [("structure", "blocks.1.between", 0)]


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
