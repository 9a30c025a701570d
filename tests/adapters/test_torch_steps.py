"""Steps, the forms of use, and what a capture says when nothing comes of it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from ascend_dump_torch import _names, _session  # noqa: E402  (needs torch)
from torch_helpers import modes  # noqa: E402


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No test may leave a mode behind."""
    yield
    assert modes() == []


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


INPUT = torch.ones(3, 4)


def call(model: Any) -> Any:
    return model(INPUT)


def steps_of(cap: Any) -> set[Any]:
    return {record.step for record in cap.dump()}


def add(cap: Any) -> list[float]:
    """The values that `number + 1` had in the steps of this capture."""
    return [record.numpy().item() for record in cap.dump().select("add_0", io="output")]


class TestForms:
    def test_with(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for _ in range(3):
                call(model).sum().backward()
        assert steps_of(cap) == {0, 1, 2}

    def test_what_follows_a_call_belongs_to_its_step(self, dumps: Path) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.zeros(1).cos()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            torch.zeros(1).sin()  # before the first step
            for _ in range(2):
                call(model).sum().backward()
                optimizer.step()
        torch.zeros(1).tan()
        for step in (0, 1):
            kinds = {record.op_type for record in cap.dump().select(step=step)}
            assert {"aten::addmm", "aten::threshold_backward", "aten::add_"} <= kinds | {"aten::add_"}
            assert any(record.phase == "other" for record in cap.dump().select(step=step))
        kinds = {record.op_type for record in cap.dump()}
        assert not kinds & {"aten::sin", "aten::cos", "aten::tan"}

    def test_start_and_stop(self, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True).start()
        assert cap.active
        call(model)
        cap.stop()
        call(model)
        cap.stop()
        assert not cap.active
        assert steps_of(cap) == {0}

    def test_a_capture_may_start_again(self, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True)
        paths = []
        for calls in (1, 2):
            with cap:
                for _ in range(calls):
                    call(model)
            paths.append(cap.path)
            assert steps_of(cap) == set(range(calls))
        assert paths[0] != paths[1]

    def test_without_a_target(self, dumps: Path) -> None:
        with ascend_dump.capture(path=dumps, steps="0|2", strict=True) as cap:
            for number in range(4):
                torch.tensor(float(number)) + 1
                if number < 3:
                    cap.step()
        assert steps_of(cap) == {0, 2}
        assert add(cap) == [1, 3]

    def test_step_with_a_target_is_refused(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps) as cap:
            call(model)
            with pytest.raises(ascend_dump.AscendDumpError, match="each top-level call is one"):
                cap.step()
        with pytest.raises(ascend_dump.CaptureError, match="not active"):
            cap.step()

    def test_decorated_function(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, steps="0|2", strict=True)
        def plus_one(number: float) -> Any:
            """Add."""
            return torch.tensor(number) + 1

        results = []
        for number in range(4):
            results.append(plus_one(float(number)).item())
            torch.zeros(1) + 7  # between the calls
        assert results == [1, 2, 3, 4]
        assert plus_one.__doc__ == "Add."
        assert not plus_one.capture.active  # its last step is over
        assert add(plus_one.capture) == [1, 3]

    def test_bare_decorator(self, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(dumps.parent)

        @ascend_dump.capture
        def plus_one(number: float) -> Any:
            return torch.tensor(number) + 1

        plus_one(1.0), plus_one(2.0)
        plus_one.capture.stop()
        assert add(plus_one.capture) == [2, 3]
        assert plus_one.capture.path.parent.parent == Path("dumps").absolute()

    def test_decorated_coroutine(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, steps="0-1", strict=True)
        async def plus_one(number: float) -> Any:
            first = torch.tensor(number) + 1
            await asyncio.sleep(0)
            return first * 2

        async def main() -> list[Any]:
            return [await plus_one(float(number)) for number in range(3)]

        assert [one.item() for one in asyncio.run(main())] == [2, 4, 6]
        assert add(plus_one.capture) == [1, 2]
        assert [record.numpy().item() for record in plus_one.capture.dump().select("mul_0", io="output")] == [2, 4]

    def test_decorated_method(self, dumps: Path) -> None:
        class Trainer:
            def __init__(self, offset: float) -> None:
                self.offset = offset

            @ascend_dump.capture(path=dumps, steps="0-1", strict=True)
            def train(self, number: float) -> Any:
                return torch.tensor(number + self.offset) + 1

        assert Trainer(10.0).train(1.0).item() == 12
        assert Trainer(20.0).train(number=2.0).item() == 23
        assert add(Trainer.train.capture) == [12, 23]

    def test_a_recursive_call_is_part_of_its_step(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, steps="0-1", strict=True)
        def countdown(number: int) -> int:
            torch.tensor(float(number)) + 1
            return number if number == 0 else countdown(number - 1)

        countdown(2), countdown(1)
        cap = countdown.capture
        values = {
            step: [record.numpy().item() for record in cap.dump().select("add_*", io="output", step=step)]
            for step in (0, 1)
        }
        assert values == {0: [3, 2, 1], 1: [2, 1]}

    def test_a_model_that_calls_itself_is_one_step(self, dumps: Path) -> None:
        class Again(torch.nn.Module):
            def forward(self, x: Any, depth: int = 2) -> Any:
                return self(x + 1, depth - 1) if depth else x * 2

        model, x = Again(), torch.zeros(1)
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            model(x), model(x)
        assert steps_of(cap) == {0, 1}
        assert len(cap.dump().select(step=0, io="output")) == 3

    def test_decorated_functions_take_turns(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps)
        def up(number: float) -> Any:
            return torch.tensor(number) + 1

        @ascend_dump.capture(path=dumps)
        def down(number: float) -> Any:
            return torch.tensor(number) + -1

        for number in range(3):
            up(float(number)), down(float(number))
        up.capture.stop(), down.capture.stop()
        assert add(up.capture) == [1, 2, 3]
        assert add(down.capture) == [-1, 0, 1]
        assert up.capture.path != down.capture.path

    def test_each_call_is_a_step_with_a_target_too(self, dumps: Path) -> None:
        model = net()

        @ascend_dump.capture(model, path=dumps, strict=True)
        def evaluate() -> Any:
            return call(model), call(model)

        for number in range(2):
            evaluate()
            assert steps_of(evaluate.capture) == set(range(number + 1))
        evaluate.capture.stop()

    def test_calls_beside_a_recorded_one_are_told(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        @ascend_dump.capture(path=dumps / "inside")
        async def add(number: int) -> Any:
            await asyncio.sleep(0.01)
            if number:
                await asyncio.gather(add(number - 1), asyncio.create_task(add(0)))
            return torch.ones(1) + 1

        async def beside() -> None:
            await asyncio.gather(add(0), add(0), add(0))

        asyncio.run(add(2))
        asyncio.run(add(1))
        add.capture.stop()
        assert steps_of(add.capture) == {0, 1}
        assert not caplog.records
        asyncio.run(beside())
        add.capture.stop()
        assert [record.getMessage().split(":")[0] for record in caplog.records] == [
            "a captured function was called while another call of it was being recorded"
        ]
        caplog.clear()

        @ascend_dump.capture(path=dumps / "thread")
        def outer() -> None:
            torch.ones(1) + 1
            thread = threading.Thread(target=outer)
            if threading.current_thread() is threading.main_thread():
                thread.start(), thread.join()

        outer(), outer()
        outer.capture.stop()
        assert len(caplog.records) == 1
        assert steps_of(outer.capture) == {0, 1}

    def test_generators_are_refused(self) -> None:
        def batches() -> Iterator[int]:
            yield 1

        async def more() -> Any:
            yield 1

        for function in (batches, more):
            with pytest.raises(ascend_dump.ConfigError, match="generator") as error:
                ascend_dump.capture()(function)
            assert error.value.code == "AD304"

    def test_spellings_of_cann_are_answered(self) -> None:
        with pytest.raises(ascend_dump.ConfigError, match="use `path=`"):
            ascend_dump.capture(dump_path="/tmp")

    def test_dump_inside_and_after_the_block(self, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True)
        with pytest.raises(ascend_dump.CaptureError, match="has not started"):
            cap.dump()
        with cap:
            assert cap.path.is_dir()
            assert len(cap.dump()) == 0
            out = call(model)
            inside = [(record.label, record.numpy().tolist()) for record in cap.dump()]
            assert inside[-1][1] == out.tolist()
            call(model)
            assert len(cap.dump()) == 2 * len(inside)
        assert [(record.label, record.numpy().tolist()) for record in cap.dump().select(step=0)] == inside


class TestSelection:
    @pytest.mark.parametrize(
        ("steps", "expected"), [("1", {1}), ("0|2-3", {0, 2, 3}), ("all", {0, 1, 2, 3}), (range(1, 3), {1, 2})]
    )
    def test_steps(self, steps: Any, expected: set[int], dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, steps=steps, strict=True) as cap:
            for number in range(4):
                call(model)
                assert bool(modes()) == (number in expected)
        assert steps_of(cap) == expected
        directories = {path.name for path in next(cap.path.glob("0/*/0")).iterdir()}
        assert directories == {str(number) for number in expected}

    def test_hooks_are_gone_after_the_last_step(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, steps="0", strict=True):
            call(model)
            assert model._forward_pre_hooks
            call(model)
            assert not model._forward_pre_hooks

    @pytest.mark.parametrize(
        ("layers", "names"),
        [
            ("0/*", {"0/t_0", "0/addmm_0"}),
            ("*addmm*", {"0/addmm_0", "2/addmm_0"}),
            (["1", "2/t_0"], {"1/relu_0", "2/t_0"}),
            ("re:^[01]/(addmm|relu)", {"0/addmm_0", "1/relu_0"}),
        ],
    )
    def test_layers(self, layers: Any, names: set[str], dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps, layers=layers, strict=True) as cap, torch.no_grad():
            call(model)
        assert {record.op_name for record in cap.dump()} == names

    @pytest.mark.parametrize(("mode", "ios"), [("input", {"input"}), ("output", {"output"})])
    def test_mode(self, mode: str, ios: set[str], dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, mode=mode, strict=True) as cap:
            call(model).sum().backward()
        assert {record.io for record in cap.dump()} == ios
        assert cap.dump().errors() == []

    @pytest.mark.parametrize("data", ["stats", "full"])
    def test_statistics(self, data: str, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, data=data, stats=["max", "nan"], strict=True) as cap:
            out = call(model)
        record = next(iter(cap.dump().select("2/addmm_0", io="output")))
        found = record.statistics()
        assert found.max == out.max().item()
        assert (found.nan, found.min) == (0, None)
        assert bool(list(cap.path.rglob("*.safetensors"))) == (data == "full")
        rows = next(cap.path.rglob("statistic.csv")).read_text().splitlines()
        assert len(rows) == 1 + len(cap.dump())

    def test_ranks_that_the_run_does_not_have(
        self, dumps: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank, ranks, told in (("0", "1", False), ("0", "2-7", True), ("1", "2-7", False)):
            monkeypatch.setenv("RANK", rank)
            caplog.clear()
            with ascend_dump.capture(path=dumps, ranks=ranks):
                torch.ones(1) + 1
            assert ("ranks=2-7 selects none of the 2 of this run [AD303]" in caplog.text) == told

    def test_another_rank_writes_nothing(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, ranks="1", strict=True) as cap:
            call(model)
            assert not modes()
            assert not model._forward_pre_hooks
            assert len(cap.dump()) == 0

        @ascend_dump.capture(path=dumps, ranks="1", strict=True)
        def plus_one(x: Any) -> Any:
            return x + 1

        assert plus_one(torch.ones(1)).item() == 2
        assert [path for path in dumps.rglob("*") if path.is_file()] == []


def complaint(caplog: pytest.LogCaptureFixture) -> str:
    found = [record.getMessage() for record in caplog.records if "wrote nothing" in record.getMessage()]
    assert len(found) == 1, caplog.text
    assert "[AD303]" in found[0]
    return found[0]


class TestNothingWritten:
    def test_target_never_called(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps) as cap:
            call(net())
        assert "the target, a Sequential, was never called" in complaint(caplog)
        assert len(cap.dump()) == 0

    def test_step_never_reached(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, steps="5|7"):
            call(model), call(model)
        assert "steps=5|7 was not reached: 2 steps ran" in complaint(caplog)

    @pytest.mark.parametrize("steps", ["5", "1"])
    def test_step_of_a_decorated_function_never_reached(self, dumps: Path, steps: str) -> None:
        program = f"""
import torch, ascend_dump
@ascend_dump.capture(path={str(dumps)!r}, steps={steps!r})
def add(x):
    return x + 1
for _ in range(3):
    add(torch.ones(1))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
        expected = "ascend-dump: the capture wrote nothing\n  - steps=5 was not reached: 3 calls [AD303]\n"
        assert done.returncode == 0
        assert done.stderr.startswith(expected) if steps == "5" else done.stderr == ""

    def test_no_layer_matches(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        reason = "layers='2/admm_0' matched no operator; nearest: 2/addmm_0"
        with ascend_dump.capture(model, path=dumps, layers=["2/admm_0", "0/*"]) as cap:
            call(model)
        assert [record.getMessage().split(",")[0] for record in caplog.records] == [reason]
        skipped = json.loads((cap.path / "manifest.json").read_text())["skipped"]
        assert reason in [one["reason"].split(",")[0] for one in skipped]
        with ascend_dump.capture(model, path=dumps, layers="2/admm_0"):
            call(model)
        assert reason in complaint(caplog)

    def test_no_layer_matches_where_nothing_overflows(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, layers="2/*", scene="overflow"):
            call(model)
        assert not caplog.records
        with ascend_dump.capture(model, path=dumps, layers="2/admm_0", scene="overflow"):
            call(model)
        assert "layers='2/admm_0' matched no operator; nearest: 2/addmm_0" in complaint(caplog)

    def test_target_called_in_another_thread(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps):
            thread = threading.Thread(target=call, args=(model,))
            thread.start(), thread.join()
        assert "called 1 times in threads other than the one that started it" in complaint(caplog)
        assert "never called" not in complaint(caplog)

    def test_block_without_operators(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        with ascend_dump.capture(path=dumps):
            pass
        assert "no selected operator ran" in complaint(caplog)

    def test_strict_raises(self, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True).start()
        with pytest.raises(ascend_dump.CaptureError, match="was never called") as error:
            cap.stop()
        assert error.value.code == "AD303"

    def test_an_exception_in_the_block_is_the_one_to_see(self, dumps: Path, caplog: Any) -> None:
        with pytest.raises(ZeroDivisionError), ascend_dump.capture(net(), path=dumps, strict=True):
            1 / 0  # noqa: B018
        assert "was never called" in complaint(caplog)


class TestOrder:
    def test_nested_captures(self, dumps: Path) -> None:
        model, other = net(), net()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            call(model)
            for target in (model, other, None):
                with pytest.raises(ascend_dump.CaptureError, match="another capture") as error:
                    ascend_dump.capture(target, path=dumps).start()
                assert error.value.code == "AD302"
            call(model)
        assert steps_of(cap) == {0, 1}
        assert len(list(dumps.rglob("manifest.json"))) == 1
        with ascend_dump.capture(other, path=dumps, strict=True) as second:
            call(other)
        assert steps_of(second) == {0}

    def test_a_decorated_function_inside_a_capture(self, dumps: Path) -> None:
        model = net()

        @ascend_dump.capture(path=dumps)
        def forward() -> Any:
            return call(model)

        with ascend_dump.capture(model, path=dumps, strict=True):
            with pytest.raises(ascend_dump.CaptureError, match="another capture"):
                forward()
            call(model)
        forward()  # works as soon as the other is over
        with ascend_dump.capture(model, path=dumps, strict=True):
            with pytest.raises(ascend_dump.CaptureError, match="another capture"):
                forward()
            call(model)
        forward()
        forward.capture.stop()
        assert len(steps_of(forward.capture)) == 2

    def test_started_twice(self, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True).start()
        with pytest.raises(ascend_dump.CaptureError, match="active already"):
            cap.start()
        call(model)
        cap.stop()
        assert steps_of(cap) == {0}

    def test_another_thread_is_not_recorded(self, dumps: Path) -> None:
        model = net()
        ready, done = threading.Event(), threading.Event()

        def work() -> None:
            ready.wait(10)
            torch.ones(1).sinh()
            call(model)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            call(model)
            ready.set()
            assert done.wait(10)
            call(model)
        thread.join()
        assert steps_of(cap) == {0, 1}
        assert not cap.dump().select(op_type="aten::sinh")
        assert {len(cap.dump().select(step=step)) for step in (0, 1)} == {len(cap.dump()) // 2}
        skipped = json.loads((cap.path / "manifest.json").read_text())["skipped"]
        assert [(one["count"], "in other threads" in one["reason"]) for one in skipped] == [(1, True)]

    def test_decorated_function_called_in_threads(self, dumps: Path) -> None:
        model = net()

        @ascend_dump.capture(path=dumps, steps="0-2")
        def forward() -> Any:
            return call(model)

        forward()
        for _ in range(2):
            thread = threading.Thread(target=forward)
            thread.start(), thread.join()
        assert steps_of(forward.capture) == {0, 1, 2}
        names = [{record.op_name for record in forward.capture.dump().select(step=step)} for step in range(3)]
        assert names[0] == names[1] == names[2]
        assert "2/addmm_0" in names[0]

    def test_stopped_in_another_thread(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps).start()
        call(model)
        thread = threading.Thread(target=cap.stop)
        thread.start(), thread.join()
        assert "stays active there" in caplog.text
        files = sorted(dumps.rglob("*"))
        assert torch.equal(call(model), call(model))
        assert sorted(dumps.rglob("*")) == files
        assert steps_of(cap) == {0}
        from ascend_dump_torch import _stack

        for mode in modes():
            _stack.remove(mode)

    def test_interrupted_call(self, dumps: Path) -> None:
        """PyTorch runs no hooks when a KeyboardInterrupt leaves a module."""

        class Interrupted(torch.nn.Module):
            def forward(self, x: Any, interrupt: bool) -> Any:
                x = x + 1
                if interrupt:
                    raise KeyboardInterrupt
                return x * 2

        model = Interrupted()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for interrupt in (False, True, False, True, False):
                try:
                    model(torch.ones(1), interrupt)
                except KeyboardInterrupt:
                    continue
        assert steps_of(cap) == {0, 1, 2, 3, 4}
        assert len(cap.dump().select("mul_0", io="output")) == 3

    def test_exception_in_forward(self, dumps: Path) -> None:
        """The path of modules is right again for what follows."""

        class Fragile(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(5, 5))
                self.after = torch.nn.Linear(4, 4)

            def forward(self, x: Any) -> Any:
                try:
                    self.inner(x)
                except RuntimeError:
                    x = x.exp()
                return self.after(x)

        model = Fragile()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            call(model)
            with pytest.raises(RuntimeError):
                model(torch.ones(7, 7, 7))
            call(model)
        assert steps_of(cap) == {0, 1, 2}
        for step in (0, 2):
            names = {record.op_name for record in cap.dump().select(step=step)}
            assert {"exp_0", "after/addmm_0", "inner.0/addmm_0"} <= names

    def test_exception_in_the_block(self, dumps: Path) -> None:
        model = net()
        with pytest.raises(ZeroDivisionError), ascend_dump.capture(model, path=dumps, strict=True) as cap:
            call(model).div_(1 / 0)
        assert not cap.active
        assert not model._forward_pre_hooks
        assert json.loads((cap.path / "manifest.json").read_text())["state"] == "complete"
        assert cap.dump().errors() == []

    def test_exception_in_a_decorated_function(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, steps="0-2", strict=True)
        def divide(number: float) -> float:
            (torch.tensor(number) + 1).item()
            return 1 / number

        with pytest.raises(ZeroDivisionError):
            divide(0.0)
        assert modes() == []
        divide(1.0), divide(2.0)
        assert add(divide.capture) == [1, 2, 3]

    def test_two_captures_never_mix(self, dumps: Path) -> None:
        model = net()
        caps = []
        for number in range(4):
            with ascend_dump.capture(model, path=dumps, strict=True) as cap:
                model(torch.full((1, 4), float(number)))
            caps.append(cap)
        assert len({cap.path for cap in caps}) == 4
        for number, cap in enumerate(caps):
            assert len(cap.dump()) == len(caps[0].dump())
            first = next(iter(cap.dump().select("0/addmm_0", io="input", index=1)))
            assert first.numpy().tolist() == [[number] * 4]
        assert len(ascend_dump.open(dumps)) == sum(len(cap.dump()) for cap in caps)


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tracker fails at its 6th operator of all."""
        place = _names.Tracker.place
        count = iter(range(1000))

        def fail_late(self: Any) -> Any:
            if next(count) == 5:
                raise ValueError("planted")
            return place(self)

        monkeypatch.setattr(_names.Tracker, "place", fail_late)

    def test_our_own_failure_does_not_stop_the_training(
        self, broken: None, dumps: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        model, plain = net(), net()
        expected = [call(plain).tolist() for _ in range(4)]
        with ascend_dump.capture(model, path=dumps) as cap:
            results = [call(model).tolist() for _ in range(4)]
            assert not model._forward_pre_hooks
            assert modes() == []
        assert results == expected
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "recording failed at step 1: ValueError('planted')" in warnings[0] or "step 0" in warnings[0]
        assert "[AD305]" in warnings[0]
        manifest = json.loads((cap.path / "manifest.json").read_text())
        assert manifest["state"] == "incomplete"
        assert "planted" in manifest["failure"]
        assert 0 < len(cap.dump()) <= 15
        assert cap.dump().errors() == []

    def test_strict_raises_when_the_block_ends(self, broken: None, dumps: Path) -> None:
        model = net()
        cap = ascend_dump.capture(model, path=dumps, strict=True).start()
        results = [call(model) for _ in range(3)]
        with pytest.raises(ascend_dump.CaptureError, match="planted") as error:
            cap.stop()
        assert len(results) == 3
        assert isinstance(error.value.__cause__, ValueError)
        assert not model._forward_pre_hooks

    @pytest.mark.parametrize("where", ["begin_step", "enter"])
    def test_failures_outside_operators(
        self, where: str, dumps: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*args: Any) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(_names.Tracker, where, fail)
        model = net()
        with ascend_dump.capture(model, path=dumps):
            assert call(model).shape == (3, 2)
            assert call(model).shape == (3, 2)
        assert caplog.text.count("planted") == 1

        @ascend_dump.capture(path=dumps, steps="0-1")
        def forward() -> Any:
            return call(model)

        assert forward().shape == forward().shape == (3, 2)
        assert modes() == []
        assert caplog.text.count("planted") == 2

    def test_failure_while_a_step_is_armed(
        self, dumps: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*args: Any) -> None:
            raise ValueError("planted")

        hooks = torch.nn.modules.module
        before = [len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)]
        monkeypatch.setattr(_session._stack, "insert", fail)
        model = net()
        resize = torch.UntypedStorage.resize_
        with ascend_dump.capture(model, path=dumps):
            call(model), call(model)
            assert [len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)] == before
        assert torch.UntypedStorage.resize_ is resize
        assert caplog.text.count("planted") == 1

    def test_max_bytes(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = torch.nn.Linear(100, 100)
        with ascend_dump.capture(model, path=dumps, max_bytes="100 kB") as cap:
            for _ in range(5):
                model(torch.randn(100, 100))
                cap.dump()  # wait for the writer
            assert not model._forward_pre_hooks
        assert [
            one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and "AD503" in one.getMessage()
        ]
        assert sum(path.stat().st_size for path in cap.path.rglob("*.safetensors")) < 800_000
        assert json.loads((cap.path / "manifest.json").read_text())["state"] == "incomplete"
        assert len(cap.dump()) > 0
        assert cap.dump().errors() == []

    def test_max_bytes_strict(self, dumps: Path) -> None:
        model = torch.nn.Linear(100, 100)
        cap = ascend_dump.capture(model, path=dumps, max_bytes="100 kB", strict=True).start()
        for _ in range(3):
            model(torch.randn(100, 100))
        with pytest.raises(ascend_dump.AscendDumpError) as error:
            cap.stop()
        assert error.value.code == "AD503"

    def test_unwritable_path(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("")
        model = net()
        with pytest.raises(ascend_dump.AscendDumpError) as error:
            ascend_dump.capture(model, path=file).start()
        assert error.value.code.startswith("AD5")
        assert not model._forward_pre_hooks
        with ascend_dump.capture(model, path=tmp_path / "dumps", strict=True):
            call(model)  # the failed one does not count as active

    def test_bad_requests(self, dumps: Path) -> None:
        model = net()
        for settings, message in (
            ({"scene": "watch"}, "service of the NPU"),
            ({"options": {"nonsense": 1}}, "has no option 'nonsense'"),
            ({"options": {"buffer_bytes": "many"}}, "buffer_bytes"),
            ({"options": {"buffer_bytes": 0}}, "buffer_bytes"),
            ({"options": {"rehash": "maybe"}}, "rehash"),
            ({"layers": "re:("}, "regular expression"),
            ({"level": "kernel", "strict": True}, "changes nothing"),
        ):
            with pytest.raises(ascend_dump.ConfigError, match=message):
                ascend_dump.capture(model, path=dumps, **settings).start()
        assert not model._forward_pre_hooks
        assert not list(dumps.rglob("*.json"))

    def test_an_empty_block_at_interpreter_exit(self, dumps: Path) -> None:
        """A capture that is never stopped is finished when the process ends."""
        program = (
            "import torch, ascend_dump\n"
            f"ascend_dump.capture(path={str(dumps)!r}, strict=True).start()\n"
            "torch.ones(3).add_(1)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
        assert (done.returncode, done.stderr) == (0, "")
        manifest = json.loads(next(dumps.rglob("manifest.json")).read_text())
        assert manifest["state"] == "complete"
        assert [record.op_type for record in ascend_dump.open(dumps)] == ["aten::ones", "aten::add_", "aten::add_"]


class TestMessages:
    SCRIPT = """
import logging, sys, torch, ascend_dump
if sys.argv[1] == "logging":
    logging.basicConfig(format="mine: %(message)s")
model = torch.nn.Linear(2, 2)
with ascend_dump.capture(model, path="dumps", steps="7"):
    model(torch.ones(1, 2))
if sys.argv[1] == "failure":
    sys.modules["ascend_dump_torch._names"].Tracker.place = None
    with ascend_dump.capture(model, path="dumps"):
        model(torch.ones(1, 2))
"""

    def run(self, how: str, place: Path, **variables: str) -> str:
        command = [sys.executable, "-c", self.SCRIPT, how]
        environment = {**os.environ, **variables}
        return subprocess.run(
            command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True, check=True, timeout=120
        ).stderr

    def test_without_a_handler_they_say_who_speaks(self, tmp_path: Path) -> None:
        said = self.run("nothing", tmp_path)
        assert said.startswith("ascend-dump: the capture wrote nothing\n  - steps=7 was not reached: 1 step ran")
        assert said.count("wrote nothing") == 1

    def test_the_handlers_of_the_program_are_used(self, tmp_path: Path) -> None:
        said = self.run("logging", tmp_path)
        assert said.startswith("mine: the capture wrote nothing\n")
        assert said.count("wrote nothing") == 1

    def test_the_environment_asks_for_tracebacks(self, tmp_path: Path) -> None:
        said = self.run("failure", tmp_path, ASCEND_DUMP_LOG="debug")
        assert "recording failed at step 0: TypeError" in said
        assert "Traceback" in said
