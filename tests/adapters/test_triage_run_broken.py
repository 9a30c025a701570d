"""`ascend-dump triage --run` where something goes wrong: interruptions, commands that fail, unwritable places."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from preloaded import COMPILER, write_python

from ascend_dump.cli import Exit, main

pytest.importorskip("torch")

#: The first run goes through; the one whose number is in the file `hang` stands still in its second step.
PROGRAM = """
    import sys, time, torch
    from pathlib import Path
    torch.set_num_threads(1)
    torch.manual_seed(0)
    here = Path(__file__).parent
    with open(here / "runs", "a") as runs:
        runs.write("x")
    number = len((here / "runs").read_text())
    model = torch.nn.Linear(4, 4)
    for step in range(5):
        x = model(torch.ones(2, 4))
        if step == 3:
            torch.log(x * 0 - 1).mul(2)
            model.weight.data.fill_(float("nan"))
        if step == 1 and (here / "hang").exists() and number == int((here / "hang").read_text()):
            (here / "hangs").write_text("")
            time.sleep(100)
"""


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = str(write_python(directory / "python", COMPILER))
        self.file = directory / "program.py"

    def command(self, text: str, *arguments: str) -> list[str]:
        self.file.write_text(textwrap.dedent(text))
        return [self.python, str(self.file), *arguments]

    def start(self, *command: str) -> subprocess.Popen[str]:
        mine = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(self.directory / "t"), "--run", "--"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*mine, *command], text=True, cwd=self.directory, start_new_session=True, **pipes)

    def run(self, *command: str, code: int) -> tuple[str, str]:
        child = self.start(*command)
        out, err = child.communicate(timeout=200)
        assert child.returncode == code, (out, err)
        return out, err

    def wait_for(self, name: str) -> None:
        end = time.monotonic() + 600
        while not (self.directory / name).exists():
            assert time.monotonic() < end, f"{name} did not come"
            time.sleep(0.05)

    def state(self) -> dict[str, Any]:
        (file,) = self.directory.glob("t/*/triage.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_was_killed_goes_on_with_the_round_it_was_in(place: Place) -> None:
    command = place.command(PROGRAM)
    (place.directory / "hang").write_text("2")
    child = place.start(*command)
    place.wait_for("hangs")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdout, child.stderr):  # the program has their other ends
        assert pipe is not None
        pipe.close()
    running = place.state()["rounds"][1]["process"]
    said = place.run(*command, code=Exit.USAGE)[1]
    assert f"round 2 of the interrupted triage in {place.directory}/t/" in said
    assert f"kill -- -{running}" in said
    os.killpg(running, signal.SIGKILL)
    end = time.monotonic() + 600
    while _is_there(running):
        assert time.monotonic() < end
        time.sleep(0.05)
    out, said = place.run(*command, code=Exit.DIFFERENT)
    assert "resumes" in said
    assert "was run before" in said
    assert "fill__0 (aten::fill_), step 3" in out
    assert (place.directory / "runs").read_text() == "xxx"
    assert len(list(place.directory.glob("t/*"))) == 1


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def test_an_interruption_reaches_the_program_and_the_next_run_goes_on(place: Place) -> None:
    command = place.command(PROGRAM)
    (place.directory / "hang").write_text("1")
    child = place.start(*command)
    place.wait_for("hangs")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=900)
    assert child.returncode == Exit.INTERRUPTED
    assert "interrupted: the same command line resumes" in said
    assert not _is_there(place.state()["rounds"][0]["process"])
    out, _ = place.run(*command, code=Exit.DIFFERENT)
    assert "fill__0 (aten::fill_), step 3" in out


def test_a_command_that_fails_before_its_model_keeps_its_exit_code(place: Place) -> None:
    out, said = place.run(*place.command("import torch, sys\nsys.exit('no data')"), code=1)
    assert "the command ended with exit code 1 before it called a model" in out
    assert "no data" in said


def test_a_command_that_fails_by_itself_keeps_its_exit_code(place: Place) -> None:
    text = """
        import sys, torch
        model = torch.nn.Linear(4, 4)
        for step in range(3):
            model(torch.ones(2, 4))
        sys.exit(37)
    """
    out, _ = place.run(*place.command(text), code=37)
    assert "ended with exit code 37 in step 2" in out
    assert "no operator made NaN or Inf" in out


def test_an_exception_at_a_nan_hides_nothing(place: Place) -> None:
    text = """
        import torch
        model = torch.nn.Linear(4, 4)
        for step in range(9):
            loss = model(torch.ones(2, 4)).sum()
            loss = torch.log(loss * 0 + 1 - 2 * float(step == 5))
            if loss != loss:
                raise SystemExit("the loss is NaN")
    """
    out, _ = place.run(*place.command(text), code=Exit.DIFFERENT)
    assert "log_0 (aten::log), step 5" in out


def test_a_command_without_python_is_told(place: Place) -> None:
    _, said = place.run("true", code=Exit.USAGE)
    assert "called no PyTorch module with parameters" in said


@pytest.mark.parametrize(("command", "said"), [("nothing-there", "no such program on PATH"), (__file__, "Python file")])
def test_a_command_that_cannot_start_makes_nothing(
    tmp_path: Path, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["triage", "--path", str(tmp_path / "t"), "--run", "--", command]) == Exit.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_a_path_that_takes_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["triage", "--path", str(tmp_path / "file" / "t"), "--run", "--", "true"]) == Exit.USAGE
    assert "cannot be created" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--determinism", "dumps"], "--determinism needs --run"),
        (["--confirm", "--run", "--", "true"], "confirm is for a comparison with a reference"),
        (["--step", "3", "--run", "--", "true"], "steps is for a comparison"),
        (["--reference", "'", "--run", "--", "true"], "is not a command line"),
        (["--reference", "true", "--determinism", "--run", "--", "true"], "compares a program with itself"),
        (["--symptom", "zero", "--determinism", "--run", "--", "true"], "symptom='zero' was given with determinism"),
        (["a", "b", "c"], "3 dumps were given, expected a dump and its reference"),
    ],
)
def test_wrong_options_are_told(
    tmp_path: Path,
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["triage", *options]) == Exit.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "triage").exists()


def test_the_limit_of_bytes_holds_for_all_rounds(place: Place) -> None:
    command = place.command(PROGRAM)
    mine = ["triage", "--path", str(place.directory / "t"), "--max-bytes", "3KB", "--run", "--", *command]
    done = subprocess.run([sys.executable, "-m", "ascend_dump", *mine], capture_output=True, text=True, timeout=200)
    assert done.returncode in (Exit.DIFFERENT, Exit.USAGE, Exit.UNREADABLE), done.stderr
    assert "max_bytes=" in done.stdout + done.stderr
    assert sum(one["nbytes"] for one in place.state()["rounds"] if one["finished"]) < 20_000


def test_a_dump_that_is_cut_off_proves_nothing(place: Place) -> None:
    place.command(PROGRAM)
    mine = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(place.directory / "t"), "--run", "--"]
    limited = ["bash", "-c", 'ulimit -f 3; exec "$@"', "bash", *mine, sys.executable, str(place.file)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=200)
    assert done.returncode == Exit.UNREADABLE, done.stderr
    assert "the dump is incomplete: solve the problems in the notes" in done.stdout
    assert "File too large" in done.stdout
