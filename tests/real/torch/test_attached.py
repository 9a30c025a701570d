"""A server with a cache, batches and a compiled warm-up, that was started with ASCEND_DUMP=wait and is attached to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Callable

import pytest
from processes import HERE, PROGRAMS, environment

import ascend_dump

ATTACH = (sys.executable, "-m", "ascend_dump", "attach")


class Server:
    """programs/serving.py, which does what it is told line by line."""

    def __init__(self, directory: Path, **values: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.values = values
        self.process: Any = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "serving.py"), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
            env=environment(**values),
        )

    @cached_property
    def pid(self) -> int:
        """Once it has imported all; two that are started one after the other do so side by side."""
        return int(self.hear())

    def write(self, line: str) -> None:
        assert self.pid
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        answer = self.process.stdout.readline()
        assert answer, self.process.communicate()[1]
        return str(answer.strip())

    def tell(self, line: str) -> str:
        self.write(line)
        return self.hear()

    def attach(self, *words: Any, code: int = 0, pid: int = 0) -> str:
        """What `ascend-dump attach` says."""
        command = [*ATTACH, *map(str, words), str(pid or self.pid)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**self.values), timeout=900)
        assert done.returncode == code, done.stderr
        return done.stderr

    def capture(self) -> Any:
        command = [*ATTACH, "--list", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**self.values), check=True)
        [found] = [one for one in json.loads(done.stdout)["processes"] if one["pid"] == self.pid]
        return found["capture"]

    def end(self) -> tuple[str, bytes]:
        """What it has said, and all logits that it has computed."""
        err = self.process.communicate(timeout=900)[1]
        assert self.process.returncode == 0, err
        return err, (self.directory / "logits.bin").read_bytes()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def begin(name: str = "waiting", **values: str) -> Server:
        runtime = tmp_path / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        started.append(Server(tmp_path / name, **{"ASCEND_DUMP": "wait", "XDG_RUNTIME_DIR": str(runtime), **values}))
        return started[-1]

    yield begin
    for one in started:
        if not one.process.stdout.closed:
            one.process.kill()
            one.process.communicate()


def wait_until_armed(waiting: Any) -> None:
    """Until a command has attached and says that it waits for the first call."""
    while "waiting for the next call of a model" not in (line := waiting.stderr.readline()):
        assert line, "it has ended"


#: Of a request: what the embedding gives for the prompts, and for each token after them.
PREFILL, DECODE = (2, 4, 16), (2, 1, 16)


def shapes(path: Path) -> dict[Any, list[Any]]:
    """By step, what the embedding of the tokens gave in each call of the model."""
    dump = ascend_dump.open(path)
    assert dump.errors() == []
    found: dict[Any, list[Any]] = {}
    for record in dump.select(op="*embed_tokens/embedding*", io="output"):
        found.setdefault(record.step, []).append(record.shape)
    return found


def test_only_requests_are_steps_and_results_stay_the_same(start: Callable[..., Server], tmp_path: Path) -> None:
    """Models and compiled functions that were made before are seen, and a second attach works."""
    plain, server = start("plain", ASCEND_DUMP="0"), start()
    for line in ("warmup", "request 3"):
        assert plain.tell(line) == server.tell(line)
    for number in (1, 2):
        path = tmp_path / f"dumps{number}"
        server.attach("--steps", "0-4", "--options", "skip_warmup=true", "--path", path, "--no-wait")
        for line in ("warmup", "request 2", "compiled 2", "warmup", "generate 3"):
            assert plain.tell(line) == server.tell(line)
        assert server.capture()["state"] == "ended"
        # What was compiled is another thing to call, and begins a step when it is called again.
        assert shapes(path) == dict(enumerate([[PREFILL], [DECODE, PREFILL], [DECODE], [PREFILL], [DECODE]]))
    err, logits = server.end()
    assert logits == plain.end()[1]
    assert err.count("dumped 5 steps") == 2
    assert "Traceback" not in err


def test_in_the_middle_of_a_generation(start: Callable[..., Server], tmp_path: Path) -> None:
    plain, server = start("plain", ASCEND_DUMP="0"), start()
    for one in (plain, server):
        one.write("request 700")
    said = server.attach("--steps", "0|3", "--path", tmp_path / "dumps")
    assert f"look at it: ascend-dump ls {tmp_path}/dumps/" in said
    assert plain.hear() == server.hear()
    assert shapes(tmp_path / "dumps") == {0: [DECODE], 3: [DECODE]}
    dump = ascend_dump.open(tmp_path / "dumps")
    names = [{record.op_name for record in dump.select(step=step, phase="forward")} for step in (0, 3)]
    assert names[0] == names[1], "the first step that was recorded is whole"
    assert server.end()[1] == plain.end()[1]


def test_a_step_of_a_process_that_waits_runs_no_line_more(start: Callable[..., Server], tmp_path: Path) -> None:
    plain, server = start("plain", ASCEND_DUMP="0"), start()
    counts = []
    for one in (plain, server):
        one.tell("request 3")
        counts.append(one.tell("count"))
    assert counts[0] == counts[1]
    server.attach("--steps", "0", "--path", tmp_path / "dumps", "--no-wait")
    server.tell("request 3")
    assert server.capture()["state"] == "ended"
    assert server.tell("count") == counts[0], "nor does it once the capture has ended"


def test_a_forked_child_belongs_to_no_capture_of_its_parent(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start()
    server.attach("--steps", "0-2", "--path", tmp_path / "parent", "--no-wait")
    server.tell("request 2")
    child = int(server.tell("fork"))
    server.tell("request 2")
    server.attach("--steps", "0", "--path", tmp_path / "child", "--no-wait", pid=child)
    server.tell("request 2")
    err, _ = server.end()
    assert "Traceback" not in err
    assert len(shapes(tmp_path / "parent")) == 2
    assert shapes(tmp_path / "child") == {0: [PREFILL]}


def test_a_disk_that_gets_full_is_told_where_the_command_was_typed(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    plain, server = start("plain", ASCEND_DUMP="0"), start()
    server.tell("limit 20000")
    words = [*ATTACH, "--steps", "0-5", "--path", str(tmp_path / "dumps"), str(server.pid)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment(**server.values)) as waiting:
        wait_until_armed(waiting)
        assert server.tell("request 9") == plain.tell("request 9")
        err = waiting.communicate(timeout=900)[1]
    assert (waiting.returncode, "[AD50" in err) == (2, True), err
    server.tell("unlimited")
    server.attach("--steps", "0", "--path", tmp_path / "later", "--no-wait")
    assert server.tell("request 2") == plain.tell("request 2")
    assert shapes(tmp_path / "later") == {0: [PREFILL]}
    assert server.end()[1] == plain.end()[1]


def test_ranks_under_torchrun(tmp_path: Path) -> None:
    """The launcher's own process imports PyTorch too, and is not among those that wait."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    values = {"ASCEND_DUMP": "wait", "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    program = [str(PROGRAMS / "looping.py"), str(tmp_path)]
    with subprocess.Popen([*torchrun, *program], env=environment(**values), stderr=subprocess.PIPE) as running:
        while len(list(tmp_path.glob("ready*"))) < 2:
            assert running.poll() is None
        command = [*ATTACH, "--all", "--json", "--steps", "0-1", "--path", str(tmp_path / "dumps")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**values), timeout=900)
        (tmp_path / "stop").touch()
        running.communicate(timeout=900)
    assert done.returncode == 0, done.stderr
    processes = json.loads(done.stdout)["processes"]
    assert [(one["rank"], one["world"], one["capture"]["state"]) for one in processes] == [
        (0, 2, "ended"),
        (1, 2, "ended"),
    ]
    dump = ascend_dump.open(tmp_path / "dumps")
    assert {(record.rank, record.step) for record in dump} == {(rank, step) for rank in (0, 1) for step in (0, 1)}
