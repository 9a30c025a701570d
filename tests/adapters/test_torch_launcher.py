"""A whole process is captured without a change to its code: `ascend-dump run -- python train.py`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from preloaded import COMPILER, run_preloaded

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


class Launched:
    """Writes a program, runs it under the launcher and opens what it dumped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dumps = directory / "dumps"

    def run(
        self, program: str, *options: str, code: int = 0, imported: str = "torch"
    ) -> subprocess.CompletedProcess[str]:
        """As `run_whole`, in a process that has imported PyTorch before."""
        file = self._write(program)
        said, planned = io.StringIO(), io.StringIO()
        with redirect_stderr(said), redirect_stdout(planned):
            command = [
                "run",
                "--path",
                str(self.dumps),
                *options,
                "--dry-run",
                "--json",
                "--",
                sys.executable,
                str(file),
            ]
            assert main(command) == Exit.OK
        environment = {**os.environ, **json.loads(planned.getvalue())["environment"]}
        done = run_preloaded(file, str(self.directory), env=environment, imported=imported)
        assert done.returncode == code, done.stderr
        done.stderr = said.getvalue() + done.stderr
        return done

    def run_whole(self, program: str, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run it with `ascend-dump run` as a user does."""
        file = self._write(program)
        launcher = [sys.executable, "-m", "ascend_dump", "run", "--path", str(self.dumps), *options]
        done = subprocess.run(
            [*launcher, "--", sys.executable, str(file), str(self.directory)],
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == code, done.stderr
        return done

    def _write(self, program: str) -> Path:
        file = self.directory / "train.py"
        file.write_text(textwrap.dedent(program))
        return file

    def dump(self) -> Any:
        dump = ascend_dump.open(self.dumps)
        assert dump.errors() == []
        return dump

    def manifests(self) -> list[Any]:
        return [json.loads(path.read_text()) for path in self.dumps.rglob("manifest.json")]


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    return Launched(tmp_path)


def names_of(dump: Any) -> set[str]:
    return {record.op_name for record in dump}


def test_loss_modules_belong_to_the_step_of_the_model(launched: Launched) -> None:
    done = launched.run(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.nn.ReLU()(torch.ones(1))           # a module without parameters is no step
        class Broken(torch.nn.Module):
            def forward(self, stop):
                if stop: raise KeyboardInterrupt
                return 1
        try:
            Broken()(True)
        except KeyboardInterrupt:
            pass
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.nn.MSELoss()(model(torch.ones(3, 4)), torch.zeros(3, 2))
            loss.backward()
            optimizer.step()
        print(loss.item())
        """,
        "--steps",
        "0|2",
        "--quiet",
        imported=COMPILER,  # an optimizer imports most of it
    )
    assert done.stderr == ""
    assert float(done.stdout) > 0
    dump = launched.dump()
    assert {record.step for record in dump} == {0, 2}
    for step in (0, 2):
        names = names_of(dump.select(step=step))
        assert {"0/addmm_0", "2/addmm_0", "MSELoss/mse_loss_0", "MSELoss/mse_loss_backward_0"} <= names
        assert {record.phase for record in dump.select(step=step)} == {"forward", "backward", "other"}
    assert launched.manifests()[0]["state"] == "complete"
    record = next(iter(dump.select("0/addmm_0")))
    assert record.model == "Sequential"
    assert record.source == f"{launched.directory / 'train.py'}:16"


def test_two_models_in_one_step(launched: Launched) -> None:
    """A GAN: the generator's call begins the step, the discriminator belongs to it."""
    launched.run(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        class Generator(torch.nn.Sequential): pass
        class Critic(torch.nn.Sequential): pass
        generator = Generator(torch.nn.Linear(2, 4), torch.nn.Tanh())
        critic = Critic(torch.nn.Linear(4, 1))
        for _ in range(3):
            fake = checkpoint(generator, torch.ones(3, 2, requires_grad=True), use_reentrant=False)
            critic(fake).mean().backward()
        """,
        imported=COMPILER,  # `checkpoint` imports it
    )
    dump = launched.dump()
    assert {record.step for record in dump} == {0, 1, 2}
    for step in range(3):
        names = names_of(dump.select(step=step))
        assert {"0/addmm_0", "0/addmm_1", "Critic.0/addmm_0", "1/tanh_backward_0"} <= names


def test_a_capture_of_the_script_wins(launched: Launched) -> None:
    done = launched.run(
        """
        import sys, torch, ascend_dump
        model = torch.nn.Linear(4, 2)
        for _ in range(2):
            model(torch.ones(3, 4))
        with ascend_dump.capture(model, path=sys.argv[1] + "/own", strict=True) as cap:
            for _ in range(2):
                model(torch.ones(3, 4))
        model(torch.ones(3, 4))
        own = cap.dump()
        assert {record.step for record in own} == {0, 1}, own
        assert not torch.nn.modules.module._global_forward_pre_hooks
        """
    )
    assert done.stderr.count("the capture of ASCEND_DUMP ends here") == 1
    assert "wrote nothing" not in done.stderr
    assert {record.step for record in launched.dump()} == {0, 1}
    assert [manifest["state"] for manifest in launched.manifests()] == ["complete"]


def test_a_capture_of_the_script_comes_first(launched: Launched) -> None:
    done = launched.run(
        """
        import sys, torch, ascend_dump
        model = torch.nn.Linear(4, 2)
        with ascend_dump.capture(model, path=sys.argv[1] + "/own", strict=True) as cap:
            model(torch.ones(3, 4))
        model(torch.ones(3, 4))
        assert len(cap.dump())
        """
    )
    assert "another capture of PyTorch is active" in done.stderr
    assert not list(launched.dumps.rglob("index.jsonl"))


def test_children(launched: Launched) -> None:
    """Each process that trains writes a run of its own, workers that only load are silent."""
    done = launched.run_whole(
        """
        import multiprocessing, os, torch

        def train(start):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 2)
            for _ in range(2):
                model(torch.full((1, 4), float(start))).sum().backward()

        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): return torch.ones(4) * index

        if __name__ == "__main__":
            train(1)
            for number, method in enumerate(("fork", "spawn")):
                child = multiprocessing.get_context(method).Process(target=train, args=(number + 2,))
                child.start()
                child.join()
                assert child.exitcode == 0
            loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context="fork")
            print(sum(batch.sum().item() for batch in loader))
            child = os.fork()
            if child == 0:
                train(4)
                os._exit(0)  # as a crash would: nothing is finished
            os.waitpid(child, 0)
        """,
        "--quiet",
    )
    assert (done.stdout, done.stderr) == ("24.0\n", "")
    dump = launched.dump()
    starts = {}
    for run in dump.known_values("run"):
        records = list(dump.select("addmm_0", io="input", index=1, run=run))
        if records:  # what a crash left may be anything
            starts[int(records[0].numpy()[0, 0])] = [record.step for record in records]
    assert {start: starts[start] for start in (1, 2, 3)} == {1: [0, 1], 2: [0, 1], 3: [0, 1]}
    states = sorted(manifest["state"] for manifest in launched.manifests())
    assert states == ["complete", "complete", "complete", "running"]


def test_a_child_that_another_thread_forks_says_nothing_of_the_thread_it_has_not(launched: Launched) -> None:
    done = launched.run(
        """
        import os, threading, torch

        model = torch.nn.Linear(4, 2)

        def in_a_child():
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

        model(torch.full((1, 4), 1.0))
        thread = threading.Thread(target=in_a_child)
        thread.start()
        thread.join()
        model(torch.full((1, 4), 3.0))
        """,
        "--quiet",
    )
    assert (done.stdout, done.stderr) == ("", "")
    records = launched.dump().select("addmm_0", io="input", index=1)
    assert [int(record.numpy()[0, 0]) for record in records] == [1, 3]


COMPILED = """
import gc, os, sys, torch

def train(how, start):
    backend = "aot_eager" if how == "wrapped" else "eager"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    if how == "in place":
        model.compile(backend=backend)
        call = model
    elif how == "wrapped":
        call = torch.compile(model, backend=backend)
    elif how == "a part":
        model[0] = torch.compile(model[0], backend=backend)
        call = model
    elif how == "decorator":
        @torch.compile(backend=backend)
        def call(x):
            return model(x) + model(-x)
    else:
        call = torch.compile(backend=backend)(lambda x: model(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        loss = call(torch.full((3, 4), start + number)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), type(call).__name__, torch.compiler.is_compiling())

gc.freeze()  # or each child collects what was imported when it ends
for number, how in enumerate(("in place", "wrapped", "a part", "function", "decorator")):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[1]}/{how}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
        train(how, 1 + number / 8)
        break
    assert os.waitpid(child, 0)[1] == 0, how
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Launched, Path]:
    """One launched process whose children compile in different ways, and where the same ran without the launcher."""
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("only PyTorch 2.6 and later runs compiled code eagerly for a while")
    launched, plain = Launched(tmp_path_factory.mktemp("launched")), tmp_path_factory.mktemp("plain")
    launched.run(COMPILED, "--steps", "1|3", imported=COMPILER)
    run_preloaded(launched.directory / "train.py", str(plain), check=True, imported=COMPILER)
    return launched, plain


@pytest.mark.parametrize(
    ("number", "how", "model"),
    [
        (0, "in place", "Sequential"),
        (1, "wrapped", "Sequential"),
        (2, "a part", "Sequential"),
        (3, "function", "<lambda>"),
        (4, "decorator", "call"),
    ],
)
def test_compiled_code_runs_eagerly_in_selected_steps(
    number: int, how: str, model: str, compiled: tuple[Launched, Path]
) -> None:
    launched, plain = compiled
    loss, *rest = (launched.directory / f"{how}.out").read_text().split()
    plain_loss, *plain_rest = (plain / f"{how}.out").read_text().split()
    assert (float(loss), rest) == (pytest.approx(float(plain_loss), rel=1e-5), plain_rest)
    assert (launched.directory / f"{how}.err").read_text().count("AD212") == (0 if how == "a part" else 1)
    runs = sorted(launched.dump().known_values("run"))
    assert len(runs) == 5
    dump = launched.dump().select(run=runs[number])
    assert {record.step for record in dump} == {1, 3}
    assert {record.model for record in dump} == {model}
    calls = 2 if how == "decorator" else 1
    for step in (1, 3):
        value = 1 + number / 8 + step
        records = list(dump.select("0/addmm_*", io="input", index=1, step=step))
        assert [record.numpy()[0, 0] for record in records] == [value, -value][:calls]
    first, second = (names_of(dump.select("0/*", step=step)) for step in (1, 3))
    assert first == second


def test_a_script_without_modules_says_so(launched: Launched) -> None:
    done = launched.run("import torch; print(torch.ones(2).sum().item())")
    assert done.stdout == "2.0\n"
    assert "it called no torch.nn.Module with parameters" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(launched.dumps.rglob("*.json*"))


def test_a_process_that_only_starts_ranks_is_not_told(tmp_path: Path) -> None:
    for command in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        done = subprocess.run(
            [sys.executable, *command, "--help"],
            env={**os.environ, "ASCEND_DUMP": f"path={tmp_path}"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        assert "ASCEND_DUMP" not in done.stderr


def test_a_step_that_is_not_reached(launched: Launched) -> None:
    done = launched.run("import torch; m = torch.nn.Linear(2, 2); m(torch.ones(2)); m(torch.ones(2))", "--steps", "7")
    assert done.stderr == (
        "ascend-dump: the capture wrote nothing\n  - steps=7 was not reached: 2 steps ran [AD303]\n"
        "Hint: see `ascend-dump explain AD303`\n"
    )


def test_another_rank(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    program = "import torch; m = torch.nn.Linear(2, 2); m(torch.ones(2)); m(torch.ones(2))"
    done = launched.run(program, "--ranks", "0")
    assert done.stderr == ""
    assert not list(launched.dumps.rglob("*.json*"))
    monkeypatch.setenv("RANK", "0")
    done = launched.run(program, "--ranks", "2")
    expected = (
        "ascend-dump: rank 0: nothing is captured: ranks=2 selects no rank of this run, whose world size is 2 [AD303]"
    )
    assert done.stderr.startswith(expected)
    monkeypatch.setenv("RANK", "1")
    launched.run(program, "--ranks", "1")
    assert {record.rank for record in launched.dump()} == {1}
    assert [path.name for path in launched.dumps.iterdir()] == ["worldsize2_global_rank1"]


def test_a_program_that_fails(launched: Launched) -> None:
    """Its exit code and its traceback are its own; what was captured is complete."""
    done = launched.run(
        """
        import torch
        model = torch.nn.Linear(2, 2)
        model(torch.ones(2))
        model(torch.ones(3))
        """,
        "--quiet",
        code=1,
    )
    assert done.stderr.splitlines()[-1].startswith("RuntimeError")
    assert "ascend_dump" not in done.stderr.splitlines()[-1]
    assert {record.step for record in launched.dump()} >= {0}
    assert launched.manifests()[0]["state"] == "complete"


def test_a_compiled_model(launched: Launched) -> None:
    done = launched.run(
        """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.inner(x).sin()
        model, ran = Net(), []
        def backend(graph, inputs):
            def run(*args):
                ran.append(1)
                return graph(*args)
            return run
        fast = torch.compile(model, backend=backend)
        for _ in range(4):
            fast(torch.ones(2))
        print(len(ran))
        """,
        "--steps",
        "1",
        imported=COMPILER,
    )
    assert done.stdout == "3\n"
    assert done.stderr.count("AD212") == 1
    assert {"inner/addmm_0", "sin_0"} <= names_of(launched.dump()), names_of(launched.dump())
    assert {record.step for record in launched.dump()} == {1}
