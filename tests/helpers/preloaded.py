"""Programs that begin where PyTorch is imported already: a process that has it forks one child for each of them.

To import it takes seconds, the programs of most tests some hundredths of one. What a program must not share with
others is its own all the same: module state of ascend_dump, environment, streams, the start-up hook and the end of
the interpreter. Tests of what happens before or while a framework is imported start interpreters of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Optional

__all__ = ["run_preloaded"]

_TIMEOUT = 120
#: By what they have imported.
_servers: dict[str, subprocess.Popen[str]] = {}


def run_preloaded(
    program: Path,
    *arguments: str,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
    check: bool = False,
    imported: str = "torch",
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, program, *arguments])`, with the output as text.

    imported: the module of PyTorch that is there already.
    """
    server = _started(imported)
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as directory:
        streams = [os.path.join(directory, name) for name in ("out", "err")]
        asked = {
            "arguments": [str(program), *arguments],
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
            "streams": streams,
        }
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (Path(name).read_text() for name in streams)
    done = subprocess.CompletedProcess([str(program), *arguments], code, out, err)
    if check:
        assert code == 0, err
    return done


def _started(imported: str) -> subprocess.Popen[str]:
    server = _servers.get(imported)
    if server is None or server.poll() is not None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_DUMP")}
        command = [sys.executable, str(Path(__file__).resolve()), imported]
        server = _servers[imported] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    for stream in (server.stdin, server.stdout):
        if stream is not None:
            stream.close()  # it ends when nobody can ask for more
    server.wait(10)


def _serve() -> None:
    """Fork a child for each line of the standard input; in the child, return to run its program."""
    import gc
    from importlib import import_module

    import_module(sys.argv[1])
    assert not any(name.partition(".")[0] == "ascend_dump" for name in sys.modules)
    gc.collect()
    gc.freeze()  # else each child would look through all of it
    while True:
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        child = os.fork()
        if not child:
            _become(json.loads(line))
            return
        print(_wait(child), flush=True)


def _wait(child: int) -> int:
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(child, signal.SIGKILL))
    signal.alarm(_TIMEOUT)
    status = os.waitpid(child, 0)[1]
    signal.alarm(0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(asked: dict[str, Any]) -> None:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, name in zip((1, 2), asked["streams"]):
        stream = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[:] = asked["arguments"]
    known = set(sys.path)
    paths = [one for one in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[0] = os.path.dirname(sys.argv[0])
    sys.path[1:1] = [one for one in paths if one not in known]


def _run() -> NoReturn:
    """What an interpreter does with a program: the start-up hook, and the program as `__main__`."""
    import types

    from ascend_dump._activation import start

    start()
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), main.__dict__)
    sys.exit()


if __name__ == "__main__":
    _serve()
    _run()
