"""Run the user's command as a child process, and stop it once enough is recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Callable, Optional

from ascend_dump.startup.launching import cannot_start, find_program

__all__ = ["ChildCommand", "birth_of", "is_running"]

#: Seconds between two polls, and maximum seconds that a command may take to end after a signal.
_PAUSE, _MAX_WAIT = 0.1, 10.0
#: Signals that are passed on to the command before they end this process.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class ChildCommand:
    """A command that runs in its own process group, with an empty standard input.

    pid      number of the child process and of its process group

    Raises ConfigError AD104 if the command cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Sequence[BinaryIO]) -> None:
        """Start the command. output: the files for its standard output and standard error."""
        program = find_program(command[0])
        try:
            # The command gets its own process group, so that the processes that it starts can be stopped with it.
            self._child = subprocess.Popen(
                command,
                executable=program,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(command[0], error) from None
        self.pid = self._child.pid

    def wait(self, is_enough: Callable[[], bool]) -> Optional[int]:
        """Wait for the end of the command. Stop it as soon as `is_enough` returns True.

        Returns the exit code as a shell reports it, or None if the command was stopped. A KeyboardInterrupt is passed
        to the command as SIGINT, and raised once the command has ended.
        """
        # Only the main thread may set signal handlers.
        forwarded = _FORWARDED if threading.current_thread() is threading.main_thread() else ()
        previous_handlers = {number: signal.signal(number, self._forward) for number in forwarded}
        try:
            while self._child.poll() is None:
                if is_enough():
                    self._stop(signal.SIGTERM)
                    return None
                time.sleep(_PAUSE)
        except BaseException:
            self._stop(signal.SIGINT)
            raise
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
        code = self._child.returncode
        return 128 - code if code < 0 else code

    def _stop(self, first: int) -> None:
        """End the command and the processes that it started. first: the signal to send before SIGKILL."""
        self._send(first)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self._child.wait(_MAX_WAIT)
        # SIGKILL is sent to the whole group, because child processes may outlive the command.
        self._send(signal.SIGKILL)
        self._child.wait()

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def _forward(self, number: int, frame: Optional[FrameType]) -> None:
        self._send(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def birth_of(process: int) -> str:
    """Return an identifier of a process that no later process with the same number has.

    It consists of the id of the system's boot and the start time of the process. "" if it cannot be read.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}"
    except (OSError, ValueError, IndexError):
        return ""


def is_running(process: Any, birth: Any) -> bool:
    """Return True if the process group of a round still runs. birth: the result of `birth_of` for its first process."""
    if type(process) is not int or process <= 1:
        return False
    try:
        os.killpg(process, 0)
    except (OSError, OverflowError):
        return False
    current_birth = birth_of(process)
    # If `current_birth` is "", the first process has ended. The system does not reuse its number while the group
    # exists.
    return not current_birth or not birth or current_birth == birth
