"""The thread of a waiting process that accepts connections of `ascend-dump attach`."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from typing import Any, Callable, Optional

from ascend_dump.attach import _socket
from ascend_dump.errors import AscendDumpError, CaptureError, ConfigError

__all__ = ["Listener"]

log = logging.getLogger("ascend_dump")

#: Seconds to receive a request, and to send its answer.
_PATIENCE = 5.0

Handle = Callable[[dict[str, Any]], dict[str, Any]]


class Listener:
    """Accepts connections to the socket of this process, and answers the one request of each with `handle(request)`.

    Errors are answered or logged, and never reach the program. A forked child listens on a socket of its own.

    forked: called in a forked child before it listens
    """

    def __init__(self, handle: Handle, forked: Callable[[], None]) -> None:
        self._handle, self._forked = handle, forked
        self._endpoint: Optional[_socket.AttachSocket] = None
        self._open()
        os.register_at_fork(after_in_child=self._begin_again)
        atexit.register(self._close)

    def _open(self) -> None:
        self._endpoint, self._socket = _socket.listen()
        threading.Thread(target=self._run, args=(self._socket,), name="ascend_dump attach", daemon=True).start()

    def _begin_again(self) -> None:
        """In a forked child: open a socket of its own, as the inherited one belongs to the parent."""
        if self._endpoint is None:
            return
        self._endpoint = None
        self._socket.close()
        try:
            self._forked()
            self._open()
        except Exception as error:  # the child has work to do
            log.debug("a forked process cannot be attached to: %s", error, exc_info=True)

    def _close(self) -> None:
        endpoint = self._endpoint
        if endpoint is not None and endpoint.pid == os.getpid():
            self._endpoint = None
            _socket.remove(endpoint)

    def _run(self, listening: socket.socket) -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:  # too many files are open
                time.sleep(1)
                continue
            with connection:
                try:
                    self._talk(connection)
                except Exception:
                    log.debug("the connection of an `ascend-dump attach` failed", exc_info=True)

    def _talk(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _PATIENCE
        try:
            answer = self._answer(connection, deadline)
        except AscendDumpError as error:
            answer = {"error": _socket.fields_of(error)}
        except (Exception, SystemExit) as error:  # of what an adapter imports
            log.debug("a request of `ascend-dump attach` failed", exc_info=True)
            answer = {"error": _socket.fields_of(error)}
        connection.settimeout(_PATIENCE)
        _socket.write_line(connection, {"schema": _socket.SCHEMA, **answer})

    def _answer(self, connection: socket.socket, deadline: float) -> dict[str, Any]:
        peer = _socket.peer_of(connection)
        if peer is not None and peer[1] != os.geteuid():
            raise CaptureError(f"user {peer[1]} may not attach to a process of user {os.geteuid()}", code="AD306")
        try:
            request = _socket.read_line(connection, deadline)
        except OSError as error:
            raise ConfigError(f"the request cannot be read: {error}", hint="use `ascend-dump attach`") from error
        if request.get("schema") != _socket.SCHEMA:
            raise ConfigError(
                f"expected {_socket.SCHEMA!r}, not {request.get('schema')!r}",
                hint="use the `ascend-dump attach` of this process's environment",
            )
        return self._handle({**request, "peer": None if peer is None else peer[0]})
