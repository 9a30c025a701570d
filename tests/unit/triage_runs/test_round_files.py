"""The files of a triage on disk: its state, and the outlines of the programs that it runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.dump_format import OUTLINE_SCHEMA, OutlineLine, Over, outline_name, read_outlines, why_over
from ascend_dump.triage_runs import STATE, run_triage

FINITE = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


def begun(path: Path) -> Path:
    """The state of a triage that was killed behind its first round."""
    with pytest.raises(ascend_dump.CaptureError):
        run_triage(["true"], path=path)
    (file,) = path.glob(f"*/{STATE}")
    file.write_text(json.dumps({**json.loads(file.read_text()), "ended": False}))
    return file


class TestState:
    def test_it_is_private(self, tmp_path: Path) -> None:
        file = begun(tmp_path / "t")
        assert os.stat(file).st_mode & 0o777 == 0o600
        assert os.stat(file.parent).st_mode & 0o777 == 0o700

    def test_another_command_begins_a_triage_of_its_own(self, tmp_path: Path) -> None:
        begun(tmp_path)
        with pytest.raises(ascend_dump.CaptureError):
            run_triage(["true", "again"], path=tmp_path)
        assert len(list(tmp_path.glob(f"*/{STATE}"))) == 2

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "[",
            "[]",
            "{}",
            "[" * 100_000,
            '{"schema": "ascend-dump/triage-state/1", "rounds": 3}',
            '{"schema": "ascend-dump/triage-state/1", "rounds": [{"number": "1"}]}',
            '{"schema": "ascend-dump/triage-state/1", "rounds": [{"number": 1, "name": "1-program", "finished": 1}]}',
        ],
    )
    def test_a_state_that_is_none_is_left_alone(self, tmp_path: Path, content: str) -> None:
        file = begun(tmp_path)
        file.write_text(content)
        with pytest.raises(ascend_dump.CaptureError):
            run_triage(["true"], path=tmp_path)
        assert file.read_text() == content
        assert len(list(tmp_path.glob(f"*/{STATE}"))) == 2

    def test_a_number_of_a_process_that_was_given_again_is_no_round_that_runs(self, tmp_path: Path) -> None:
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        try:
            time.sleep(0.05)  # the system tells processes apart by hundredths of a second
            file = begun(tmp_path)
            state = json.loads(file.read_text())
            state["rounds"][0].update(finished=False, process=other.pid)
            file.write_text(json.dumps(state))
            with pytest.raises(ascend_dump.CaptureError, match="called no PyTorch module"):
                run_triage(["true"], path=tmp_path)
            state["rounds"][0]["birth"] = ""  # nobody can tell
            file.write_text(json.dumps(state))
            with pytest.raises(ascend_dump.CaptureError, match=f"still runs, as process {other.pid}"):
                run_triage(["true"], path=tmp_path)
        finally:
            other.communicate(b"\n")

    def test_an_error_at_its_start_leaves_it_unlocked(self, tmp_path: Path) -> None:
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        try:
            file = begun(tmp_path)
            state = json.loads(file.read_text())
            state["rounds"][0].update(finished=False, process=other.pid, birth="")
            file.write_text(json.dumps(state))
            for _ in range(2):
                with pytest.raises(ascend_dump.CaptureError, match="still runs, as process"):
                    run_triage(["true"], path=tmp_path)
        finally:
            other.communicate(b"\n")
        assert list(tmp_path.glob(f"*/{STATE}")) == [file]

    def test_a_directory_that_cannot_be_locked_is_an_error_with_its_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ascend_dump.WriteError, match="No locks available"):
            run_triage(["true"], path=tmp_path)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    def test_what_is_to_be_removed_lies_in_the_directory_of_the_triage(self, tmp_path: Path) -> None:
        file = begun(tmp_path / "t")
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file").write_text("mine")
        state = json.loads(file.read_text())
        for name in ("../../precious", str(precious), "..", ""):
            state["rounds"] = [{"number": 1, "name": name, "finished": False}]
            file.write_text(json.dumps(state))
            with pytest.raises(ascend_dump.CaptureError):
                run_triage(["true"], path=tmp_path / "t")
        assert (precious / "file").read_text() == "mine"

    def test_two_at_once_do_not_share_a_state(self, tmp_path: Path) -> None:
        slow = [sys.executable, "-c", "import time; time.sleep(3)"]
        command = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(tmp_path), "--run", "--", *slow]
        both = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        assert [one.wait(60) for one in both] == [Exit.USAGE] * 2
        assert len(list(tmp_path.glob(f"*/{STATE}"))) == 2


class TestOutlines:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
    @given(rows=st.lists(st.tuples(st.integers(0, 99), st.lists(FINITE, min_size=1, max_size=4)), max_size=20))
    def test_what_was_written_is_read(self, tmp_path: Path, rows: list[tuple[int, list[Any]]]) -> None:
        lines = [OutlineLine(schema=OUTLINE_SCHEMA)]
        lines += [OutlineLine(step=step, values=tuple(values)) for step, values in rows]
        lines.append(OutlineLine(over=Over.ENDED))
        (tmp_path / outline_name(3, 77)).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        (found,) = read_outlines(tmp_path)
        assert found.steps == {step: tuple(values) for step, values in rows}
        assert (found.over, why_over(tmp_path)) == ("ended", ["ended"])

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
    @given(content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
    def test_no_bytes_are_too_odd(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "0-1.jsonl").write_bytes(content)
        assert len(read_outlines(tmp_path)) == 1
        assert len(why_over(tmp_path)) == 1

    def test_a_line_that_is_being_written_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "0-1.jsonl").write_text('{"step":0,"values":[1.0]}\n{"step":1,"values":[2.0')
        (found,) = read_outlines(tmp_path)
        assert (found.steps, found.last, found.over) == ({0: (1.0,)}, 0, "")

    def test_ranks_come_in_their_order(self, tmp_path: Path) -> None:
        for rank in (10, 2, 0):
            (tmp_path / outline_name(rank, 5)).write_text("")
        (tmp_path / "x.jsonl").write_text("")
        assert [one.name for one in read_outlines(tmp_path)] == ["0-5", "2-5", "10-5", "x"]

    def test_a_directory_that_is_not_there_has_none(self, tmp_path: Path) -> None:
        assert read_outlines(tmp_path / "none") == []


def test_a_dump_beside_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", "--path", str(tmp_path), str(tmp_path)]) == Exit.USAGE
    assert "--path needs --run" in capsys.readouterr().err
