"""A program whose operators a compiler took apart, held against the program as it is: rounding alone has no origin, and
a fault has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
from host_dumps import item, model_directory, noise, write_step

import ascend_dump
from ascend_dump import Comparison
from ascend_dump.writing import HostWriter

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

from compare_roundings import taken_apart  # noqa: E402  (needs torch)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


def compared(
    root: Path,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    *,
    after: Callable[[nn.Module], object] = lambda network: None,
    after_reference: Optional[Callable[[nn.Module], object]] = None,
    fault: Callable[[nn.Module], object] = lambda network: None,
) -> Comparison:
    """One step of a network, taken apart and with a fault, held against the network as it is.

    after: what the step does after the backward pass; after_reference: if the reference does something else.
    """
    for name in ("reference", "actual"):
        torch.manual_seed(0)
        network, x = build(), torch.randn(shape)
        program, last = network, after
        if name == "actual":
            with torch.no_grad():
                fault(network)
            program = taken_apart(network)
        elif after_reference is not None:
            last = after_reference
        with ascend_dump.capture(program, path=root / name, steps="0"):
            program(x).square().sum().backward()
            with torch.no_grad():
                last(network)
    return ascend_dump.compare(root / "actual", root / "reference")


def operators_of(found: Comparison) -> dict[str, str]:
    """The names of paired operators: of the reference by those of actual."""
    return {
        pair.actual.op_name: pair.reference.op_name
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None and pair.actual.io == "output"
    }


class Ratio(nn.Module):
    """A division outside of all modules, and functions that are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(6, 5), nn.GELU()

    def forward(self, x: Any) -> Any:
        y = self.act(self.linear(x))
        return y / (y.abs().sum(-1, keepdim=True) + 1)


def test_names_that_number_the_calls_of_an_operator_pair_nothing(tmp_path: Path) -> None:
    """`div_0` is the division of the forward pass in the one program; in the other that is one of the graph."""
    found = compared(tmp_path, Ratio, (4, 6), after=lambda network: network.linear.weight.grad / 3)
    assert operators_of(found)["GraphModule/div_0"] == "div_0"
    assert operators_of(found)["div_0"] != "div_0"
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise"}


def test_operators_that_run_alike_are_paired_though_nothing_that_they_read_is(tmp_path: Path) -> None:
    """The gradient of the norm's weight is wrong, which the reference has from an operator of its own."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Linear(8, 6))

    def fault(network: nn.Module) -> None:
        network[1].weight.register_hook(lambda gradient: gradient * 1.1)

    def moments(network: nn.Module) -> None:
        for one in network.parameters():
            torch.zeros_like(one).lerp_(one.grad, 0.1)

    found = compared(tmp_path, build, (4, 6), after=moments, fault=fault)
    assert found.verdict == "different"
    first = found.origins[0]
    assert first.evidence[0] == "aten::mul runs in actual only"
    arguments = first.pair.record.arguments
    assert arguments is not None
    assert arguments.values["other"] == 1.1
    assert "read as lerp__2.output.0" in first.evidence[1]


def test_operators_that_run_in_another_order_are_paired_by_their_values(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))

    def double(network: nn.Module, *order: int) -> None:
        for at in order:
            network[at].weight.grad * 2

    found = compared(
        tmp_path,
        build,
        (4, 6),
        after=lambda network: double(network, 0, 2),
        after_reference=lambda network: double(network, 2, 0),
    )
    assert not found.origins
    assert (operators_of(found)["mul_2"], operators_of(found)["mul_3"]) == ("mul_3", "mul_2")


def test_operators_of_one_shape_that_read_nothing_in_common_are_no_pair(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Ratio,
        (4, 6),
        after=lambda network: torch.tensor([1.0, 2, 3]).add_(1),
        after_reference=lambda network: torch.tensor([50.0, 70, 20]).add(1),
    )
    assert {pair.record.op_type for pair in found.unmatched} == {"aten::add_", "aten::add"}
    assert not found.origins


def gated() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.GLU(), nn.GELU(), nn.Linear(5, 2))


def test_the_whole_of_a_tensor_is_no_partner_of_its_parts(tmp_path: Path) -> None:
    """A gated unit reads a tensor that is read in halves once it is taken apart."""
    found = compared(tmp_path, gated, (4, 6))
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    assert operators_of(found)["GraphModule/mul_0"] == "1/glu_0"


def test_what_differs_in_a_tensor_differs_in_its_parts(tmp_path: Path) -> None:
    found = compared(tmp_path, gated, (4, 6), fault=lambda network: network[0].weight.mul_(1.01))
    assert [one.kind for one in found.origins] == ["parameter"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.act = nn.MultiheadAttention(8, 2, batch_first=True), nn.GELU()
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: Any) -> Any:
        return self.act(self.attention(x, x, x, need_weights=False)[0])


def test_parts_of_one_memory_are_several_inputs(tmp_path: Path) -> None:
    """A bias of the keys changes the sums of the weights of an attention, and not what it gives."""

    def fault(network: nn.Module) -> None:
        network.attention.in_proj_bias[8:16] += 1e-4

    found = compared(tmp_path, Attention, (2, 5, 8), fault=fault)
    assert [one.kind for one in found.origins] == ["parameter"]
    attention = "GraphModule/_scaled_dot_product_flash_attention_for_cpu_0"
    read = [pair.reference for pair in found.pairs if pair.record.op_name == attention and pair.record.io == "input"]
    assert [None if one is None else one.index for one in read] == [0, 1, 2]


def test_gradients_that_are_rounding_alone_are_paired_by_their_place(tmp_path: Path) -> None:
    """A norm takes away what the bias before it adds, so that the gradient of that is zero but for rounding."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv1d(3, 8, 3), nn.InstanceNorm1d(8), nn.GELU())

    found = compared(tmp_path, build, (4, 3, 20), after=lambda network: torch.zeros(8).lerp_(network[0].bias.grad, 0.1))
    assert not found.origins
    assert "lerp__0" in operators_of(found)


_BOTH = [f"one_{number}" for number in range(28)]


def write(root: Path, module: str, *op_types: str) -> Path:
    """One operator of each type, all of which give values of their own."""
    writer = HostWriter(model_directory(root), metadata={})
    items = [
        item(f"{name}_0", noise(at, 6), op_type=f"aten::{name}", module=module, seq=at)
        for at, name in enumerate(op_types)
    ]
    write_step(writer, 0, *items)
    writer.close()
    return root


@pytest.mark.parametrize(
    ("own", "others", "how"),
    [
        (["sigmoid"], ["glu", "glu_backward", "tanh_backward"], "value"),
        ([], ["glu", "glu_backward", "tanh_backward"], "order"),
        (["mul"], ["add"], "order"),
    ],
)
def test_a_program_taken_apart_may_run_one_operator_that_the_other_never_runs(
    tmp_path: Path, own: list[str], others: list[str], how: str
) -> None:
    actual = write(tmp_path / "actual", "GraphModule", *_BOTH, *own)
    found = ascend_dump.compare(actual, write(tmp_path / "reference", "layer", *_BOTH, *others))
    assert {pair.how for pair in found.pairs if pair.actual is not None and "one_" in pair.record.op_name} == {how}


class Whole(nn.Module):
    def forward(self, x: Any) -> Any:
        return functional.silu(x)


class Parts(nn.Module):
    """The same of simpler operators, in another shape, and wrong by little."""

    def forward(self, x: Any) -> Any:
        scaled, weights = x * 1.0005, x.sigmoid()
        return scaled.view(6, 3, 4) * weights.view(6, 3, 4)


class Gate(nn.Module):
    def __init__(self, name: str, act: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.add_module(name, act)

    def forward(self, x: Any, y: Any) -> Any:
        [act] = self.children()
        return act(x * self.weight - y)


def test_elements_of_another_shape_are_not_held_against_those_of_one_place(tmp_path: Path) -> None:
    """Some elements of what is read are rounding alone, and what is made of it differs and has another shape."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 12), torch.randn(6, 12)
    y[0, :3] = x[0, :3]
    for name, act in (("actual", Parts()), ("reference", Whole())):
        network = Gate(name, act)
        with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / name):
            network.weight += 1e-7 if name == "actual" else 0
            network(x, y)
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert [(one.kind, one.pair.reference.op_type) for one in found.origins if one.pair.reference is not None] == [
        ("compute", "aten::silu")
    ]
