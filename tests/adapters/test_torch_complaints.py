"""Reports of a capture that wrote nothing or failed, and their printing."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from preloaded import run_preloaded

import ascend_dump

torch = pytest.importorskip("torch")

# Private: makes parts of the recorder fail, which no program can.
from ascend_dump_torch import _call_site, _session  # noqa: E402  (needs torch)
from torch_helpers import call, modes  # noqa: E402
from torch_helpers import relu_net as net  # noqa: E402

pytestmark = pytest.mark.usefixtures("modes_as_before")


def complaint(caplog: pytest.LogCaptureFixture) -> str:
    found = [record.getMessage() for record in caplog.records if "wrote nothing" in record.getMessage()]
    assert len(found) == 1, caplog.text
    assert "[AD303]" in found[0]
    return found[0]


def written(dumps: Path, program: str) -> Path:
    """A file beside the dumps with this program."""
    file = dumps.with_name("program.py")
    file.write_text(program)
    return file


class TestNothingWritten:
    def test_target_never_called(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps) as cap:
            call(net())
        assert "the target, a Sequential, was never called" in complaint(caplog)
        assert len(cap.dump()) == 0

    def test_optimizers_load_dynamo_without_compiled_code(self, dumps: Path) -> None:
        program = f"""
import torch, torch._dynamo, ascend_dump
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
with ascend_dump.capture(model, path={str(dumps)!r}, quiet=True):
    model.forward(torch.ones(2, 2))
"""
        said = run_preloaded(written(dumps, program)).stderr
        assert "a Sequential, was never called\n" in said
        assert "not `model.forward(x)`" in said
        assert "compile" not in said

    def test_compiled_after_the_start(self, dumps: Path) -> None:
        program = f"""
import torch, ascend_dump
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
with ascend_dump.capture(model, path={str(dumps)!r}, quiet=True):
    torch.compile(lambda x: model[0](x) + 1, backend="eager")(torch.ones(2, 2))
"""
        assert "if torch.compile was applied to it after the start" in run_preloaded(written(dumps, program)).stderr

    def test_step_never_reached(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, steps="5|7"):
            call(model), call(model)
        assert "steps=5|7 was not reached: 2 steps ran" in complaint(caplog)

    @pytest.mark.parametrize("steps", ["5", "1"])
    def test_step_of_a_decorated_function_never_reached(self, dumps: Path, steps: str) -> None:
        program = f"""
import torch, ascend_dump
@ascend_dump.capture(path={str(dumps)!r}, steps={steps!r}, quiet=True)
def add(x):
    return x + 1
for _ in range(3):
    add(torch.ones(1))
"""
        done = run_preloaded(written(dumps, program))
        expected = "ascend-dump: the capture wrote nothing\n  - steps=5 was not reached: 3 calls [AD303]\n"
        assert done.returncode == 0
        assert done.stderr.startswith(expected) if steps == "5" else done.stderr == ""

    def test_no_layer_matches(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        reason = "layers='2/admm_0' matched no operator; nearest: 2/addmm_0"
        with ascend_dump.capture(model, path=dumps, layers=["2/admm_0", "0/*"], quiet=True) as cap:
            call(model)
        assert [record.getMessage().split(",")[0] for record in caplog.records] == [reason]
        skipped = json.loads((cap.path / "manifest.json").read_text())["skipped"]
        assert reason in [one["reason"].split(",")[0] for one in skipped]
        with ascend_dump.capture(model, path=dumps, layers="2/admm_0"):
            call(model)
        assert reason in complaint(caplog)

    def test_no_layer_matches_where_nothing_overflows(self, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, layers="2/*", scene="overflow", quiet=True):
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
        assert "called 1 times in threads other than the one that started the capture" in complaint(caplog)
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


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tracker fails at its 6th operator of all."""
        call_site = _call_site.Tracker.call_site
        count = iter(range(1000))

        def fail_late(self: Any) -> Any:
            if next(count) == 5:
                raise ValueError("planted")
            return call_site(self)

        monkeypatch.setattr(_call_site.Tracker, "call_site", fail_late)

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

        monkeypatch.setattr(_call_site.Tracker, where, fail)
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
            ({"scene": "watch"}, "feature of the NPU"),
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

    def test_a_misspelt_option(self, dumps: Path) -> None:
        with pytest.raises(ascend_dump.ConfigError) as caught:
            ascend_dump.capture(net(), path=dumps, options={"stak": True}).start()
        [hint] = [line for line in str(caught.value).splitlines() if "did you mean 'stack'? known: " in line]
        assert "outline" not in hint
        known = hint.partition("known: ")[2].partition(";")[0].split(", ")
        page = (Path(ascend_dump.__file__).parent / "pages" / "topics" / "options.md").read_text()
        assert {"stack", "step", "graft"} <= set(known)
        assert [name for name in known if f"`{name}`" not in page] == [], "the page says what they do"

    def test_an_empty_block_at_interpreter_exit(self, dumps: Path) -> None:
        """A capture that is never stopped is finished when the process ends."""
        program = (
            "import torch, ascend_dump\n"
            f"ascend_dump.capture(path={str(dumps)!r}, strict=True, quiet=True).start()\n"
            "torch.ones(3).add_(1)\n"
        )
        done = run_preloaded(written(dumps, program))
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
    sys.modules["ascend_dump_torch._call_site"].Tracker.call_site = None
    with ascend_dump.capture(model, path="dumps"):
        model(torch.ones(1, 2))
"""

    def run(self, how: str, place: Path, **variables: str) -> str:
        program = written(place / "dumps", self.SCRIPT)
        return run_preloaded(program, how, cwd=place, env={**os.environ, **variables}, check=True).stderr

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


def test_a_refusal_tells_what_else_is_wrong(dumps: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError) as error:
        ascend_dump.capture(torch.nn.Linear(2, 2), path=dumps, scene="watch", watch="x", quant=True).start()
    assert "scene='watch' is a feature of the NPU's own dump" in str(error.value)
    assert "quant=True changes nothing" in str(error.value)
