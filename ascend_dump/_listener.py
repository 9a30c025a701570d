"""A process that waits to be attached to: one thread that sleeps until somebody connects."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import Any, Callable, Optional

from ascend_dump import _meeting
from ascend_dump._errors import AscendDumpError, CaptureError, ConfigError

__all__ = ["Listener"]

log = logging.getLogger("ascend_dump")

#: Seconds for one conversation, and for the thread to leave before a fork.
_PATIENCE, _BEFORE_FORK = 5.0, 0.05

Handle = Callable[[dict[str, Any]], dict[str, Any]]


class Listener:
    """Answers each connection to the socket of this process with what `handle` makes of its one message.

    Whatever a message holds, the program does not notice. Before a fork the thread leaves, because a process with
    several threads should not be forked; behind it each of the two processes listens on a socket of its own.
    forked: is called in a child, before it listens
    """

    def __init__(self, handle: Handle, forked: Callable[[], None]) -> None:
        self._handle, self._forked = handle, forked
        self._thread: Optional[threading.Thread] = None
        self._place: Optional[_meeting.MeetingPlace] = None
        self._open()
        os.register_at_fork(before=self._pause, after_in_parent=self._go_on, after_in_child=self._begin_again)
        atexit.register(self._close)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._pausing = False
        self._place, self._socket = _meeting.listen()
        self._socket.setblocking(False)
        self._woken, self._wake = os.pipe()
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            self._pausing = False
            if self._place is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ascend_dump attach", daemon=True)
                self._thread.start()

    def _pause(self) -> None:
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._pausing = True
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")
        # It may be answering; the fork does not wait for that.
        thread.join(_BEFORE_FORK)

    def _begin_again(self) -> None:
        """In a forked child: the socket is the parent's, which goes on listening."""
        self._thread = None
        if self._place is None:
            return
        self._place = None
        with contextlib.suppress(OSError):
            self._socket.close()
            os.close(self._woken)
            os.close(self._wake)
        try:
            self._forked()
            self._open()
        except Exception as error:  # the child has work to do
            log.debug("a forked process cannot be attached to: %s", error, exc_info=True)

    def _close(self) -> None:
        place = self._place
        if place is not None and place.pid == os.getpid():
            self._place = None
            _meeting.remove(place)

    def _run(self) -> None:
        listening = self._socket
        ready = select.poll()
        for descriptor in (listening.fileno(), self._woken):
            ready.register(descriptor, select.POLLIN)
        while True:
            if any(descriptor == self._woken for descriptor, _ in ready.poll()):
                os.read(self._woken, 1)
                with self._lock:
                    if self._pausing:
                        self._thread = None
                        return
                continue
            try:
                connection = listening.accept()[0]
            except BlockingIOError:  # who connected has left again
                continue
            except OSError:  # too many files are open
                time.sleep(1)
                continue
            with connection:
                try:
                    self._talk(connection)
                except Exception:
                    log.debug("a conversation with who attaches failed", exc_info=True)

    def _talk(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _PATIENCE
        try:
            answer = self._answer(connection, deadline)
        except AscendDumpError as error:
            answer = _refusal(error)
        except Exception as error:
            log.debug("a request of who attaches failed", exc_info=True)
            answer = _refusal(CaptureError(f"the request failed in the process: {error!r}", code="AD306"))
        connection.settimeout(_PATIENCE)
        _meeting.write_line(connection, {"schema": _meeting.SCHEMA, **answer})

    def _answer(self, connection: socket.socket, deadline: float) -> dict[str, Any]:
        peer = _meeting.peer_of(connection)
        if peer is not None and peer[1] != os.geteuid():
            raise CaptureError(f"user {peer[1]} may not attach to a process of user {os.geteuid()}", code="AD306")
        request = _meeting.read_line(connection, deadline)
        if request.get("schema") != _meeting.SCHEMA:
            raise ConfigError(
                f"expected {_meeting.SCHEMA!r}, not {request.get('schema')!r}",
                hint="use the `ascend-dump attach` of this process's environment",
            )
        return self._handle({**request, "peer": None if peer is None else peer[0]})


def _refusal(error: AscendDumpError) -> dict[str, Any]:
    fields = {"kind": type(error).__name__, "message": error.message, "hint": error.hint, "code": error.code}
    return {"error": fields}
