"""`level="module"`: calls that began before the step, run in threads, ended with an exception, or are run again."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump

torch = pytest.importorskip("torch")


class Interrupt(BaseException):
    """PyTorch calls no hooks of a module that ended with it."""


class Branches(torch.nn.Module):
    """Its head is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.last = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        self.head(hidden)
        return self.last(hidden)


class Wrapper(torch.nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


class Checkpointed(torch.nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = torch.nn.Linear(4, 4)
        # An identity gives the tensor that it is given, here one from outside of what is run again.
        before = torch.nn.Tanh() if reentrant else torch.nn.Identity()
        self.block = torch.nn.Sequential(before, torch.nn.Linear(4, 4), torch.nn.Identity(), torch.nn.ReLU())

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for _ in range(2):
            x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


def record(target: Any, path: Path, run: Callable[[], Any], steps: int = 1, mode: Any = "all") -> ascend_dump.Dump:
    with ascend_dump.capture(target, path=path, level="module", mode=mode, quiet=True, options={"debug": True}) as cap:
        for _ in range(steps):
            run().sum().backward()
    return cap.dump()


def backward_of(dump: ascend_dump.Dump, step: int = 0) -> list[str]:
    found = [one.op_name for one in dump.select(step=step) if "backward_" in one.op_name]
    return list(dict.fromkeys(found))


def in_threads(*functions: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_target_inside_a_wrapper_and_the_wrapper_are_recorded_in_each_step(tmp_path: Path) -> None:
    """From the second step on the calls of both began before the step."""

    class Target(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.used = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            self.unused(x)
            return self.used(x)

    target = Target()
    outer = Wrapper(target)
    dump = record(target, tmp_path, lambda: outer(torch.ones(2, 4)), steps=3)
    for step in (1, 2):
        types = [one.op_type for one in dump.select(step=step, phase="backward", io="input")]
        assert types == ["Linear", "Target", "Wrapper"]


def test_modules_that_run_in_threads_at_the_same_time_are_recorded(tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=30)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            barrier.wait()
            x = self.inner(x)
            barrier.wait()
            return x.relu()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x: Any) -> Any:
            outputs: dict[int, Any] = {}
            in_threads(*(lambda at=at: outputs.update({at: self.blocks[at](x)}) for at in (0, 1)))
            return outputs[0] + outputs[1]

    model = Net()
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)))
    expected = {"Linear": 2, "Block": 2, "Net": 1}
    for name, io in (("forward", "output"), ("backward", "input")):
        assert Counter(one.op_type for one in dump.select(io=io) if name in one.op_name) == expected
    # The model comes after what it runs in threads.
    assert [one.op_type for one in dump.select(phase="backward", io="input")][-1] == "Net"


def test_gradients_of_tensors_of_two_threads_are_told_apart(tmp_path: Path) -> None:
    """Each thread counts the nodes of autograd's graph on its own."""

    class Second(torch.nn.Linear):
        pass

    class Third(torch.nn.Linear):
        pass

    first, second, third = torch.nn.Linear(4, 4), Second(4, 4), Third(4, 4)
    made: dict[str, Any] = {}
    x = torch.ones(2, 4)
    with ascend_dump.capture(path=tmp_path, level="module", quiet=True, options={"debug": True}) as cap:
        cap.step()
        in_threads(lambda: made.update(first=first(x)))
        in_threads(lambda: made.update(second=second(x), third=third(made["first"])))
        (made["third"].sum() + 3 * made["second"].sum()).backward()
    found = {(one.op_type, one.io): one.numpy() for one in cap.dump() if "backward_" in one.op_name}
    passed_on = (torch.ones(2, 4) @ third.weight).detach().numpy()
    expected = {
        ("Second", "input"): np.full((2, 4), 3.0),
        ("Third", "input"): np.ones((2, 4)),
        ("Third", "output"): passed_on,
        ("Linear", "input"): passed_on,
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6)


def test_calls_that_were_interrupted_are_dropped_and_those_around_them_are_not(tmp_path: Path) -> None:
    class Interrupted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            self.inner(x)
            raise Interrupt

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.interrupted = torch.nn.Linear(4, 4), Interrupted()

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            with pytest.raises(Interrupt):
                self.interrupted(x)
            return x

    model = Wrapper(Net())
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)), steps=2)
    for step in (0, 1):
        types = [one.op_type for one in dump.select(step=step, phase="backward", io="input")]
        assert types == ["Linear", "Net", "Wrapper"]
        assert [one.io for one in dump.select(op="module/forward_0", step=step)] == ["input", "output"]


def test_a_module_that_raised_is_in_no_backward_pass(tmp_path: Path) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("mine")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.broken, self.last = torch.nn.Linear(4, 4), Broken(), torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            with pytest.raises(ValueError, match="mine"):
                self.broken(x)
            return self.last(x)

    model = Net()
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)))
    assert backward_of(dump) == ["last/backward_0", "first/backward_0", "backward_0"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", ["last/backward_0", "first/backward_0", "backward_0"]),
        ("input", ["last/backward_0", "first/backward_0", "backward_0"]),
        ("output", ["last/backward_0"]),  # the others are given no tensor that has a gradient
    ],
)
def test_a_head_that_the_loss_does_not_use_is_in_no_backward_pass(
    mode: str, expected: list[str], tmp_path: Path
) -> None:
    model = Branches()
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)), mode=mode)
    assert backward_of(dump) == expected


def test_what_gives_no_gradients_is_in_no_backward_pass(tmp_path: Path) -> None:
    class Frozen(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                return super().forward(x)

    class Net(Branches):
        def __init__(self) -> None:
            super().__init__()
            self.head = Frozen(4, 4)

    model = Net()
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)))
    assert backward_of(dump) == ["last/backward_0", "first/backward_0", "backward_0"]


def test_a_module_whose_outputs_are_not_seen_is_recorded_with_the_gradients_of_its_inputs(tmp_path: Path) -> None:
    class Result:
        def __init__(self, value: Any) -> None:
            self.value = value

    class Hidden(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return Result(super().forward(x))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), Hidden(4, 4)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x)).value

    model = Net()
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)))
    assert len(dump.select(op="last/backward_0", io="output")) == 1


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("mode", ["all", "output"])
def test_checkpointing_adds_no_backward_passes(mode: str, reentrant: bool, tmp_path: Path) -> None:
    """A module comes after those inside it, is written once, and its records are those of a run without."""
    pytest.importorskip("torch.utils.checkpoint")
    model = Checkpointed(reentrant=reentrant)
    dump = record(model, tmp_path, lambda: model(torch.ones(2, 4)), mode=mode)
    block = ["block.3", "block.2", "block.1", "block.0", "block"]
    expected = [f"{name}/backward_{number}" for number in (0, 1) for name in block]
    if mode == "all":
        expected += ["first/backward_0", "backward_0"]
    assert backward_of(dump) == expected
    for name in expected:
        ios = {one.io for one in dump.select(op=name)}
        at_end = name in ("first/backward_0", "backward_0")  # they are given no tensor that has a gradient
        assert ios == ({"input"} if at_end else {"output"} if mode == "output" else {"input", "output"})
