"""The recorder on the host: only the last steps stay on disk."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")


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

    @pytest.mark.parametrize("until", [None, "nonfinite"])
    def test_of_a_decorated_function_with_a_target(self, dumps: Path, until: Any) -> None:
        model = net()

        @ascend_dump.capture(model, path=dumps, keep=2, until=until, strict=True)
        def step(number: float) -> Any:
            model(torch.full((1, 4), number))
            return model(torch.full((1, 4), number))

        for number in range(7):
            step(torch.nan if number == 4 else 1.0)
        cap = step.capture
        cap.stop()
        assert steps_of(cap.dump()) == ([5, 6] if until is None else [2, 3, 4])
        assert cap.dump().errors() == []

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
        subprocess.run([*command, sys.executable, "-c", program], check=True, timeout=900)
        assert steps_of(ascend_dump.open(dumps)) == [4, 5]


def last_step(root: Path) -> int:
    # Path.rglob ends where a directory goes meanwhile.
    found = [Path(path).name for path, _, names in os.walk(root) if "index.jsonl" in names]
    return max(map(int, found), default=-1)


class Block(torch.nn.Module):
    """Attention with a causal mask of -Inf, as a buffer, made anew, or filled in; and a head that can fail."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.project = torch.nn.Linear(8, 24)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), -torch.inf), 1))
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 3
        if self.how == "buffer":
            scores = scores + self.mask
        elif self.how == "filled":
            scores = scores.masked_fill(self.mask.isinf(), -torch.inf)
        elif self.how == "made":
            scores = scores + torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        else:
            scores = torch.where(self.mask.isinf(), torch.tensor(-torch.inf), scores)
        return ((scores.softmax(-1) @ v) * self.scale).log_softmax(-1)


def train_block(model: Any, steps: int, wrong: Any = (), after: Any = None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        if step in wrong:
            with torch.no_grad():
                model.scale.fill_(1e30).square_()
        optimizer.zero_grad()
        (-model(torch.randn(2, 4, 8))[..., 0].mean()).backward()
        optimizer.step()
        if after is not None:
            after(step)


class TestUntil:
    @pytest.mark.parametrize("how", ["buffer", "filled", "made", "where"])
    @pytest.mark.parametrize("mode", ["all", "output", "input"])
    @pytest.mark.parametrize("data", ["tensor", "stats"])
    def test_masks_end_nothing_and_nan_does(self, dumps: Path, how: str, mode: Any, data: Any) -> None:
        torch.manual_seed(0)
        model = Block(how)
        options = {"mode": mode, "data": data, "keep": 2, "until": "nonfinite", "strict": True}
        with ascend_dump.capture(model, path=dumps / "healthy", **options) as cap:
            train_block(model, 4)
        assert steps_of(cap.dump()) == [2, 3]
        assert "ended" not in manifest(cap)
        with ascend_dump.capture(model, path=dumps / "ill", **options) as cap:
            train_block(model, 9, wrong=[5])
        found = manifest(cap)["ended"]
        # What is written between two calls of the model belongs to the one before.
        assert found["step"] in ((4, 5) if mode != "input" else (4, 5, 6))
        assert steps_of(cap.dump()) == [found["step"] - 2, found["step"] - 1, found["step"]]
        assert found["reason"].startswith(("NaN in", "Inf in"))

    def test_the_run_is_left_alone_from_then_on(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, until="nonfinite") as cap:
            model(torch.full((1, 4), torch.nan))
            assert model._forward_pre_hooks
            model(torch.ones(1, 4))  # ends the step, and with it the recording
            cap.dump()  # waits for the writer
            model(torch.ones(1, 4))
            assert not model._forward_pre_hooks
            model(torch.ones(1, 4))
        assert steps_of(cap.dump()) == [0]
        assert caplog.text.count("the capture keeps it and records nothing more") == 1
        assert manifest(cap)["state"] == "complete"

    @pytest.mark.parametrize(
        ("ends", "body"),
        [
            (False, "torch.where(x > 0, (x * 0).log() * 0, x)"),
            (False, "((x * 0 - 1).sqrt()).nan_to_num().sum()"),
            (False, "y = x * 0 / 0; y[torch.isnan(y)] = 0.0"),
            (True, "(x * 0 - 1).sqrt().sum().item()"),
            (True, "y = (x * 0 - 1).sqrt(); torch.isnan(y).any()"),
            (True, "y = (x * 0 - 1).sqrt(); y.nan_to_num().sum(); (y + 1)"),
            (True, "KEPT.mul_(float('nan')); KEPT.nan_to_num(); KEPT.add_(1)"),
        ],
    )
    def test_nan_that_is_gone_at_the_end_of_its_step_ends_nothing(self, ends: bool, body: str, dumps: Path) -> None:
        model = net()
        with torch.no_grad(), ascend_dump.capture(model, path=dumps, keep=1, until="nonfinite", data="stats") as cap:
            for step in range(4):
                x = model(torch.ones(1, 4))
                if step == 1:
                    # The lines of the table above: one step of a program each.
                    exec(body, {"torch": torch, "x": x, "KEPT": torch.ones(3)})
        kept = manifest(cap)
        assert ("ended" in kept) == ends
        assert bool(kept.get("harmless")) == (not ends)
        assert steps_of(cap.dump())[-1] == (1 if ends else 3)

    @pytest.mark.parametrize("ignored", ["sqrt", "aten::sqrt", "sqrt_*", f"{Path(__file__).name}:LINE"])
    def test_what_is_ignored_ends_nothing(self, ignored: str, dumps: Path) -> None:
        code = compile("y = (x * 0 - 1).sqrt(); z = y + 1", __file__, "exec")
        model = net()
        ignore = [ignored.replace("LINE", "1"), "never"]
        for numbers, until in ((ignore, 3), (["never"], 1)):
            with ascend_dump.capture(model, path=dumps, keep=1, until="nonfinite", data="stats", ignore=numbers) as cap:
                for step in range(4):
                    x = model(torch.ones(1, 4))
                    if step == 1:
                        # Compiled for its line number, that of FILE:LINE.
                        exec(code, {"x": x})
            assert steps_of(cap.dump())[-1] == until

    def test_ls_says_so(self, dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from ascend_dump.cli import main

        for number in (torch.nan, 1.0):
            model = net()
            with ascend_dump.capture(model, path=dumps, keep=1, until="nonfinite", data="stats"):
                for step in range(5):
                    model(torch.full((1, 4), number if step == 3 else 0.0))
        assert main(["ls", str(dumps)]) == 0
        out = capsys.readouterr().out
        assert "1 older step was removed (keep=1)" in out
        # The tensor is made between two calls of the model, which belongs to the step before.
        assert "the recording ended at step 2: NaN in full_0.output.0" in out
        assert "4 older steps were removed (keep=1)" in out
        assert "no step produced NaN or Inf, as far as it was recorded" in out

    def test_with_scene_overflow(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, until="nonfinite", scene="overflow", strict=True) as cap:
            for step in range(5):
                model(torch.full((1, 4), 1e38 if step == 2 else 1.0)).square()
        assert steps_of(cap.dump()) == [2]
        assert manifest(cap)["ended"]["step"] == 2


class TestTrigger:
    def test_in_a_step(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, keep=1, strict=True) as cap:
            train(model, 9, lambda step: cap.trigger(f"loss spike {step}") if step in (4, 6) else None)
        assert steps_of(cap.dump()) == [3, 4]
        assert manifest(cap)["ended"] == {"reason": "loss spike 4", "step": 4, "operator": ""}

    def test_without_keep_everything_before_stays(self, dumps: Path) -> None:
        with ascend_dump.capture(path=dumps, framework="torch", strict=True) as cap:
            for step in range(5):
                torch.ones(2) + step
                if step == 2:
                    cap.trigger("enough")
                    torch.ones(2).cos()
                cap.step()
        assert steps_of(cap.dump()) == [0, 1, 2]
        assert [record.op_name for record in cap.dump().select("cos*", io="output")] == ["cos_0"]

    def test_after_a_decorated_call(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, keep=2, framework="torch", strict=True)
        def step(number: int) -> Any:
            return torch.full((2,), float(number)) + 1

        for number in range(8):
            step(number)
            if number == 5:
                step.capture.trigger("spike")
        step.capture.stop()
        assert steps_of(step.capture.dump()) == [3, 4, 5]
        assert manifest(step.capture)["ended"]["step"] == 5

    @pytest.mark.parametrize("given", ["", "  ", None, 3])
    def test_a_reason_is_needed(self, dumps: Path, given: Any) -> None:
        with ascend_dump.capture(path=dumps, framework="torch") as cap:
            torch.ones(2).cos()
            with pytest.raises(ascend_dump.ConfigError, match="expected a text, the reason"):
                cap.trigger(given)

    def test_outside_the_block(self, dumps: Path) -> None:
        with pytest.raises(ascend_dump.AscendDumpError, match="not active"):
            ascend_dump.capture(path=dumps, framework="torch").trigger("spike")


class TestException:
    def test_in_a_block(self, dumps: Path) -> None:
        model = net()

        def fail(step: int) -> None:
            if step == 5:
                raise ValueError("no such batch")

        with pytest.raises(ValueError, match="no such batch"):  # noqa: SIM117  (the exception leaves the block)
            with ascend_dump.capture(model, path=dumps, keep=2) as cap:
                train(model, 9, fail)
        assert steps_of(cap.dump()) == [3, 4, 5]
        assert manifest(cap)["ended"]["reason"] == "ValueError: no such batch"

    def test_without_a_recorder_it_is_no_end(self, dumps: Path) -> None:
        with contextlib.suppress(KeyError), ascend_dump.capture(path=dumps, framework="torch") as cap:
            torch.ones(2).cos()
            raise KeyError
        assert steps_of(cap.dump()) == [0]
        assert "ended" not in manifest(cap)

    def test_in_a_decorated_function(self, dumps: Path) -> None:
        @ascend_dump.capture(path=dumps, keep=1, framework="torch")
        def step(number: int) -> Any:
            torch.full((2,), float(number)).cos()
            if number == 3:
                raise KeyError(number)

        for number in range(6):
            with contextlib.suppress(KeyError):
                step(number)
        step.capture.stop()
        assert steps_of(step.capture.dump()) == [2, 3]
        assert manifest(step.capture)["ended"]["reason"] == "KeyError: 3"

    def test_that_ends_a_launched_program(self, dumps: Path) -> None:
        program = """
import torch
model = torch.nn.Linear(4, 4)
for step in range(6):
    model(torch.ones(2, 4))
    1 // (4 - step)
"""
        command = [sys.executable, "-m", "ascend_dump", "run", "--keep", "2", "--path", str(dumps), "--"]
        ran = subprocess.run(
            [*command, sys.executable, "-c", program], check=False, timeout=900, stderr=subprocess.PIPE, text=True
        )
        assert "ZeroDivisionError" in ran.stderr
        assert steps_of(ascend_dump.open(dumps)) == [2, 3, 4]
        (run,) = ascend_dump.open(dumps).runs()
        assert "the recording ended at step 4: ZeroDivisionError" in run.notes[-1]


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
            end = time.monotonic() + 600
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
    assert run.state == "ended"


def test_the_lines_of_a_training_are_compressed_to_a_fifth(tmp_path: Path) -> None:
    """Complete, large steps of a transformer with AdamW; as plain files they have the same records."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with ascend_dump.capture(model, path=tmp_path / "dumps", data="stats", quiet=True, strict=True):
        for _ in range(2):
            model(torch.randn(2, 4, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    plain = Path(shutil.copytree(tmp_path / "dumps", tmp_path / "plain"))
    indexes = sorted(plain.rglob("index.jsonl*"))
    assert [(path.parent.name, path.name) for path in indexes] == [("0", "index.jsonl.gz"), ("1", "index.jsonl.gz")]
    for path in indexes:
        text = gzip.decompress(path.read_bytes())
        assert path.stat().st_size * 5 < len(text)
        path.with_name("index.jsonl").write_bytes(text)
        path.unlink()
    read = [
        [(record.label, record.step, record.source, record.statistics()) for record in ascend_dump.open(root)]
        for root in (tmp_path / "dumps", plain)
    ]
    assert len(read[0]) > 1000
    assert read[0] == read[1]
    assert ascend_dump.compare(tmp_path / "dumps", plain).verdict == "equal"
