"""The state of a triage on disk: its finished rounds, so that an interrupted triage can be resumed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump.common.paths import add_private_directory, make_private_directory, open_private
from ascend_dump.errors import CaptureError, WriteError
from ascend_dump.storage.files import read_small
from ascend_dump.triage_runs._command import is_running

__all__ = ["STATE", "TriageState"]

STATE = "triage.json"
_SCHEMA = "ascend-dump/triage-state/1"
_LOCK = ".lock"
_TIME = "%Y%m%d%H%M%S"
_MAX_STATE_BYTES = 1 << 24


class TriageState:
    """One triage: its directory, its settings, and its rounds as JSON values.

    directory   `{path}/{time}`
    is_resumed  True if rounds of an earlier process were read from disk
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any], lock: int, rounds: list[dict[str, Any]]) -> None:
        self.directory = directory
        self.is_resumed = bool(rounds)
        self.rounds = rounds
        self._settings = dict(settings)
        self._lock = lock

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any]) -> TriageState:
        """Return the newest unfinished triage below `path` that has the same settings, else a new triage.

        A triage that another process has locked is passed over.

        Raises WriteError if the state cannot be written or locked, and CaptureError if a command of the interrupted
        triage still runs.
        """
        make_private_directory(path)
        for directory in sorted(_directories(path), reverse=True):
            document = _read_state(directory)
            if document is None or document.get("asked") != settings or document.get("ended"):
                continue
            lock = _lock_directory(directory)
            if lock is not None:
                state = cls(directory, settings, lock, list(document.get("rounds") or ()))
                with state._closed_on_error():
                    state._discard_unfinished()
                return state
        state = cls._new(path, settings)
        with state._closed_on_error():
            state.save()
        return state

    @classmethod
    def _new(cls, path: Path, settings: Mapping[str, Any]) -> TriageState:
        second = time.time()
        while True:
            directory = path / time.strftime(_TIME, time.localtime(second))
            try:
                add_private_directory(directory)
                break
            except FileExistsError:
                second += 1
            except OSError as error:
                raise _unwritable(directory, error) from error
        lock = _lock_directory(directory)
        if lock is None:
            raise CaptureError(f"another triage uses {directory}", hint="run the same command again")
        return cls(directory, settings, lock, [])

    def save(self, *, ended: bool = False) -> None:
        """Write the state atomically. Raises WriteError."""
        fields = {"schema": _SCHEMA, "asked": self._settings, "rounds": self.rounds, "ended": ended}
        draft = self.directory / f".{STATE}"
        try:
            with open(open_private(draft, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
                json.dump(fields, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.directory / STATE)
        except OSError as error:
            raise _unwritable(self.directory, error) from error

    def close(self) -> None:
        os.close(self._lock)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _discard_unfinished(self) -> None:
        """Remove the rounds that were interrupted, and their files. Raises CaptureError if one of them still runs."""
        unfinished = [entry for entry in self.rounds if not entry.get("finished")]
        for entry in unfinished:
            if is_running(entry.get("process"), entry.get("birth")):
                raise CaptureError(
                    f"round {entry.get('number')} of the interrupted triage in {self.directory} still runs, as process "
                    f"{entry['process']}",
                    hint=f"end it (`kill -- -{entry['process']}`) or wait for it, then run the same command again",
                )
        self.rounds = [entry for entry in self.rounds if entry.get("finished")]
        for entry in unfinished:
            name = str(entry.get("name"))
            if name and os.sep not in name and name not in (".", ".."):
                shutil.rmtree(self.directory / name, ignore_errors=True)


def _directories(path: Path) -> list[Path]:
    try:
        return [
            entry
            for entry in path.iterdir()
            if len(entry.name) == 14 and entry.name.isdecimal() and not entry.is_symlink()
        ]
    except OSError:
        return []


def _read_state(directory: Path) -> Optional[dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads(read_small(directory / STATE, _MAX_STATE_BYTES, follow_links=False))
        if isinstance(document, dict) and document.get("schema") == _SCHEMA and _are_rounds(document.get("rounds")):
            return document
    return None


def _are_rounds(value: Any) -> bool:
    return isinstance(value, list) and all(_is_round(entry) for entry in value)


def _is_round(value: Any) -> bool:
    if not isinstance(value, dict) or type(value.get("number")) is not int or not isinstance(value.get("name"), str):
        return False
    if not value.get("finished"):
        return True
    code = value.get("exit_code")
    numbers = (value.get("seconds"), value.get("nbytes"))
    return (code is None or type(code) is int) and all(type(number) in (int, float) for number in numbers)


def _lock_directory(directory: Path) -> Optional[int]:
    """Lock a directory. Return the descriptor of its lock file, None if another process has locked it.

    Raises WriteError.
    """
    try:
        lock = open_private(directory / _LOCK, os.O_WRONLY)
    except OSError as error:
        raise _unwritable(directory, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise WriteError(
            f"the state of the triage in {directory} cannot be locked: {error.strerror}",
            hint="set --path to a directory of a file system with locks, such as a local one",
        ) from error
    return lock


def _unwritable(directory: Path, error: OSError) -> WriteError:
    return WriteError(
        f"the state of the triage in {directory} cannot be written: {error.strerror}",
        hint="free some space and run the same command again, which resumes; or set --path to a directory that can be "
        "written",
    )
