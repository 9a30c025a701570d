"""Run programs in children of a server that has imported PyTorch already.

The import takes seconds, and the programs of most tests a few hundredths of a second. Each child has separate module
state of ascend_dump, environment and streams, and runs the start-up hook and the end of the interpreter. Tests of what
happens before or during the import of a framework start separate interpreters.

One server serves all test processes of a run, and ends when the last of them has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Optional

__all__ = ["COMPILER", "run_preloaded", "write_python"]

#: What takes seconds to import before PyTorch compiles anything; an optimizer imports the most of it.
COMPILER = "torch._dynamo.backends.debugging"
#: The directory of the servers' sockets, in the environment of all test processes of a run.
DIRECTORY = "PRELOADED_SERVERS"

_TIMEOUT = 900
_HOLD, _RUN = b"H", b"R"
_LENGTH = struct.Struct("!I")
#: By what they have imported: open as long as this process may ask for more.
_held: dict[str, socket.socket] = {}


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
    import tempfile

    place = _hold(imported)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
        streams = [nothing.fileno(), out.fileno(), err.fileno()]
        environment = dict(os.environ if env is None else env)
        code = _ask(place, [str(program), *arguments], environment, str(cwd or Path.cwd()), streams)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    done = subprocess.CompletedProcess([str(program), *arguments], code, *texts)
    if check:
        assert code == 0, done.stderr
    return done


def write_python(file: Path, imported: str) -> Path:
    """A command that stands for `python`: its programs, `-m` and `-c` begin where `imported` is there already."""
    place = _hold(imported)
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(__file__).resolve()}" ask "{place}" "$@"\n')
    file.chmod(0o755)
    return file


def _hold(imported: str) -> str:
    """Start the server if it does not run yet, and keep it running. Returns its socket."""
    place = os.path.join(os.environ[DIRECTORY], imported)
    if imported in _held:
        return place
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(place)
        except OSError:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_DUMP")}
            command = [sys.executable, str(Path(__file__).resolve()), "serve", imported, place]
            subprocess.run(command, env=environment, check=True)
            connection.connect(place)
        connection.sendall(_HOLD)
    atexit.register(connection.close)
    _held[imported] = connection
    return place


def _ask(place: str, arguments: list[str], environment: dict[str, str], directory: str, streams: list[int]) -> int:
    """The exit code of the program, minus the number of the signal that ended it."""
    message = json.dumps({"arguments": arguments, "environment": environment, "directory": directory}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [_RUN], streams)
        connection.sendall(_LENGTH.pack(len(message)) + message)
        answer = connection.recv(100)
    assert answer, f"{place}: the server ended"
    return int(answer)


# The server.


def _serve(imported: str, place: str) -> dict[str, Any]:
    """Fork a child for each program, where this returns what was asked for; the process that was started ends."""
    import gc
    from importlib import import_module

    import_module(imported)
    assert not any(name.partition(".")[0] == "ascend_dump" for name in sys.modules)
    gc.collect()
    gc.freeze()  # else each child would look through all of it
    with suppress(FileNotFoundError):
        os.unlink(place)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(16)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    holders: list[socket.socket] = []
    patience: Optional[float] = 60  # until the first one comes
    while True:
        ready = select.select([listening, *holders], [], [], patience)[0]
        for one in ready:
            if one is not listening:
                one.close()
                holders.remove(one)
        if listening in ready:
            connection = listening.accept()[0]
            kind, streams, _, _ = socket.recv_fds(connection, 1, 3)
            if kind == _HOLD:
                patience = None
                holders.append(connection)
            elif kind == _RUN and not os.fork():
                for one in (listening, *holders):
                    one.close()
                return _attend(connection, streams)
            else:
                connection.close()
                for number in streams:
                    os.close(number)
        if not holders and (patience is None or not ready):
            os._exit(0)


def _attend(connection: socket.socket, streams: list[int]) -> dict[str, Any]:
    """Fork the program, where this returns what was asked for. Here, tell its exit code, or kill it if nobody waits."""
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    (length,) = _LENGTH.unpack(connection.recv(_LENGTH.size, socket.MSG_WAITALL))
    asked: dict[str, Any] = json.loads(connection.recv(length, socket.MSG_WAITALL))
    child = os.fork()
    if not child:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        for number in (woken, wake):
            os.close(number)
        for target, number in enumerate(streams):
            os.dup2(number, target)
            os.close(number)
        return asked
    for number in streams:
        os.close(number)
    if woken not in select.select([woken, connection], [], [], _TIMEOUT)[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with suppress(OSError):
        connection.sendall(str(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)).encode())
    os._exit(0)


def _become(asked: dict[str, Any]) -> NoReturn:
    """What an interpreter does with its command line: the start-up hook, and the program as `__main__`."""
    import runpy
    import types

    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    # Those of the server remember what they wrote to.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    arguments = asked["arguments"]
    unbuffered = arguments[0] == "-u"
    if unbuffered:
        del arguments[0]
    if unbuffered or os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)
    kind = arguments.pop(0) if arguments[0] in ("-m", "-c") else ""
    name = arguments[0]
    sys.argv[:] = ["-c", *arguments[1:]] if kind == "-c" else arguments
    known = set(sys.path)
    paths = [one for one in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if one]
    file = os.path.abspath(name)
    sys.path[0] = os.getcwd() if kind else os.path.dirname(file)
    sys.path[1:1] = [one for one in paths if one not in known]

    from ascend_dump.startup.activation import start

    start()
    if kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        sys.exit()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    # What an interpreter does with the file or the text that it is started with.
    if kind == "-c":
        exec(compile(name, "<string>", "exec"), main.__dict__)
    else:
        main.__file__ = file
        exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _become(_serve(*sys.argv[2:]))
    code = _ask(sys.argv[2], sys.argv[3:], dict(os.environ), os.getcwd(), [0, 1, 2])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
