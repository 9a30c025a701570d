"""The start-up hook never harms a program: files that wait or never end, broken packages, no place for a message."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from interpreters import HOOK_FILES, STARTUP, Interpreter, make_interpreter

SITE = STARTUP / "site"

#: Where a message has no place to go: what is run before the interpreter under test takes the process over.
NO_STDERR = {
    "closed": "os.close(2)",
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
}
#: What stands where the package should be.
BROKEN = {
    "an error": "raise RuntimeError('broken')",
    "the end of the program": "raise SystemExit('broken')",
    "an error that cannot be shown": """
class Shy(Exception):
    def __repr__(self):
        raise ValueError("no")

raise Shy
""",
}


def after(what: str, *arguments: str) -> list[str]:
    """Arguments of an interpreter that does this, and then becomes one of the same kind with these arguments."""
    return ["-c", f"import os, sys, resource; {what}; os.execv(sys.executable, [sys.executable, *{arguments!r}])"]


class Road(NamedTuple):
    """How an interpreter is armed: by its start-up hook, or by the sitecustomize of `ascend-dump run`."""

    interpreter: Interpreter
    path: str

    def run(self, *args: str, below: object = "", **environment: object) -> subprocess.CompletedProcess[str]:
        """below: a directory of the user's on PYTHONPATH."""
        return self.interpreter.run(*args, PYTHONPATH=f"{self.path}:{below}", **environment)


@pytest.fixture(params=["hook", "run"])
def road(request: pytest.FixtureRequest, interpreter: Interpreter, bare_interpreter: Interpreter) -> Road:
    return Road(interpreter, "") if request.param == "hook" else Road(bare_interpreter, str(SITE))


class TestFiles:
    def test_a_pipe_does_not_hang_the_interpreter(self, road: Road, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        done = road.run("-c", "print('fine')", ASCEND_DUMP=pipe)
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert "not a regular file" in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/stdin", "/dev/tty"])
    def test_a_device_is_not_read(self, road: Road, device: str) -> None:
        limit = "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))"
        done = road.run(*after(limit, "-c", "print('fine')"), ASCEND_DUMP=device)
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert "cannot be read" in done.stderr

    def test_of_a_huge_file_only_the_beginning_is_read(self, road: Road, tmp_path: Path) -> None:
        huge = tmp_path / "huge.json"
        huge.touch()
        os.truncate(huge, 2**36)
        limit = "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))"
        done = road.run(*after(limit, "-c", "print('fine')"), ASCEND_DUMP=huge)
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert f"{huge}: larger than 1048576 bytes" in done.stderr


class TestBrokenPackage:
    @pytest.mark.parametrize("what", BROKEN)
    @pytest.mark.parametrize("road", ["hook", "run"])
    def test_the_program_runs(self, tmp_path: Path, road: str, what: str) -> None:
        made, path = broken_installation(tmp_path, road, what)
        done = made.run("-c", "print('fine')", ASCEND_DUMP="1", PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert "Traceback" not in done.stderr
        if "shown" not in what:
            assert done.stderr.startswith("ascend-dump: ASCEND_DUMP is ignored")

    @pytest.mark.parametrize("what", BROKEN)
    @pytest.mark.parametrize("stderr", NO_STDERR)
    @pytest.mark.parametrize("road", ["hook", "run"])
    def test_without_a_place_for_messages(self, tmp_path: Path, road: str, stderr: str, what: str) -> None:
        made, path = broken_installation(tmp_path, road, what)
        done = made.run(*after(NO_STDERR[stderr], "-c", "print('fine')"), ASCEND_DUMP="1", PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (0, "fine\n")

    @pytest.mark.parametrize("module", ["wrapt", "ascend_dump_toy"])
    def test_a_module_that_ends_the_program_when_it_is_imported(self, road: Road, tmp_path: Path, module: str) -> None:
        (tmp_path / f"{module}.py").write_text("raise SystemExit('my own command')")
        code = "import toyframe; print('fine')"
        done = road.run("-c", code, below=tmp_path, ASCEND_DUMP="1")
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert "SystemExit('my own command')" in done.stderr
        strict = road.run("-c", code, below=tmp_path, ASCEND_DUMP="1", ASCEND_DUMP_STRICT="1")
        assert (strict.returncode, strict.stdout) == (2, "")


def broken_installation(where: Path, road: str, what: str) -> tuple[Interpreter, Path]:
    """An interpreter with our hook and a package that cannot be imported, and its PYTHONPATH."""
    made = make_interpreter(where / "venv")
    (made.site / "ascend_dump.py").write_text(BROKEN[what])
    if road == "run":
        return made, SITE
    for name in HOOK_FILES:
        shutil.copy(STARTUP / name, made.site)
    return made, where / "none"


@pytest.mark.parametrize("stderr", NO_STDERR)
def test_a_wrong_value_without_a_place_for_messages(road: Road, stderr: str) -> None:
    done = road.run(*after(NO_STDERR[stderr], "-c", "print('fine')"), ASCEND_DUMP="steps=x")
    assert (done.returncode, done.stdout) == (0, "fine\n")


@pytest.mark.parametrize("stderr", NO_STDERR)
def test_an_empty_dump_without_a_place_for_messages(road: Road, stderr: str, tmp_path: Path) -> None:
    code = "import toyframe; toyframe.Network(one=abs)(1); print('fine')"
    settings = f"steps=7,path={tmp_path}"
    assert "the capture wrote nothing" in road.run("-c", code, ASCEND_DUMP=settings).stderr
    done = road.run(*after(NO_STDERR[stderr], "-c", code), ASCEND_DUMP=settings)
    assert (done.returncode, done.stdout) == (0, "fine\n")
