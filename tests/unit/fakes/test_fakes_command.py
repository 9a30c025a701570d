"""`python -m ascend_dump.fakes`: a program of a user on the simulated device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_dump.fakes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_program_sees_the_fake_and_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'beside it'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, acl, helper\n"
        "if __name__ == '__main__':\n"
        "    print(acl.__ascend_dump_fake__, sys.argv[1:], helper.WORD)\n"
        "    sys.exit(5)\n"
    )
    done = run("acl", "--", str(program), "--steps", "3")
    assert (done.returncode, done.stdout.strip()) == (5, "True ['--steps', '3'] beside it")


def test_an_unknown_fake_and_a_missing_program_are_told(tmp_path: Path) -> None:
    for arguments in (["paddle", "--", str(tmp_path / "x.py")], ["acl", "train.py"], []):
        done = run(*arguments)
        assert done.returncode == 1
        assert "acl" in done.stderr
        assert "Traceback" not in done.stderr
