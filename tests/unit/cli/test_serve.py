"""`ascend-dump serve` as a process: it tells its address, answers there, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from places import REPOSITORY
from report_pages import write_training

from ascend_dump.cli import Exit, main


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("dumps") / "dump", steps=1, ranks=1)


@pytest.mark.parametrize("json_too", [False, True])
def test_serves_until_it_is_interrupted(dump: Path, json_too: bool) -> None:
    command = [sys.executable, "-m", "ascend_dump", "serve", str(dump), *(["--json"] if json_too else [])]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        if json_too:
            text = process.stdout.readline() + process.stdout.readline() + process.stdout.readline()
            document = json.loads(text)
            assert document["schema"] == "ascend-dump/serve/1"
            address = document["address"]
        else:
            assert process.stdout.readline() == "nothing found: Nothing looks wrong by itself.\n"
            address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"Nothing looks wrong" in answer.read()
        process.send_signal(signal.SIGINT)
        try:
            rest, errors = process.communicate(timeout=900)
        finally:
            process.kill()  # a process of a background job ignores SIGINT, and the block would wait for it
    assert process.returncode == Exit.OK
    assert rest == ""
    assert "Traceback" not in errors
    assert address not in errors


def test_a_dump_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "none")]) == Exit.UNREADABLE
    assert "AD403" in capsys.readouterr().err


def test_a_port_that_is_none(dump: Path) -> None:
    assert main(["serve", str(dump), "--port", "70000"]) == Exit.USAGE
