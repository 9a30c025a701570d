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

#: The largest manifest that is read, in bytes.
_MOST_BYTES = 10_000_000
#: Seconds until a process that is asked for its state counts as busy.
_PATIENCE = 10.0

_HINT = "start it with ASCEND_DUMP=wait; `ascend-dump attach --list` shows the processes that wait"


class TargetIsBusy(CaptureError):
    """The process runs but does not answer, because it is stopped or another thread holds the interpreter lock."""

    default_code = "AD306"


class AttachTarget(NamedTuple):
    """A process that waits for `ascend-dump attach`.

    rank, world  its rank and the number of ranks
    command      its command line
    idle         whether it is a launcher, which runs no model itself
    capture      the state of its last capture (`Attachment.state`), None before the first one
    """

    place: _socket.AttachSocket
    rank: int
    world: int
    command: tuple[str, ...]
    idle: bool
    capture: Optional[Mapping[str, Any]]

    @property
    def pid(self) -> int:
        return self.place.pid

    def __str__(self) -> str:
        return f"process {self.pid} (rank {self.rank})" if self.world > 1 else f"process {self.pid}"

    def check(self, settings: Mapping[str, Any], framework: Optional[str]) -> dict[str, Any]:
        """What `begin` would do: path, steps, ranks, adapter, problems. Raises what `begin` would raise."""
        return self._ask_with("check", settings, framework)

    def begin(self, settings: Mapping[str, Any], framework: Optional[str]) -> AttachTarget:
        """Start a capture with the next step, and return the target with the state of this capture.

        Raises the error that the process answers.
        """
        capture = self._ask_with("begin", settings, framework).get("capture")
        if not isinstance(capture, dict):
            raise _unusable(self.place, f"{capture!r} is not the state of a capture")
        return self._replace(capture=capture)

    def _ask_with(self, verb: str, settings: Mapping[str, Any], framework: Optional[str]) -> dict[str, Any]:
        request = {"verb": verb, "settings": dict(settings), "framework": framework}
        return _ask(self.place, {**request, "default_path": os.path.abspath("dumps")})

    def end(self) -> None:
        """Stop the capture after the open step. Raises CaptureError AD306 when none is running."""
        _ask(self.place, {"verb": "end"})

    def look(self) -> AttachTarget:
        """The current state of the process. Raises TargetIsBusy, or CaptureError AD306 when it has ended."""
        return _look(self.place)

    def has_same_capture(self, other: AttachTarget) -> bool:
        """Whether both have a state of the same capture; a process may begin another one between two looks."""
        mine, others = self.capture or {}, other.capture or {}
        return bool(mine) and mine.get("number") == others.get("number")


def find_all() -> list[AttachTarget]:
    """The waiting processes of this user, sorted by rank and process id, without launchers and busy processes."""
    return sorted((one for one in _all() if not one.idle), key=lambda one: (one.rank, one.pid))


def _all() -> Iterator[AttachTarget]:
    for place in _socket.waiting():
        try:
            yield _look(place)
        except AscendDumpError:
            continue


def find(pid: int) -> AttachTarget:
    """The waiting process with this id. Raises CaptureError AD306, with the likely reason, if there is none."""
    places = [place for place in _socket.waiting() if place.pid == pid]
    if places:
        return _look(places[0])
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


def _look(place: _socket.AttachSocket) -> AttachTarget:
    found = _ask(place, {"verb": "look"}, timeout=_PATIENCE)
    try:
        command = tuple(map(str, found["command"]))
        return AttachTarget(
            place, int(found["rank"]), int(found["world"]), command, bool(found["idle"]), found["capture"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(place, repr(error)) from error


def _unusable(place: _socket.AttachSocket, reason: str) -> CaptureError:
    return CaptureError(f"process {place.pid} gave an answer that cannot be used: {reason}", hint=_HINT, code="AD306")


def _ask(place: _socket.AttachSocket, request: dict[str, Any], *, timeout: float = 60) -> dict[str, Any]:
    try:
        answer = _socket.ask(place, request, timeout=timeout)
    except socket.timeout as error:
        raise TargetIsBusy(
            f"process {place.pid} does not answer within {timeout:g} seconds",
            hint="it may be stopped, or in native code that holds the interpreter lock; try again",
        ) from error
    except ConnectionRefusedError as error:
        _socket.remove(place)  # a leftover: the process now runs another program (exec), or its id was reused
        raise _gone(place, error) from error
    except OSError as error:
        raise _gone(place, error) from error
    refused = answer.get("error")
    if refused is not None:
        raise error_of(refused)
    return answer


def _gone(place: _socket.AttachSocket, error: OSError) -> CaptureError:
    alive = _socket.is_alive(place.pid)
    reason = f"it does not answer: {error.strerror or error}" if alive else "it has ended"
    return CaptureError(f"cannot attach to process {place.pid}: {reason}", hint=_HINT, code="AD306")


def state_of(path: str, pid: int) -> str:
    """The state that the manifest of a process's newest run records, "" without such a run.

    path: the directory of the run, or that of all dumps when the run is not known.
    """
    for run in sorted((Path(path), *Path(path).glob("*/*")), key=lambda place: place.name, reverse=True):
        try:
            found = json.loads(read_regular(run / MANIFEST, _MOST_BYTES, follow_links=False))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("pid") == pid:
            return str(found.get("state", ""))
    return ""


def error_of(fields: Any) -> AscendDumpError:
    """The error that an answer carries, see `_socket.fields_of`."""
    if not isinstance(fields, dict):
        fields = {}
    kind = str(fields.get("kind"))
    made = getattr(errors, kind) if kind in errors.__all__ else CaptureError
    message, hint, code = (str(fields.get(name, "")) for name in ("message", "hint", "code"))
    found = made(message, hint=hint, code=code)
    assert isinstance(found, AscendDumpError), "every class in errors.__all__ is one"
    return found
