"""`level="module"`: modules are recorded in the order in which they finish, and what dumps of them lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.analysis.overflow import find_overflows

torch = pytest.importorskip("torch")


class Faulty(torch.autograd.Function):
    """Returns its input; its backward pass multiplies the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.factor, None


class Plant(torch.nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return Faulty.apply(x, self.factor)


class ManyOutputs(torch.nn.Module):
    """Its second output is not used; the head inside it neither."""

    def __init__(self) -> None:
        super().__init__()
        self.main = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.main(x), self.head(x)


class First(torch.nn.Module):
    def forward(self, both: Any) -> Any:
        return both[0]


def network(factor: float = 1.0) -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), Plant(factor)), nn.Linear(4, 4))


def capture(model: Any, path: Path, steps: int = 1, **settings: Any) -> ascend_dump.Dump:
    with ascend_dump.capture(
        model, path=path, **{"level": "module", "data": "tensor", "quiet": True, **settings}
    ) as cap:
        for _ in range(steps):
            model(torch.linspace(-1, 1, 8).reshape(2, 4)).sum().backward()
    return cap.dump()


def backward_of(dump: ascend_dump.Dump, step: int = 0) -> list[str]:
    return list(dict.fromkeys(one.op_name[: -len("/backward_0")] for one in dump.select(phase="backward", step=step)))


@pytest.mark.parametrize("mode", ["all", "input"])
def test_modules_are_in_the_order_in_which_they_finish(mode: str, tmp_path: Path) -> None:
    dump = capture(network(), tmp_path, steps=2, mode=mode)
    for step in (0, 1):
        forward = list(dict.fromkeys(one.module for one in dump.select(phase="forward", step=step)))
        assert forward == ["0", "1.0", "1.1", "1", "2", ""]
        assert backward_of(dump, step) == ["2", "1.1", "1.0", "1", "0", ""]
        places = [(one.attrs["seq"], one.timestamp) for one in dump.select(step=step)]
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["Linear", "Identity", "Linear"], ["2", "1", "0", ""]),
        (["Linear", "ReLU(inplace=True)", "Linear"], ["2", "1", "0", ""]),
        (["Linear", "LSTM", "first", "Linear"], ["3", "2", "1", "0", ""]),
        # The head is in no backward pass, but the linear layer beside it is.
        (["Linear", "many", "first", "Linear"], ["3", "2", "1.main", "1", "0", ""]),
    ],
    ids=lambda value: "-".join(value),
)
def test_modules_that_share_tensors_or_leave_some_unused(
    modules: list[str], expected: list[str], tmp_path: Path
) -> None:
    nn = torch.nn
    made = {
        "Linear": lambda: nn.Linear(4, 4),
        "Identity": nn.Identity,
        "ReLU(inplace=True)": lambda: nn.ReLU(inplace=True),
        "LSTM": lambda: nn.LSTM(4, 4),
        "many": ManyOutputs,
        "first": First,
    }
    dump = capture(nn.Sequential(*(made[name]() for name in modules)), tmp_path)
    assert backward_of(dump) == expected


def test_a_second_backward_pass_has_records_of_its_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    names = list(dict.fromkeys(one.op_name for one in cap.dump().select(phase="backward")))
    assert names == [f"{module}backward_{number}" for number in (0, 1) for module in ("1/", "0/", "")]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_again_is_in_its_place(reentrant: bool, tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

    class Again(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return self.last(checkpoint(self.inner, self.first(x), use_reentrant=reentrant))

    dump = capture(Again(), tmp_path)
    modules = list(dict.fromkeys(one.module for one in dump.select(phase="backward", io="input")))
    assert modules == ["last", "inner", "first", ""]


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_the_module_that_made_nan_in_the_backward_pass_is_named_first(data: str, tmp_path: Path) -> None:
    dump = capture(network(float("nan")), tmp_path, data=data)
    found = ascend_dump.triage(dump)
    assert found.suspects[0].op_name == "1.1/backward_0"
    assert find_overflows(dump).overflows[0].record.op_name == "1.1/backward_0"
    assert found.next is not None
    assert (found.next.layers[0], found.next.level) == ("1.1", "all")
    assert "operators of module 1.1" in found.advice
    narrower = capture(network(float("nan")), tmp_path / "next", level="all", layers=found.next.layers)
    assert ascend_dump.triage(narrower).suspects[0].op_name == "1.1/mul_0"


def test_compare_names_the_module_and_requests_its_operators(tmp_path: Path) -> None:
    reference, actual = tmp_path / "reference", tmp_path / "actual"
    capture(network(1.0), reference)
    capture(network(1.5), actual)
    found = ascend_dump.compare(actual, reference)
    assert found.origins[0].op_name == "1.1/backward_0"
    request = found.origins[0].next
    assert request == {"layers": "1.1", "level": "all", "data": "tensor", "steps": "0", "ranks": "0"}
    narrower = capture(network(1.5), tmp_path / "next", level=request["level"], layers=request["layers"])
    assert {one.op_type for one in narrower} == {"aten::clone", "aten::mul"}
    against = ascend_dump.triage(actual, reference).next
    assert against is not None
    assert against.layers[0] == "1.1"


def test_operators_of_the_model_itself_are_requested_with_all_others(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x / torch.zeros(4) * 0

    model = Own()
    with ascend_dump.capture(model, path=tmp_path, level="module", data="stats", quiet=True) as cap:
        model(torch.ones(2, 4))
    found = ascend_dump.triage(cap.dump())
    assert found.next is not None
    assert found.next.layers == ()
    assert "operators of the model" in found.advice


def test_the_layers_of_a_module_are_requested_where_the_model_made_its_input(tmp_path: Path) -> None:
    """The call of the model itself has no path to select it by."""

    class Logarithm(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.log()

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Logarithm()

        def forward(self, x: Any) -> Any:
            return -self.inner(x)

    def record(path: Path, **settings: Any) -> Any:
        model = Own()
        with ascend_dump.capture(model, path=path, data="stats", quiet=True, **settings) as cap:
            model.inner(model(torch.full((2, 4), 3.0)))
        return cap.dump()

    found = ascend_dump.triage(record(tmp_path / "dump", level="module"))
    assert (found.suspects[0].op_name, found.suspects[0].producers) == ("inner/forward_1", ("forward_0",))
    assert found.next is not None
    assert found.next.layers == ("inner",)
    assert "operators of module inner, without" in found.advice
    narrower = record(tmp_path / "next", layers=found.next.layers)
    assert {one.op_name for one in narrower} == {"inner/log_0", "inner/log_1"}
