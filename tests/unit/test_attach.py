"""ASCEND_DUMP=wait and `ascend-dump attach`, with a framework that is as small as one can be."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreters import Interpreter

import ascend_dump
import ascend_dump.cli.attach as attach_command
from ascend_dump.cli import Exit, main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process numbers are looked at in /proc")

SCHEMA = "ascend-dump/attach/1"

#: One line of input is one call, of so many elements; `fork` makes a child that goes on, and `exit` ends.
PROGRAM = """
import os, sys
import numpy as np
import toyframe

network = toyframe.Network(root=np.sqrt, twice=lambda value: value * 2)
print(os.getpid(), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "fork":
        child = os.fork()
        print(child or os.getpid(), flush=True)
        if child:
            os.waitpid(child, 0)
    elif word == "exit":
        break
    else:
        print(network(np.full(int(word), 4.0)).tolist(), flush=True)
"""


class Program:
    """A process that waits, and calls its network when it is told to."""

    def __init__(self, interpreter: Interpreter, place: Path, **environment: str) -> None:
        place.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "PYTHON"))}
        self.process = subprocess.Popen(
            [str(interpreter.python), "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=place,
            env={**kept, "ASCEND_DUMP": "wait", **environment},
        )
        self.pid = int(self.tell())

    def tell(self, line: str = "") -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.process.communicate()[1]
        return answer.strip()

    def end(self) -> str:
        """What it has said on stderr."""
        out, err = self.process.communicate("exit\n", timeout=900)
        assert (self.process.returncode, out) == (0, "")
        return err


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sockets of this test; those of other tests have another directory."""
    place = tmp_path / "runtime"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.delenv("ASCEND_DUMP", raising=False)
    return place


@pytest.fixture
def start(interpreter: Interpreter, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(**environment: str) -> Program:
        started.append(Program(interpreter, tmp_path / "work", **environment))
        return started[-1]

    yield begin
    for one in started:
        if one.process.stdout is not None and not one.process.stdout.closed:
            one.process.kill()
            one.process.communicate()


def attach(*words: Any) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["attach", *map(str, words)])
    return code, out.getvalue(), err.getvalue()


def steps(path: Path) -> list[tuple[Any, int]]:
    """(step, elements) of each output of the first layer."""
    found = ascend_dump.open(path).select(op="root", io="output")
    return sorted((record.step, record.shape[0]) for record in found)


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 600
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def wait_until_armed(waiting: Any) -> None:
    """Until a command has attached and says that it waits for the first call."""
    while "waiting for the next call of a model" not in (line := waiting.stderr.readline()):
        assert line, "it has ended"


def capture_of(program: Program) -> Any:
    [found] = [one for one in json.loads(attach("--list", "--json")[1])["processes"] if one["pid"] == program.pid]
    return found["capture"]


def test_two_captures_in_turn(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    assert program.tell("3") == "[4.0, 4.0, 4.0]"
    for number in (1, 2):
        path = tmp_path / f"dumps{number}"
        code, out, err = attach(program.pid, "--steps", "0|2", "--path", path, "--no-wait")
        assert (code, out) == (Exit.OK, "")
        assert f"steps 0|2 from the next call of a model on, into {path}/worldsize1_global_rank0\n" in err
        for elements in range(1, 7):
            assert program.tell(str(elements)) == str([4.0] * elements)
        assert capture_of(program)["state"] == "ended"
        assert steps(path) == [(0, 1), (2, 3)]
    assert program.end().count("dumped 2 steps") == 2


def test_it_waits_for_the_end_and_says_how_far_it_is(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    command = [sys.executable, "-m", "ascend_dump", "attach", str(program.pid), "--steps", "0", "--path", "d"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as waiting:
        wait_until_armed(waiting)
        program.tell("2")
        program.tell("2")
        err = waiting.communicate(timeout=900)[1]
    assert waiting.returncode == Exit.OK
    assert f"ascend-dump ls {tmp_path}/d/worldsize1_global_rank0/" in err
    assert steps(tmp_path / "d") == [(0, 2)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whoever_attached_may_go(start: Callable[..., Program], tmp_path: Path, how: signal.Signals) -> None:
    program = start()
    command = [sys.executable, "-m", "ascend_dump", "attach", str(program.pid), "--steps", "0-1", "--path", "d"]
    # A shell starts background jobs with SIGINT ignored, and all their processes ignore it.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as waiting:
        wait_until_armed(waiting)
        program.tell("1")
        waiting.send_signal(how)
        err = waiting.communicate(timeout=900)[1]
    if how == signal.SIGINT:
        assert waiting.returncode == Exit.INTERRUPTED
        assert f"the capture goes on; `ascend-dump attach --stop {program.pid}` stops it" in err
    for _ in range(2):
        program.tell("1")
    assert capture_of(program)["state"] == "ended"
    assert steps(tmp_path / "d") == [(0, 1), (1, 1)]


def test_a_second_one_is_refused_until_the_first_has_ended(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    assert attach(program.pid, "--path", tmp_path / "d", "--no-wait")[0] == Exit.OK
    code, _, err = attach(program.pid, "--path", tmp_path / "other", "--no-wait")
    assert code == Exit.USAGE
    assert f"process {program.pid} was attached to by process {os.getpid()} at " in err
    assert "steps=all into" in err
    assert "[AD302]" in err
    assert not (tmp_path / "other").exists()
    program.tell("1")
    assert attach("--stop", program.pid)[0] == Exit.OK
    program.tell("2")
    assert steps(tmp_path / "d") == [(0, 1)]
    assert attach("--stop", program.pid)[0] == Exit.USAGE


@pytest.mark.parametrize("seen", [False, True], ids=["before its first step was seen", "after it was seen"])
def test_another_capture_between_two_looks_is_not_followed(
    start: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    program = start()
    look = attach_command._look
    looks = 0

    def call_and_look(target: Any) -> Any:
        nonlocal looks
        looks += 1
        program.tell("3")
        if looks > seen:
            program.tell("3")
            assert attach("--steps", "0", "--path", tmp_path / "d", "--no-wait", program.pid)[0] == Exit.OK
        return look(target)

    monkeypatch.setattr(attach_command, "_look", call_and_look)
    code, _, said = attach("--steps", "0", "--path", tmp_path / "d", program.pid)
    assert looks == 1 + seen
    assert ("the capture has ended, and another one has begun" in said) == seen
    assert ("has begun another capture, so the result of this one is not known" in said) != seen
    assert code == (Exit.OK if seen else Exit.USAGE)
    assert capture_of(program)["state"] == "waiting"


def test_what_has_not_begun_is_taken_back(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    assert attach(program.pid, "--path", tmp_path / "d", "--no-wait")[0] == Exit.OK
    assert attach("--stop", "--all")[0] == Exit.OK
    program.tell("1")
    assert capture_of(program)["state"] == "ended"
    assert list((tmp_path / "d").iterdir()) == []
    assert program.end() == ""


def test_the_end_of_the_program_ends_the_capture(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    command = [sys.executable, "-m", "ascend_dump", "attach", str(program.pid), "--path", "d"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as waiting:
        until(lambda: capture_of(program))
        program.tell("1")
        until(lambda: capture_of(program)["state"] == "recording")
        program.end()
        err = waiting.communicate(timeout=900)[1]
    assert (waiting.returncode, "has ended, and its capture with it" in err) == (Exit.OK, True)
    assert steps(tmp_path / "d") == [(0, 1)]


def test_a_program_that_was_killed_is_told(start: Callable[..., Program], tmp_path: Path, runtime: Path) -> None:
    program = start()
    command = [sys.executable, "-m", "ascend_dump", "attach", str(program.pid), "--path", "d"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as waiting:
        until(lambda: capture_of(program))
        program.tell("1")
        program.process.kill()
        program.process.wait()
        err = waiting.communicate(timeout=900)[1]
    assert (waiting.returncode, "ended before its capture did" in err) == (Exit.USAGE, True)
    assert list((runtime / "ascend-dump").iterdir()) == [], "what it left was swept"


def test_what_the_process_refuses_is_told_here(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    (tmp_path / "file").write_text("")
    for words, code, said in (
        (("--path", tmp_path / "file" / "d"), Exit.USAGE, "[AD501]"),
        (("--steps", "a"), Exit.USAGE, "[AD102]"),
        (("--scene", "overflow"), Exit.USAGE, "toyframe knows no scene 'overflow'"),
        (("--framework", "paddle"), Exit.UNAVAILABLE, "no adapter is registered as 'paddle'"),
        (("--ranks", "1"), Exit.USAGE, "ranks=1 leaves out every process"),
    ):
        found, _, err = attach(program.pid, *words, "--no-wait")
        assert (found, said in err) == (code, True), err
    assert capture_of(program) is None
    assert program.end() == ""


def test_a_capture_that_cannot_begin_is_told(start: Callable[..., Program], tmp_path: Path) -> None:
    """The directory is there when it is looked at, and no more when the next call comes."""
    program = start()
    path = tmp_path / "d"
    command = [sys.executable, "-m", "ascend_dump", "attach", str(program.pid), "--path", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        until(lambda: capture_of(program))
        path.rmdir()
        path.write_text("")
        assert program.tell("1") == "[4.0]"
        err = waiting.communicate(timeout=900)[1]
    assert (waiting.returncode, "[AD501]" in err) == (Exit.USAGE, True)
    assert "is not a directory" in program.end()


def test_settings_of_the_process_hold_where_none_are_given(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start(ASCEND_DUMP="wait,path=own,steps=1,mode=output")
    assert attach(program.pid, "--no-wait")[0] == Exit.OK
    for elements in range(4):
        program.tell(str(elements))
    dump = ascend_dump.open(tmp_path / "work" / "own")
    assert {(record.step, record.io) for record in dump} == {(1, "output")}
    assert attach(program.pid, "--steps", "0", "--no-wait", "--path", tmp_path / "other")[0] == Exit.OK
    for _ in range(2):
        program.tell("1")
    assert {record.io for record in ascend_dump.open(tmp_path / "other")} == {"output"}


def test_a_wrong_value_is_told_by_the_process(interpreter: Interpreter) -> None:
    done = interpreter.run("-c", "import toyframe", ASCEND_DUMP="wait,step=1")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ASCEND_DUMP='wait,step=1' is ignored" in done.stderr


def test_a_process_without_a_framework_waits_for_nobody(interpreter: Interpreter, runtime: Path) -> None:
    code = "import os, sys, threading; print(os.listdir(sys.argv[1]), threading.active_count(), 'numpy' in sys.modules)"
    done = interpreter.run("-c", code, str(runtime), ASCEND_DUMP="wait")
    assert (done.stdout, done.stderr) == ("[] 1 False\n", "")


def test_a_forked_child_is_attached_to_by_itself(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start()
    assert attach(program.pid, "--path", tmp_path / "parent", "--steps", "0-9", "--no-wait")[0] == Exit.OK
    program.tell("1")
    child = int(program.tell("fork"))
    assert child != program.pid
    assert program.process.stdout is not None
    assert int(program.process.stdout.readline()) == child
    pids = {one["pid"] for one in json.loads(attach("--list", "--json")[1])["processes"]}
    assert pids == {program.pid, child}
    assert attach(child, "--path", tmp_path / "child", "--steps", "0", "--no-wait")[0] == Exit.OK
    # The child reads the lines now.
    for _ in range(2):
        program.tell("5")
    assert steps(tmp_path / "child") == [(0, 5)]
    program.end()


def test_several_at_once(start: Callable[..., Program], tmp_path: Path) -> None:
    programs = [start(RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    listed = attach("--list")[1].splitlines()
    assert listed[0].split() == ["pid", "rank", "state", "command"]
    assert [line.split()[:3] for line in listed[1:]] == [
        [str(one.pid), str(rank), "waiting"] for rank, one in enumerate(programs)
    ]
    assert attach("--all", "--steps", "0", "--path", tmp_path / "d", "--no-wait")[0] == Exit.OK
    assert [line.split()[2] for line in attach()[1].splitlines()[1:]] == ["attached", "attached"]
    for number, one in enumerate(programs):
        for _ in range(2):
            one.tell(str(number + 1))
    assert {(record.rank, record.shape[0]) for record in ascend_dump.open(tmp_path / "d")} == {(0, 1), (1, 2)}
    code, _, err = attach("--all", "--ranks", "1", "--steps", "0", "--path", tmp_path / "one", "--no-wait")
    assert (code, "(rank 0): ranks=1 leaves it out" in err) == (Exit.OK, True)


def test_who_cannot_be_attached_to(tmp_path: Path) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    code, _, err = attach(done.pid)
    assert (code, "there is no process with this id here" in err) == (Exit.USAGE, True)
    code, _, err = attach(os.getpid(), "--json")
    assert (code, "it was not started with ASCEND_DUMP=wait" in err) == (Exit.USAGE, True)
    assert attach("--all")[0] == Exit.USAGE
    assert attach("0")[0] == Exit.USAGE
    assert attach() == (
        Exit.OK,
        "",
        "ascend-dump: no process of this user is waiting: start one with ASCEND_DUMP=wait\n",
    )


@pytest.mark.parametrize("words", [["--stop"], ["--steps", "0"], ["--no-wait"], ["--framework", "torch"]])
def test_what_is_asked_of_no_process_is_refused(words: list[str]) -> None:
    code, out, err = attach(*words)
    assert (code, out) == (Exit.USAGE, "")
    assert "no process is given" in err
    code, _, err = attach("--all", 1, *words)
    assert (code, "--all and PIDs are both given" in err) == (Exit.USAGE, True)


def test_ranks_that_the_process_itself_selects_are_told(start: Callable[..., Program], tmp_path: Path) -> None:
    program = start(ASCEND_DUMP="wait,ranks=3,path=own")
    code, _, err = attach(program.pid, "--no-wait")
    assert (code, "ranks=3 leaves out every process" in err) == (Exit.USAGE, True)
    err = attach(program.pid, "--ranks", "0", "--no-wait")[2]
    assert f"into {tmp_path}/work/own/worldsize1_global_rank0\n" in err, "absolute, as this shell is elsewhere"


def test_a_process_that_does_not_answer_is_told(
    start: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start()
    os.kill(program.pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr("ascend_dump.attach.client._PATIENCE", 0.2)
        code, _, err = attach(program.pid, "--path", tmp_path / "d")
    assert (code, "does not answer within 0.2 seconds [AD306]" in err) == (Exit.USAGE, True)
    os.kill(program.pid, signal.SIGCONT)
    assert capture_of(program) is None


def test_a_capture_is_followed_through_a_pause_of_its_process(
    start: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = start()
    with ThreadPoolExecutor(1) as one, caplog.at_level(logging.INFO, "ascend_dump"):
        followed = one.submit(lambda: main(["attach", str(program.pid), "--steps", "0", "--path", str(tmp_path / "d")]))
        until(lambda: capture_of(program))
        with monkeypatch.context() as soon:
            soon.setattr("ascend_dump.attach.client._PATIENCE", 0.2)
            os.kill(program.pid, signal.SIGSTOP)
            until(lambda: "does not answer within" in caplog.text)
        assert not followed.done()
        os.kill(program.pid, signal.SIGCONT)
        for _ in range(2):
            program.tell("1")
        assert followed.result(timeout=900) == Exit.OK
    assert steps(tmp_path / "d") == [(0, 1)]


def test_a_process_of_another_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.stat("/proc/1").st_uid == os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    code, _, err = attach(1)
    assert (code, "it belongs to user 0; attach as that user" in err) == (Exit.USAGE, True)


class TestPlaces:
    def test_only_this_user_can_reach_into_it(self, start: Callable[..., Program], runtime: Path) -> None:
        program = start()
        place = runtime / "ascend-dump"
        [made] = place.iterdir()
        assert made.name.startswith(f"{program.pid}.")
        assert (place.stat().st_mode & 0o777, made.stat().st_mode & 0o777) == (0o700, 0o600)
        program.end()
        assert list(place.iterdir()) == []

    def test_a_link_is_not_followed(self, start: Callable[..., Program], runtime: Path, tmp_path: Path) -> None:
        """It takes the next directory that is its own."""
        (tmp_path / "theirs").mkdir()
        (runtime / "ascend-dump").symlink_to(tmp_path / "theirs")
        program = start()
        assert list((tmp_path / "theirs").iterdir()) == []
        assert capture_of(program) is None
        assert program.end() == ""

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
    def test_a_directory_of_somebody_else_is_left_alone(self, start: Callable[..., Program], runtime: Path) -> None:
        place = runtime / "ascend-dump"
        place.mkdir(mode=0o777)
        os.chown(place, 12345, 12345)
        program = start()
        assert list(place.iterdir()) == []
        assert capture_of(program) is None
        assert program.end() == ""

    def test_paths_may_be_long(self, start: Callable[..., Program], runtime: Path, monkeypatch: Any) -> None:
        place = runtime / ("x" * 200)
        place.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
        program = start()
        assert len(list((place / "ascend-dump").iterdir())) == 1
        assert capture_of(program) is None
        assert program.end() == ""

    def test_somebody_who_listens_in_its_place_is_told(self, start: Callable[..., Program], runtime: Path) -> None:
        """As after a process has ended and another one has got its number."""
        program = start()
        [made] = (runtime / "ascend-dump").iterdir()
        with subprocess.Popen(["sleep", "60"]) as other:
            made.rename(made.with_name(made.name.replace(str(program.pid), str(other.pid))))
            code, _, err = attach(other.pid)
            other.kill()
        assert (code, f"another process ({program.pid}, of user" in err) == (Exit.USAGE, True)


@pytest.fixture(scope="module")
def tough(interpreter: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program for all hostile messages."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "runtime").mkdir(mode=0o700)
    made = Program(interpreter, place / "work", XDG_RUNTIME_DIR=str(place / "runtime"))
    yield made
    assert made.tell("2") == "[4.0, 4.0]"
    assert made.end() == ""


class TestHostileMessages:
    """Whatever comes over the socket, the program goes on and answers the next one."""

    @staticmethod
    def send(program: Program, content: bytes, *, ends: bool = True) -> Any:
        place = os.readlink(f"/proc/{program.pid}/cwd").replace("/work", "/runtime/ascend-dump")
        [name] = os.listdir(place)
        directory = os.open(place, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(f"/proc/self/fd/{directory}/{name}")
            os.close(directory)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(content)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(65536):
                    received += piece
        return json.loads(received) if received else {}

    @given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda one: one + b"\n")))
    @settings(max_examples=40, deadline=None)
    def test_bytes(self, tough: Program, content: bytes) -> None:
        answer = self.send(tough, content)
        assert (answer["schema"], answer["error"]["code"]) == (SCHEMA, "AD101")

    @given(
        st.dictionaries(
            st.sampled_from(["verb", "settings", "framework", "default_path", "peer"]),
            st.recursive(
                st.one_of(
                    st.none(), st.integers(), st.text(max_size=9), st.sampled_from(["check", "begin", "look", "end"])
                ),
                lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)),
                max_leaves=5,
            ),
        )
    )
    @settings(max_examples=60, deadline=None)
    def test_messages(self, tough: Program, message: dict[str, Any]) -> None:
        if message.get("verb") in ("check", "begin") and message.get("settings") == {}:
            message["settings"] = {"scene": "overflow"}  # it would be a good one else
        answer = self.send(tough, json.dumps({"schema": SCHEMA, **message}).encode() + b"\n")
        assert answer["schema"] == SCHEMA
        assert ("error" in answer) == (message.get("verb") != "look")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"[" * 100_000 + b"\n", "not JSON"),
            (b"x" * 400_000, "longer than"),
            (b'{"schema": "other/1"}\n', "expected 'ascend-dump/attach/1'"),
            (b"[]\n", "a list, not an object"),
            (b'{"schema": ' + b"9" * 5000 + b"}\n", ""),
        ],
    )
    def test_odd_ones(self, tough: Program, content: bytes, said: str) -> None:
        answer = self.send(tough, content)
        # What is too long is not read to its end, which may take the answer with it.
        assert not answer or (answer["error"]["code"], said in answer["error"]["message"]) == ("AD101", True)

    def test_somebody_who_says_nothing_is_not_waited_for(self, tough: Program) -> None:
        began = time.monotonic()
        answer = self.send(tough, b"{", ends=False)
        assert (answer["error"]["code"], time.monotonic() - began < 60) == ("AD101", True)
