"""Programs that attach to themselves at chosen moments, which a command from outside would meet by chance."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any, Callable

import pytest
from preloaded import COMPILER, run_preloaded

import ascend_dump

torch = pytest.importorskip("torch")

HEAD = """
import io, json, os, sys, threading
from contextlib import redirect_stderr, redirect_stdout
import torch
from ascend_dump.cli import main

def attach(*words, path="dumps", code=0):
    said = io.StringIO()
    with redirect_stderr(said):
        found = main(["attach", str(os.getpid()), "--no-wait", "--quiet", "--path", path, *words])
    assert found == code, (found, said.getvalue())
    return said.getvalue()

def capture():
    out = io.StringIO()
    with redirect_stdout(out):
        main(["attach", "--list", "--json"])
    [found] = [one for one in json.loads(out.getvalue())["processes"] if one["pid"] == os.getpid()]
    return found["capture"]

def assert_as_before():
    from torch.nn.modules import module
    assert capture()["state"] == "ended", capture()
    assert not (module._global_forward_pre_hooks or module._global_forward_hooks)
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    assert not hasattr(torch.inference_mode.__exit__, "__wrapped__")
    assert torch._C._len_torch_dispatch_stack() == 0

def rows(number):
    return torch.full((1, 4), float(number))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def begin(program: str, *, imported: str = "torch", **values: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(program))
        (tmp_path / "runtime").mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "ACL_"))}
        own = {"ASCEND_DUMP": "wait", "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), **values}
        return run_preloaded(file, env={**kept, **own}, cwd=tmp_path, check=True, imported=imported)

    return begin


def inputs(path: Path) -> dict[Any, list[float]]:
    """By step, the first element of what each matrix product was given."""
    dump = ascend_dump.open(path)
    assert dump.errors() == []
    found: dict[Any, list[float]] = {}
    for record in dump.select(op="*addmm*", io="input", index=1):
        found.setdefault(record.step, []).append(float(record.numpy()[0, 0]))
    return found


def test_inside_a_call_it_waits_for_the_next_one(run: Any, tmp_path: Path) -> None:
    done = run(
        """
        class Outer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
            def forward(self, x):
                y = self.first(x)
                if x[0, 0] == 1:
                    attach("--steps", "0-1")
                    assert capture()["state"] == "waiting"
                return self.second(y)

        model = Outer()
        for number in range(6):
            model(rows(number)).sum().backward()
        assert_as_before()
        """
    )
    assert (done.stdout, done.stderr) == ("", "")
    dump = ascend_dump.open(tmp_path / "dumps")
    assert {record.step for record in dump} == {0, 1}
    for step in (0, 1):
        found = dump.select(step=step, op="first/addmm_0", io="input", index=1)
        assert [record.numpy()[0, 0] for record in found] == [step + 2]
        names = {record.op_name for record in dump.select(step=step)}
        assert {"first/addmm_0", "second/addmm_0", "sum_0"} <= names
        assert {record.phase for record in dump.select(step=step)} >= {"forward", "backward"}


def test_inside_a_block_of_inference_mode(run: Any, tmp_path: Path) -> None:
    """The block was entered when nobody followed, and ends while steps are recorded."""
    run(
        """
        model = torch.nn.Linear(4, 2)
        with torch.inference_mode():
            model(rows(1))
            attach("--steps", "0-3")
            model(rows(2))
            model(rows(3))
        model(rows(4)).sum().backward()
        with torch.inference_mode():
            model(rows(5))
            model(rows(6))
        assert_as_before()
        """
    )
    assert inputs(tmp_path / "dumps") == {0: [2], 1: [3], 2: [4], 3: [5]}


COMPILED = """
def plain(x):
    return model(x) + model(-x)

def make(how):
    if how == "in place":
        model.compile(backend="eager")
        return model
    if how == "wrapped":
        return torch.compile(model, backend="eager")
    if how == "bound":
        return torch.compile(model.forward, backend="eager")
    return torch.compile(plain, backend="eager")

for how in ("in place", "wrapped", "bound", "function"):
    child = os.fork()
    if not child:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        call = make(how)
        results = [call(rows(0)), call(rows(1))]
        attach("--steps", "0|2", path=how)
        results += [call(rows(number)) for number in range(2, 7)]
        assert capture()["state"] == "ended", (how, capture())
        expected = [plain(rows(number)) if how == "function" else model(rows(number)) for number in range(7)]
        assert all(torch.equal(one, other) for one, other in zip(results, expected)), how
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, how
"""


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="PyTorch 2.6 and later run compiled code eagerly")
def test_what_was_compiled_before_is_seen(run: Any, tmp_path: Path) -> None:
    done = run(COMPILED, imported=COMPILER)
    assert done.stderr.count("AD212") == 4
    for how in ("in place", "wrapped", "bound"):
        found = inputs(tmp_path / how)
        assert [found[step][0] for step in sorted(found)] == [2, 4], how
    found = inputs(tmp_path / "function")
    assert {step: [values[0], values[2]] for step, values in found.items()} == {0: [2, -2], 2: [4, -4]}


def test_what_was_captured_is_not_kept_alive(run: Any) -> None:
    run(
        """
        import gc, weakref
        model = torch.nn.Linear(4, 2)
        attach("--steps", "0")
        for number in range(2):
            model(rows(number))
        assert_as_before()
        weak = weakref.ref(model)
        del model
        gc.collect()
        assert weak() is None
        """
    )


def test_any_thread_may_make_the_next_call(run: Any, tmp_path: Path) -> None:
    run(
        """
        model = torch.nn.Linear(4, 2)
        attach("--steps", "0")
        def work():
            for number in (1, 2, 3):
                model(rows(number))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert_as_before()
        """
    )
    assert inputs(tmp_path / "dumps") == {0: [1]}


def test_a_capture_of_the_program_comes_first(run: Any, tmp_path: Path) -> None:
    run(
        """
        import ascend_dump
        model = torch.nn.Linear(4, 2)
        with ascend_dump.capture(model, path="own", quiet=True):
            attach("--steps", "0")
            model(rows(1))
        found = capture()
        assert (found["state"], found["failure"]["code"]) == ("ended", "AD302"), found
        attach("--steps", "0", path="later")
        model(rows(2))
        with ascend_dump.capture(model, path="own2", quiet=True):
            model(rows(3))
        model(rows(4))
        assert_as_before()
        """
    )
    assert inputs(tmp_path / "own") == {0: [1]}
    assert inputs(tmp_path / "later") == {0: [2]}
    assert inputs(tmp_path / "own2") == {0: [3]}


def test_a_capture_without_an_end_is_ended_by_a_word(run: Any, tmp_path: Path) -> None:
    run(
        """
        model = torch.nn.Linear(4, 2)
        attach("--keep", "2")
        for number in range(5):
            model(rows(number))
        assert main(["attach", "--stop", str(os.getpid())]) == 0
        assert capture()["state"] == "recording"
        model(rows(5))
        model(rows(6))
        assert_as_before()
        """
    )
    assert inputs(tmp_path / "dumps") == {3: [3], 4: [4]}


def test_a_failure_of_the_recording_ends_it(run: Any, tmp_path: Path) -> None:
    """Its directory goes while a step is recorded: the program goes on, and can be attached to again."""
    run(
        """
        import shutil
        model = torch.nn.Linear(4, 2)
        attach("--steps", "0-9", path="gone")
        model(rows(1))
        shutil.rmtree("gone")
        for number in range(12):
            model(rows(number))
        assert capture()["state"] == "ended"
        assert capture()["failure"] is not None
        attach("--steps", "0")
        model(rows(7))
        model(rows(8))
        assert_as_before()
        """
    )
    assert inputs(tmp_path / "dumps") == {0: [7]}


@pytest.mark.parametrize("name", ["acl", "mindspore", "tensorflow", "torchair"])
def test_what_reads_its_settings_at_the_start_is_refused(name: str, run: Any) -> None:
    module = {"torchair": "torchair.npu_fx_compiler"}.get(name, name)
    # Beside PyTorch it is taken for something that a writer for TensorBoard has imported.
    words = ("--framework", name) if name == "tensorflow" else ()
    run(
        f"""
        from importlib import import_module
        import ascend_dump.fakes as fakes
        with fakes.install("{name}"):
            import_module("{module}")
            said = attach("--steps", "0", *{words}, code=4)
            assert "{name} cannot begin in a program that runs already, because" in said, said
            assert "start the program with `ascend-dump run`" in said
            attach("--steps", "0", "--framework", "torch")
            model = torch.nn.Linear(4, 2)
            for number in range(2):
                model(rows(number))
        """
    )


def test_the_exit_code_of_a_program_that_runs_already_is_not_decided(run: Any) -> None:
    run(
        """
        said = attach("--strict", code=2)
        assert "strict=True decides the exit code of a program, and this program already runs" in said, said
        """,
        ASCEND_DUMP="wait,strict=true",
    )


def test_kernels_of_the_npu(run: Any, tmp_path: Path) -> None:
    run(
        """
        import ascend_dump.fakes as fakes
        with fakes.install("torch_npu"):
            model = torch.nn.Linear(4, 2).npu()
            model(rows(0).npu())
            said = attach("--scene", "exception", code=4)
            assert "scene='exception' is read when the NPU is initialised" in said
            for path in ("first", "second"):
                attach("--steps", "0|2", path=path)
                for number in range(4):
                    model(rows(number).npu())
                assert capture()["state"] == "ended"
        """
    )
    for path in ("first", "second"):
        dump = ascend_dump.open(tmp_path / path).select(op_type="aclnnAddmm", io="input", index=1)
        kernels = [record for record in dump if record.kernel is not None]
        assert {record.step: float(record.numpy()[0, 0]) for record in kernels} == {0: 0, 2: 2}
