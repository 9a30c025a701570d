"""The thread with which a waiting process serves `ascend-dump attach`."""

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

#: Seconds within which a request has to arrive, and within which its answer has to be sent.
_TIMEOUT = 5.0

RequestHandler = Callable[[dict[str, Any]], dict[str, Any]]


class Listener:
    """A thread that listens on the socket of this process; each connection sends one request.

    The answer to a request is the result of `handle(request)`. Errors are sent as the answer, or logged; they never
    reach the program. A forked child opens a socket and a thread of its own.

    after_fork: called in a forked child before it opens its socket
    """

    def __init__(self, handle: RequestHandler, after_fork: Callable[[], None]) -> None:
        self._handle, self._after_fork = handle, after_fork
        self._endpoint: Optional[_socket.AttachSocket] = None
        self._open()
        os.register_at_fork(after_in_child=self._listen_in_child)
        atexit.register(self._close)

    def _open(self) -> None:
        self._endpoint, self._socket = _socket.listen()
        threading.Thread(target=self._run, args=(self._socket,), name="ascend_dump attach", daemon=True).start()

    def _listen_in_child(self) -> None:
        """Close the inherited socket in a forked child, since it belongs to the parent, and open another one."""
        if self._endpoint is None:
            return
        self._endpoint = None
        self._socket.close()
        try:
            self._after_fork()
            self._open()
        except Exception as error:  # an error must not end the program in the child
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
            except OSError:  # for example because too many files are open
                time.sleep(1)
                continue
            with connection:
                try:
                    self._serve(connection)
                except Exception:
                    log.debug("the connection of an `ascend-dump attach` failed", exc_info=True)

    def _serve(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _TIMEOUT
        try:
            answer = self._answer(connection, deadline)
        except AscendDumpError as error:
            answer = {"error": _socket.fields_of(error)}
        except (Exception, SystemExit) as error:  # SystemExit: raised by a module that an adapter imports
            log.debug("a request of `ascend-dump attach` failed", exc_info=True)
            answer = {"error": _socket.fields_of(error)}
        connection.settimeout(_TIMEOUT)
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
                f"the request has the schema {request.get('schema')!r}, expected {_socket.SCHEMA!r}",
                hint="use the `ascend-dump attach` of this process's environment",
            )
        return self._handle({**request, "peer": None if peer is None else peer[0]})
