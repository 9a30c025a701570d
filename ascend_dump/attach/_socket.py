"""The Unix sockets of `ascend-dump attach`: their directory, their permissions and their messages.

A process that was started with ASCEND_DUMP=wait listens on the socket `PID.NAMESPACE` in a directory of its user.
NAMESPACE is the inode of its pid namespace. The directory has mode 0700, the socket 0600. On Linux both sides also
check the user of the peer (SO_PEERCRED). A request is one line of JSON, and so is its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.common.paths import open_directory
from ascend_dump.errors import AscendDumpError, CaptureError, ConfigError

__all__ = [
    "SCHEMA",
    "AttachSocket",
    "ask",
    "fields_of",
    "is_alive",
    "listen",
    "namespace_of",
    "peer_of",
    "read_line",
    "remove",
    "waiting",
    "write_line",
]

SCHEMA = "ascend-dump/attach/1"
#: Maximum size of a message in bytes, including the newline.
_LONGEST = 2**18
_NAME = re.compile(r"(\d{1,10})\.(\d{1,20})", re.ASCII)
#: The layout of Linux's struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


class AttachSocket(NamedTuple):
    """The socket of a process that waits, or of one that has ended without removing its socket."""

    directory: str
    pid: int
    namespace: int

    @property
    def name(self) -> str:
        return f"{self.pid}.{self.namespace}"


def _endpoints() -> Iterator[AttachSocket]:
    """Yield the sockets of this user's processes in this pid namespace."""
    namespace = namespace_of("self")
    for directory in _directories():
        with contextlib.suppress(OSError), _opened(directory) as opened:
            for name in sorted(os.listdir(opened)):
                match = _NAME.fullmatch(name)
                if match is not None and int(match[2]) == namespace:
                    yield AttachSocket(directory, int(match[1]), namespace)


def waiting() -> Iterator[AttachSocket]:
    """Yield the sockets of running processes, and remove the sockets of processes that have ended."""
    for endpoint in _endpoints():
        if is_alive(endpoint.pid):
            yield endpoint
        else:
            remove(endpoint)


def listen() -> tuple[AttachSocket, socket.socket]:
    """Open the socket of this process, and remove the sockets of processes that have ended.

    Raises CaptureError AD306 if no private directory can be created for the socket.
    """
    for _ in waiting():
        pass
    refused: list[str] = []
    for directory in _directories():
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            with _opened(directory) as opened:
                os.fchmod(opened, 0o700)
                endpoint = AttachSocket(directory, os.getpid(), namespace_of("self"))
                return endpoint, _bound(endpoint, opened)
        except OSError as error:
            refused.append(f"{directory}: {error.strerror or error}")
    raise CaptureError(
        f"no socket for `ascend-dump attach` can be opened: {'; '.join(refused)}",
        hint="set XDG_RUNTIME_DIR or TMPDIR to a directory that this user can write to",
        code="AD306",
    )


def _bound(endpoint: AttachSocket, opened: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):  # an earlier process with this id may have left a socket
            os.unlink(endpoint.name, dir_fd=opened)
        listening.bind(_address(endpoint, opened))
        os.chmod(endpoint.name, 0o600, dir_fd=opened)
        listening.listen(16)
    except BaseException:
        listening.close()
        raise
    return listening


def ask(endpoint: AttachSocket, request: dict[str, Any], *, timeout: float = 60.0) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises socket.timeout if the process does not answer in time, another OSError if no process listens, and
    CaptureError AD306 if another process listens or the answer is invalid.
    """
    with _opened(endpoint.directory) as opened, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(_address(endpoint, opened))
        peer = peer_of(connection)
        if peer is not None and (peer[1] != os.geteuid() or peer[0] not in (0, endpoint.pid)):
            raise CaptureError(
                f"another process ({peer[0]}, of user {peer[1]}) listens on the socket of process {endpoint.pid}",
                hint=f"remove {endpoint.directory}/{endpoint.name}, which that process has created",
                code="AD306",
            )
        write_line(connection, {"schema": SCHEMA, **request})
        try:
            answer = read_line(connection, time.monotonic() + timeout)
        except ConfigError as error:
            raise CaptureError(
                f"process {endpoint.pid} gave an answer that cannot be used: {error.message}",
                hint="use the ascend-dump of that process's environment",
                code="AD306",
            ) from error
    if answer.get("schema") != SCHEMA:
        raise CaptureError(
            f"process {endpoint.pid} uses the protocol {answer.get('schema')!r}, but this ascend-dump uses {SCHEMA!r}",
            hint="use the ascend-dump of that process's environment",
            code="AD306",
        )
    return answer


def remove(endpoint: AttachSocket) -> None:
    """Remove a socket file if it exists."""
    with contextlib.suppress(OSError), _opened(endpoint.directory) as opened:
        os.unlink(endpoint.name, dir_fd=opened)


def write_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message, default=str).encode() + b"\n")


def read_line(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Read one message.

    deadline: a time of the clock `time.monotonic`. Raises socket.timeout at the deadline, ConnectionResetError if the
    peer closes the connection, and ConfigError for anything but a JSON object.
    """
    received = bytearray()
    while not received.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise socket.timeout("no complete message in time")
        connection.settimeout(remaining)
        try:
            piece = connection.recv(65536)
        except socket.timeout:
            continue
        received += piece
        if not piece:
            raise ConnectionResetError(f"the connection was closed after {len(received)} bytes")
        if len(received) > _LONGEST:
            raise ConfigError(f"the message is longer than {_LONGEST} bytes", hint="give fewer names in layers=")
    try:
        message = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the message is not JSON: {error}", hint="use `ascend-dump attach`") from None
    if not isinstance(message, dict):
        raise ConfigError(f"the message is a {type(message).__name__}, not an object", hint="use `ascend-dump attach`")
    return message


def fields_of(error: BaseException) -> dict[str, str]:
    """Convert an error to the fields of an answer. `client.error_of` converts them back."""
    if not isinstance(error, AscendDumpError):
        error = CaptureError(f"the process failed to handle the request: {error!r}", code="AD306")
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint, "code": error.code}


def peer_of(connection: socket.socket) -> Optional[tuple[int, int]]:
    """Return process id and user id of the peer; None if the system does not report them.

    The process id is 0 for a process in another pid namespace.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return pid, uid


def is_alive(pid: int) -> bool:
    """Return True if a process with this id exists, no matter of which user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def namespace_of(pid: object) -> int:
    """Return the inode of the pid namespace of a process; 0 if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _directories() -> list[str]:
    """Return the possible directories for sockets of this user. A process uses the first that it can create or open."""
    user = os.geteuid()
    runtime = [os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"]
    directories = [os.path.join(parent, "ascend-dump") for parent in runtime if os.path.isabs(parent)]
    # The waiting process and the shell of `attach` may have different environments, so /tmp comes before TMPDIR.
    for parent in ("/tmp", os.environ.get("TMPDIR", "")):
        if os.path.isabs(parent):
            directories.append(os.path.join(parent, f"ascend-dump-{user}"))
    return list(dict.fromkeys(directories))


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    """Open a directory of this user. Raises OSError for a symbolic link and for a directory of another user."""
    from pathlib import Path

    opened = open_directory(Path(directory))
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            raise PermissionError(1, f"it belongs to user {status.st_uid}")
        yield opened
    finally:
        os.close(opened)


def _address(endpoint: AttachSocket, opened: int) -> str:
    """Return the address of a socket as a path through the descriptor of its open directory.

    The directory's own path may be too long for an address, or may be replaced by another directory meanwhile.
    """
    through = f"/proc/self/fd/{opened}"
    return f"{through if os.path.isdir(through) else endpoint.directory}/{endpoint.name}"
