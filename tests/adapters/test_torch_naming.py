"""Operator names, phases, modules and source lines."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

# Private: the mode of the recorder is put on the stacks of other threads.
from ascend_dump_torch import _session, _stack  # noqa: E402  (needs torch)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.act = torch.nn.GELU()

    def forward(self, x: Any) -> Any:
        y = self.act(self.linear(x))  # the line of GELU
        return x + y.square()  # the line of square


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.shared = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.shared(layer(x))
        return (x * 2).exp()  # the line of exp


def line_of(function: Any, comment: str) -> str:
    lines, first = inspect.getsourcelines(function)
    offset = next(i for i, line in enumerate(lines) if comment in line)
    return f"{inspect.getsourcefile(function)}:{first + offset}"


def records(dump: Any, op: str, **where: Any) -> list[Any]:
    return list(dump.select(op, io="output", index=0, **where))


def train_twice(model: Any, optimizer: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(2):
        loss = model(x).sum()  # the line of sum
        loss.backward()
        optimizer.step()  # the line of the optimizer


@pytest.fixture
def trained(dumps: Path) -> Any:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        train_twice(model, optimizer)
    return cap.dump()


def test_forward(trained: Any) -> None:
    forward = trained.select(step=0, phase="forward")
    names = list(dict.fromkeys(record.op_name for record in forward))
    # What an operator saves of its own result passes by once more.
    assert [name for name in names if name != "detach_0"] == [
        *("layers.0.linear/t_0", "layers.0.linear/addmm_0", "layers.0.act/gelu_0", "layers.0/pow_0", "layers.0/add_0"),
        *("shared/t_0", "shared/addmm_0"),
        *("layers.1.linear/t_0", "layers.1.linear/addmm_0", "layers.1.act/gelu_0", "layers.1/pow_0", "layers.1/add_0"),
        *("shared/t_1", "shared/addmm_1"),
        *("mul_0", "exp_0"),
    ]
    assert {record.op_type for record in forward} >= {"aten::addmm", "aten::gelu", "aten::pow"}
    lines = {record.op_name: record.source for record in forward}
    assert lines["layers.0.act/gelu_0"] == line_of(Block.forward, "the line of GELU")
    assert lines["layers.1/pow_0"] == line_of(Block.forward, "the line of square")
    assert lines["exp_0"] == line_of(Net.forward, "the line of exp")
    assert {record.module for record in forward.select("exp_0")} == {""}
    assert {record.module for record in forward.select("layers.1/pow_0")} == {"layers.1"}


def test_backward_has_the_place_of_the_forward_operator(trained: Any) -> None:
    backward = trained.select(step=0, phase="backward")
    by_name = {record.op_name: record for record in backward}
    for number in (0, 1):
        gelu = by_name[f"layers.{number}.act/gelu_backward_0"]
        assert gelu.module == f"layers.{number}.act"
        assert gelu.source == line_of(Block.forward, "the line of GELU")
        assert {name for name in by_name if name.startswith(f"layers.{number}.linear/mm_")}
    assert {record.module for record in backward.select("shared/*")} == {"shared"}
    exp = [record for record in backward if record.source == line_of(Net.forward, "the line of exp")]
    assert {"aten::mul"} <= {record.op_type for record in exp}
    summed = [record for record in backward if record.source == line_of(train_twice, "the line of sum")]
    assert summed


def test_other(trained: Any) -> None:
    other = trained.select(step=0, phase="other")
    assert {record.op_type for record in other} >= {"aten::sum", "aten::add_"}
    line = line_of(train_twice, "the line of the optimizer")
    assert {record.source for record in other.select("add__*")} == {line}
    assert {record.module for record in other} == {""}


def test_names_are_the_same_in_each_step(trained: Any) -> None:
    names = [[record.label for record in trained.select(step=step, phase="forward")] for step in (0, 1)]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])
    for step in (0, 1):
        labels = [record.label for record in trained.select(step=step)]
        assert len(set(labels)) == len(labels)
    order = [record.attrs["seq"] for record in trained.select(step=0)]
    assert order == sorted(order)
    times = [record.timestamp for record in trained]
    assert times == sorted(times)


def test_accumulated_gradients_are_of_their_module(dumps: Path) -> None:
    model = Net()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    added = {record.module for record in cap.dump().select("*add_*", step=1, phase="backward", io="output")}
    assert {"layers.0.linear", "layers.1.linear", "shared"} <= added


def test_operators_behind_the_node_of_another(dumps: Path) -> None:
    """In-place writes to views rebuild the graph; custom functions have a node before their operators."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.mul(2)  # the line of Double's backward

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.second = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            y[:, :2].sigmoid_()
            return self.second(Double.apply(y))

    model = Mixed()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        model(torch.ones(2, 4)).sum().backward()
    backward = cap.dump().select(phase="backward", io="output")
    by_type = {record.op_type: record for record in backward}
    assert by_type["aten::sigmoid_backward"].module == ""
    mms = {record.module for record in backward.select("*mm*")}
    assert {"first", "second"} <= mms
    doubled = [record for record in backward if record.source and record.source.startswith(__file__)]
    assert doubled


def test_modules_outside_the_target(dumps: Path) -> None:
    model = Net()
    loss = torch.nn.CrossEntropyLoss()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        loss(model(torch.ones(2, 4)), torch.tensor([1, 2])).backward()
    assert records(cap.dump(), "CrossEntropyLoss/_log_softmax_0")
    assert records(cap.dump(), "CrossEntropyLoss/_log_softmax_backward_data_0")


def test_modules_made_on_the_way(dumps: Path) -> None:
    class Maker(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.Softmax(-1)(x)

    model = torch.nn.Sequential(Maker())
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        model(torch.ones(2, 4))
    assert [record.op_name for record in records(cap.dump(), "*")] == ["0.Softmax/_softmax_0"]


def test_a_function_as_step(dumps: Path) -> None:
    model, x = Net(), torch.ones(2, 4)

    @ascend_dump.capture(path=dumps, steps="0", strict=True)
    def step() -> None:
        model(x).sum().backward()

    step()
    names = {record.op_name for record in step.capture.dump()}
    assert {"layers.1.linear/addmm_0", "exp_0"} <= names
    model.zero_grad()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        model(x).sum().backward()
    assert names == {record.op_name for record in cap.dump()}


def test_models_without_a_target_are_told_apart(dumps: Path) -> None:
    """The first one is the model, as under the launcher; a loss in front of it takes no name from it."""
    first, second = Net(), Block()
    with ascend_dump.capture(path=dumps, strict=True) as cap:
        torch.nn.MSELoss()(torch.ones(2, 4), torch.zeros(2, 4))
        second(first(torch.ones(2, 4)))
    modules = {record.module for record in cap.dump()}
    assert {"", "MSELoss", "layers.1.linear", "Block.linear"} <= modules


def test_a_model_that_is_gone_leaves_no_name_behind(dumps: Path) -> None:
    """Another model may get its address."""
    with ascend_dump.capture(path=dumps, strict=True) as cap:
        for width in (1, 2, 3):
            cap.step()
            torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(width)))(torch.ones(2, 4))
    for step in (1, 2, 3):
        names = [record.op_name for record in cap.dump().select("*addmm*", step=step, io="output")]
        assert names == [f"{i}/addmm_0" for i in range(step)]


def test_second_derivatives(dumps: Path) -> None:
    model = Block()
    x = torch.ones(2, 4, requires_grad=True)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
    assert cap.dump().errors() == []
    assert len(records(cap.dump(), "act/gelu_backward*")) >= 1
    assert {record.phase for record in cap.dump()} == {"forward", "backward", "other"}


def test_operators_in_threads_of_pytorch_itself(dumps: Path) -> None:
    """These have no line of the user's: backward passes of devices run there, and those that are nested 60 deep."""

    block = torch.nn.Sequential(torch.nn.Linear(3, 3))

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.depth = depth
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            if not ctx.depth:
                threads.append(threading.get_ident())
                block[0](x)  # as a checkpoint computes a module again
                return gradient, None
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                Nested.apply(inner * 2, ctx.depth - 1).sum().backward()
            return inner.grad * gradient, None

    threads: list[int] = []
    x = torch.ones(3, requires_grad=True)
    with ascend_dump.capture(block, path=dumps, strict=True) as cap:
        block(x.detach())
        Nested.apply(x, 62).sum().backward()
    assert threads != [threading.get_ident()]
    assert [record.module for record in cap.dump().select(op_type="aten::addmm", io="output")] == ["0", "0"]
    assert x.grad is not None
    assert x.grad[0] == 2.0**62
    inner = cap.dump().select(op_type="aten::mul", phase="backward", io="output")
    assert len(inner) > 100
    sources = {bool(record.source) for record in cap.dump()}
    assert sources == {True, False}, "some ran where there is no line"


def test_two_backward_passes_at_once(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has a thread of its own. None is here: two threads get the mode as PyTorch gives it to them."""

    class Slow(dict[Any, int]):
        def get(self, key: Any, default: Any = None) -> Any:
            found = super().get(key, default)
            time.sleep(0.001)
            return found

    def run(mode: Any) -> None:
        _stack.insert(mode)
        for _ in range(20):
            torch.ones(3).mul_(2)
        _stack.remove(mode)

    with ascend_dump.capture(path=dumps, strict=True) as cap:
        (session,) = (one for one in _session._sessions if one.armed)
        monkeypatch.setattr(session.tracker, "_counts", Slow())
        threads = [threading.Thread(target=run, args=(session._mode,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = [record.op_name for record in cap.dump().select(op_type="aten::mul_", io="output")]
    assert sorted(names) == sorted(f"mul__{i}" for i in range(40))


def test_wrappers_do_not_show_in_names(dumps: Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Net()
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        model(torch.ones(2, 4)).sum().backward()
    assert records(cap.dump(), "layers.1.linear/addmm_0", phase="forward")
    assert records(cap.dump(), "layers.1.linear/addmm_1", phase="backward")
    assert not cap.dump().select("*_checkpoint*")


def test_code_without_a_file(dumps: Path) -> None:
    """What exec or a generator of code made has no source of its own: the caller's is given."""
    scope: dict[str, Any] = {"torch": torch}
    # The subject of this test: a function without a source file.
    exec("def f(x): return x.sin()", scope)
    with ascend_dump.capture(path=dumps, strict=True) as cap:
        scope["f"](torch.ones(2))
    assert records(cap.dump(), "sin_0")[0].source.startswith(__file__)


@pytest.mark.parametrize("name", ["<stdin>", "<python-input-3>", "<ipython-input-7-1f9ab3>"])
def test_what_is_typed_is_the_users_too(dumps: Path, name: str) -> None:
    typed: dict[str, Any] = {}
    # The subject of this test: a function that was typed, whose file is a prompt.
    exec(compile("\ndef run(x):\n    return x.exp()\n", name, "exec"), typed)
    with ascend_dump.capture(path=dumps, strict=True) as cap:
        typed["run"](torch.ones(2))
    assert records(cap.dump(), "exp_0")[0].source == f"{name}:3"
