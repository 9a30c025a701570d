"""The client side of `ascend-dump attach`: find waiting processes, start, follow and stop captures in them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ascend_dump import errors
from ascend_dump.attach import _socket
from ascend_dump.common.paths import MANIFEST
from ascend_dump.errors import AscendDumpError, CaptureError
from ascend_dump.storage.files import read_regular

__all__ = ["AttachTarget", "TargetIsBusy", "error_of", "find", "find_all", "state_of"]

#: Maximum size of a manifest that is read, in bytes.
_MOST_BYTES = 10_000_000
#: Seconds without an answer after which a process counts as busy.
_PATIENCE = 10.0

_HINT = "start it with ASCEND_DUMP=wait; `ascend-dump attach --list` shows the processes that wait"


class TargetIsBusy(CaptureError):
    """An error for a process that runs but does not answer, because it is stopped or its interpreter lock is held."""

    default_code = "AD306"


class AttachTarget(NamedTuple):
    """A process that waits for `ascend-dump attach`.

    rank         its rank
    world        the number of ranks
    command      its command line
    idle         True if it is a launcher, which runs no model itself
    capture      the state of its last capture (`Attachment.state`), None before the first capture
    """

    endpoint: _socket.AttachSocket
    rank: int
    world: int
    command: tuple[str, ...]
    idle: bool
    capture: Optional[Mapping[str, Any]]

    @property
    def pid(self) -> int:
        return self.endpoint.pid

    def __str__(self) -> str:
        return f"process {self.pid} (rank {self.rank})" if self.world > 1 else f"process {self.pid}"

    def check(self, settings: Mapping[str, Any], framework: Optional[str]) -> dict[str, Any]:
        """Return path, steps, ranks, adapter and problems of the capture that `begin` would start.

        Raises the errors of `begin`.
        """
        return self._ask_with("check", settings, framework)

    def begin(self, settings: Mapping[str, Any], framework: Optional[str]) -> AttachTarget:
        """Start a capture with the next step, and return the target with the state of this capture.

        Raises the error that the process sends as its answer.
        """
        capture = self._ask_with("begin", settings, framework).get("capture")
        if not isinstance(capture, dict):
            raise _unusable(self.endpoint, f"{capture!r} is not the state of a capture")
        return self._replace(capture=capture)

    def _ask_with(self, verb: str, settings: Mapping[str, Any], framework: Optional[str]) -> dict[str, Any]:
        request = {"verb": verb, "settings": dict(settings), "framework": framework}
        return _ask(self.endpoint, {**request, "default_path": os.path.abspath("dumps")})

    def end(self) -> None:
        """Stop the capture after the open step. Raises CaptureError AD306 if no capture is running."""
        _ask(self.endpoint, {"verb": "end"})

    def look(self) -> AttachTarget:
        """Return the current state of the process. Raises TargetIsBusy, or CaptureError AD306 if it has ended."""
        return _look(self.endpoint)

    def has_same_capture(self, target: AttachTarget) -> bool:
        """Return True if the states in this object and in `target`, of one process, belong to the same capture."""
        mine, theirs = self.capture or {}, target.capture or {}
        return bool(mine) and mine.get("number") == theirs.get("number")


def find_all() -> list[AttachTarget]:
    """Return the waiting processes of this user by rank and process id, without launchers and busy processes."""
    return sorted((one for one in _all() if not one.idle), key=lambda target: (target.rank, target.pid))


def _all() -> Iterator[AttachTarget]:
    for endpoint in _socket.waiting():
        try:
            yield _look(endpoint)
        except AscendDumpError:
            continue


def find(pid: int) -> AttachTarget:
    """Return the waiting process with this id. Raises CaptureError AD306, with the likely reason, if none waits."""
    endpoints = [endpoint for endpoint in _socket.waiting() if endpoint.pid == pid]
    if endpoints:
        return _look(endpoints[0])
    raise CaptureError(f"cannot attach to process {pid}: {_reason(pid)}", hint=_HINT, code="AD306")


def _reason(pid: int) -> str:
    if not _socket.is_alive(pid):
        return "there is no process with this id here; a container has process ids of its own"
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = os.geteuid()
    if owner != os.geteuid():
        return f"it belongs to user {owner}; attach as that user"
    theirs, mine = _socket.namespace_of(pid), _socket.namespace_of("self")
    if theirs and mine and theirs != mine:
        return "it runs in another container (pid namespace); run this command inside that container"
    return "it was not started with ASCEND_DUMP=wait, or has imported no framework yet"


def _look(endpoint: _socket.AttachSocket) -> AttachTarget:
    answer = _ask(endpoint, {"verb": "look"}, timeout=_PATIENCE)
    try:
        command = tuple(map(str, answer["command"]))
        return AttachTarget(
            endpoint, int(answer["rank"]), int(answer["world"]), command, bool(answer["idle"]), answer["capture"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(endpoint, repr(error)) from error


def _unusable(endpoint: _socket.AttachSocket, reason: str) -> CaptureError:
    return CaptureError(
        f"process {endpoint.pid} gave an answer that cannot be used: {reason}", hint=_HINT, code="AD306"
    )


def _ask(endpoint: _socket.AttachSocket, request: dict[str, Any], *, timeout: float = 60) -> dict[str, Any]:
    try:
        answer = _socket.ask(endpoint, request, timeout=timeout)
    except socket.timeout as error:
        raise TargetIsBusy(
            f"process {endpoint.pid} does not answer within {timeout:g} seconds",
            hint="it may be stopped, or in native code that holds the interpreter lock; try again",
        ) from error
    except ConnectionRefusedError as error:
        _socket.remove(endpoint)  # a leftover: the process now runs another program (exec), or its id was reused
        raise _gone(endpoint, error) from error
    except OSError as error:
        raise _gone(endpoint, error) from error
    refused = answer.get("error")
    if refused is not None:
        raise error_of(refused)
    return answer


def _gone(endpoint: _socket.AttachSocket, error: OSError) -> CaptureError:
    alive = _socket.is_alive(endpoint.pid)
    reason = f"it does not answer: {error.strerror or error}" if alive else "it has ended"
    return CaptureError(f"cannot attach to process {endpoint.pid}: {reason}", hint=_HINT, code="AD306")


def state_of(path: str, pid: int) -> str:
    """Return the state in the manifest of a process's newest run; "" if there is no run of the process.

    path: the directory of the run, or the directory of all dumps if the run is not known
    """
    for run in sorted((Path(path), *Path(path).glob("*/*")), key=lambda run: run.name, reverse=True):
        try:
            manifest = json.loads(read_regular(run / MANIFEST, _MOST_BYTES, follow_links=False))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(manifest, dict) and manifest.get("pid") == pid:
            return str(manifest.get("state", ""))
    return ""


def error_of(fields: Any) -> AscendDumpError:
    """Convert the fields of an answer back to an error, see `_socket.fields_of`."""
    if not isinstance(fields, dict):
        fields = {}
    kind = str(fields.get("kind"))
    error_class = getattr(errors, kind) if kind in errors.__all__ else CaptureError
    message, hint, code = (str(fields.get(name, "")) for name in ("message", "hint", "code"))
    error = error_class(message, hint=hint, code=code)
    assert isinstance(error, AscendDumpError), "every class in errors.__all__ is one"
    return error
