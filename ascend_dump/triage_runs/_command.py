"""A user's command, run as a child until it ends or has shown enough."""

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
from typing import Any, Callable, Optional

from ascend_dump.startup.launching import cannot_start, find_program

__all__ = ["ChildCommand", "birth_of", "is_running"]

#: Seconds between two looks, and how long a command that is asked to end may take.
_PAUSE, _PATIENCE = 0.1, 10.0
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class ChildCommand:
    """Starts the command in a process group of its own, with nothing on its standard input.

    pid      of the child, which is that of the group
    Raises ConfigError AD104 where it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, output: Optional[int] = None) -> None:
        """output: a descriptor in place of its standard output."""
        program = find_program(command[0])
        try:
            # A group of its own: what the command has started is stopped with it.
            self._child = subprocess.Popen(
                command,
                executable=program,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(command[0], error) from None
        self.pid = self._child.pid

    def wait(self, is_enough: Callable[[], bool]) -> Optional[int]:
        """The exit code as a shell gives it; None where it was stopped because that is enough.

        An interruption from the keyboard reaches the command too, and is raised once that has ended.
        """
        # Only the main thread may say what signals do.
        forwarded = _FORWARDED if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self._pass_on) for number in forwarded}
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
            for number, handler in before.items():
                signal.signal(number, handler)
        code = self._child.returncode
        return 128 - code if code < 0 else code

    def _stop(self, first: int) -> None:
        """End the command and what it has started."""
        self._send(first)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self._child.wait(_PATIENCE)
        # What it has started may outlive it.
        self._send(signal.SIGKILL)
        self._child.wait()

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def _pass_on(self, number: int, frame: Optional[FrameType]) -> None:
        self._send(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def birth_of(process: int) -> str:
    """What tells a process from a later one of the same number; "" where it is not there, or nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}"
    except (OSError, ValueError, IndexError):
        return ""


def is_running(process: Any, birth: Any) -> bool:
    """Whether a group of processes is there that was begun for a round. birth: that of the first one."""
    if type(process) is not int or process <= 1:
        return False
    try:
        os.killpg(process, 0)
    except (OSError, OverflowError):
        return False
    now = birth_of(process)
    # Where the first one has ended, its number is not given again as long as there are others of the group.
    return not now or not birth or now == birth
