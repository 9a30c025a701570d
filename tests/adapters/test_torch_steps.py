"""Steps, the forms of use, and captures that meet each other, threads and exceptions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from torch_helpers import added as add  # noqa: E402  (needs torch)
from torch_helpers import call, modes  # noqa: E402
from torch_helpers import relu_net as net  # noqa: E402

pytestmark = pytest.mark.usefixtures("modes_as_before")


def steps_of(cap: Any) -> set[Any]:
    return {record.step for record in cap.dump()}


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
        @ascend_dump.capture(path=dumps / "inside", quiet=True)
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

        @ascend_dump.capture(path=dumps / "thread", quiet=True)
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

    def test_selected_steps_that_nothing_counts_are_told(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        def record(number_of_steps: int, **settings: Any) -> None:
            caplog.clear()
            with ascend_dump.capture(path=dumps, quiet=True, **settings) as cap:
                for number in range(number_of_steps):
                    if number:
                        cap.step()
                    torch.ones(1) + 1

        record(1, steps="0-1")
        [told] = caplog.messages
        assert "steps=0-1 has no effect: cap.step() was not called" in told
        assert "[AD307]" in told
        with pytest.raises(ascend_dump.CaptureError, match="has no effect"):
            record(1, steps="0|3", strict=True)
        with pytest.raises(ZeroDivisionError), ascend_dump.capture(path=dumps, steps="0-1", quiet=True):
            torch.ones(1 // 0)
        for settings in ({"steps": "0"}, {}):
            record(1, **settings)
            assert not caplog.messages
        record(2, steps="0-1")
        assert not caplog.messages

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
            assert ("ranks=2-7 selects no rank of this run, whose world size is 2 [AD303]" in caplog.text) == told

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
            ready.wait(60)
            torch.ones(1).sinh()
            call(model)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            call(model)
            ready.set()
            assert done.wait(60)
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
        assert "stays active in the recorded thread" in caplog.text
        files = sorted(dumps.rglob("*"))
        assert torch.equal(call(model), call(model))
        assert sorted(dumps.rglob("*")) == files
        assert steps_of(cap) == {0}
        for mode in reversed(modes()):
            torch.utils._python_dispatch.TorchDispatchMode.__exit__(mode, None, None, None)

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


@pytest.mark.parametrize("options", [{}, {"step": "optimizer"}])
def test_steps_between_selected_ones_are_counted(tmp_path: Path, options: dict[str, str]) -> None:
    """They take a way of their own, which only counts."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascend_dump.capture(model, path=tmp_path, steps="3|8-10:2", options=options) as cap:
        for step in range(14):
            model(torch.full((1, 2), float(step))).sum().backward()
            optimizer.step()
    read = cap.dump().select(op_type="aten::addmm", io="input", index=1)
    assert [(record.step, record.numpy()[0, 0]) for record in read] == [(3, 3), (8, 8), (10, 10)]


def test_a_trigger_between_selected_steps_ends_the_recording(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with ascend_dump.capture(model, path=tmp_path, steps="0|5") as cap:
        for step in range(7):
            if step == 3:
                cap.trigger("enough")
            model(torch.ones(1, 2))
    assert [*cap.dump().steps] == [0]
