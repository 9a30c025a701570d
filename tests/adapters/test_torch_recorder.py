"""The recorder on the host: only the last steps stay on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def train(model: Any, steps: int, after: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((3, 4), float(step + 1))).sum().backward()
        optimizer.step()
        if after is not None:
            after(step)


def steps_of(dump: Any) -> list[Any]:
    return sorted({record.step for record in dump})


def manifest(cap: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cap.path / "manifest.json").read_text())
    return found


class TestKeep:
    @pytest.mark.parametrize("data", ["tensor", "stats", "full"])
    def test_only_the_last_steps_stay(self, dumps: Path, data: Any) -> None:
        model = net()
        seen = []
        with ascend_dump.capture(model, path=dumps, keep=2, data=data, strict=True) as cap:
            train(model, 6, lambda step: seen.append(steps_of(cap.dump())))
        assert seen == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
        assert steps_of(cap.dump()) == [4, 5]
        found = manifest(cap)
        assert (found["request"]["keep"], found["state"]) == (2, "complete")
        assert {name: found["removed"][name] for name in ("steps", "first", "last")} == {
            "steps": 4,
            "first": 0,
            "last": 3,
        }

    @pytest.mark.parametrize("grad", [True, False])
    def test_every_tensor_of_a_step_that_stays_is_what_it_was(self, dumps: Path, grad: bool) -> None:
        """Parameters that never change are read from shards of steps that went, as long as these are there."""
        model = net().requires_grad_(grad)
        often, seldom = torch.arange(5000.0), torch.arange(6000.0)
        expected = []
        with torch.set_grad_enabled(grad), ascend_dump.capture(model, path=dumps, keep=2, strict=True) as cap:
            for step in range(12):
                model(torch.full((3, 4), float(step)))
                often.cos()
                if step % 5 == 0:
                    seldom.sin()
                expected.append(step)
                dump = cap.dump()
                assert steps_of(dump) == expected[-3:]
                for record in dump:
                    array = record.numpy()
                    if record.op_name == "addmm_0" and record.io == "input" and record.index == 1:
                        assert (array == record.step).all()
                    for name, tensor in (("cos_0", often), ("sin_0", seldom)):
                        if record.op_name == name and record.io == "input":
                            assert (array == tensor.numpy()).all()

    def test_steps_that_are_not_selected_do_not_count(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, keep=2, steps="0-3|7", strict=True) as cap:
            train(model, 10)
        assert steps_of(cap.dump()) == [3, 7]

    def test_steps_without_records_do_not_count(self, dumps: Path) -> None:
        with ascend_dump.capture(path=dumps, keep=1, scene="overflow", framework="torch", strict=True) as cap:
            for step in range(9):
                torch.full((2,), 1e30 if step in (2, 5) else 1.0).square()
                cap.step()
        assert steps_of(cap.dump()) == [5]

    def test_of_a_decorated_function(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, keep=2, framework="torch", strict=True)
        def step(number: int) -> Any:
            return torch.full((2,), float(number)) + 1

        for number in range(5):
            step(number)
        cap = step.capture
        cap.stop()
        assert steps_of(cap.dump()) == [3, 4]

    def test_two_captures_keep_their_own(self, dumps: Path) -> None:
        caps = []
        for _ in range(2):
            model = net()
            with ascend_dump.capture(model, path=dumps, keep=1, strict=True) as cap:
                train(model, 3)
            caps.append(cap)
        assert [steps_of(cap.dump()) for cap in caps] == [[2], [2]]

    def test_a_forked_child_removes_nothing(self, dumps: Path) -> None:
        model = net()
        with torch.no_grad(), ascend_dump.capture(model, path=dumps, keep=2, strict=True) as cap:
            for _ in range(3):
                model(torch.ones(3, 4))
            cap.dump()
            child = os.fork()
            if child == 0:
                cap.stop()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert steps_of(cap.dump()) == [0, 1, 2]

    def test_by_the_launcher(self, dumps: Path) -> None:
        program = "import torch\nmodel = torch.nn.Linear(4, 4)\nfor _ in range(6): model(torch.ones(2, 4))"
        command = [sys.executable, "-m", "ascend_dump", "run", "--keep", "2", "--path", str(dumps), "--"]
        subprocess.run([*command, sys.executable, "-c", program], check=True, timeout=120)
        assert steps_of(ascend_dump.open(dumps)) == [4, 5]


def last_step(root: Path) -> int:
    # Path.rglob ends where a directory goes meanwhile.
    found = [Path(path).name for path, _, names in os.walk(root) if "index.jsonl" in names]
    return max(map(int, found), default=-1)


def test_a_run_that_is_killed_leaves_the_last_steps_whole(dumps: Path) -> None:
    program = f"""
import torch, ascend_dump
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
with torch.no_grad(), ascend_dump.capture(model, path={str(dumps)!r}, keep=2):
    for step in range(10**6):
        model(torch.full((3, 8), float(step)))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            end = time.monotonic() + 60
            while time.monotonic() < end and last_step(dumps) <= 20:
                time.sleep(0.002)
        finally:
            process.send_signal(signal.SIGKILL)
    dump = ascend_dump.open(dumps)
    counts: dict[Any, int] = {}
    for record in dump:
        assert record.error is None
        assert record.numpy().size
        counts[record.step] = counts.get(record.step, 0) + 1
    assert sum(count == 25 for count in counts.values()) >= 2, counts
    assert len(counts) <= 4
    (run,) = dump.runs()
    assert run.state == "killed"
