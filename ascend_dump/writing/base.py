"""What the writers of host dumps share: records go to the files of a step, and a failure ends that, not the program."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump._errors import WriteError
from ascend_dump.host.layout import Line
from ascend_dump.writing.budget import explain
from ascend_dump.writing.payload import DONE, Item, Payload
from ascend_dump.writing.shard import LIMITS, Limits
from ascend_dump.writing.store import Store
from ascend_dump.writing.team import Team

__all__ = ["Writer"]

log = logging.getLogger("ascend_dump")


class Writer(ABC):
    """Write records below `directory`, one subdirectory per step.

    tensors    write values; otherwise only the index
    stats      names of `Statistics` fields to record, empty for none
    max_bytes  stop before more bytes of tensors than this are written, with what the files hold besides from
               1 MiB on; without `tensors` when the index and statistics have about this size
    limits     when a shard is full
    team       hashes and sums up several tensors at once

    Nothing raised by the file system reaches the program: the writer stops, reports once, and
    `failure` says why. `put` after that is accepted and dropped.
    `records`, `bytes_written` (of distinct tensors) and `logical_bytes` (of all records) are
    those of what was written; they are exact once `flush` or `close` has returned.
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata: dict[str, str],
        tensors: bool = True,
        stats: tuple[str, ...] = (),
        max_bytes: Optional[int] = None,
        limits: Limits = LIMITS,
        team: Optional[Team] = None,
    ) -> None:
        self.directory = directory
        self.failure: Optional[WriteError] = None
        self.logical_bytes = 0
        self._store = Store(
            directory, metadata=metadata, tensors=tensors, stats=stats, max_bytes=max_bytes, limits=limits, team=team
        )
        self.skipped = self._store.skipped
        self.first_skipped = self._store.first_skipped

    @property
    def records(self) -> int:
        return self._store.records

    @property
    def bytes_written(self) -> int:
        return self._store.bytes_written

    @abstractmethod
    def begin_step(self, number: int) -> None:
        """Open a step; ends the one before."""

    @abstractmethod
    def end_step(self) -> None:
        """Complete the files of the open step, if there is one."""

    @abstractmethod
    def put(self, items: list[Item], new_bytes: int) -> None:
        """Take the records of one operator.

        new_bytes: about how many bytes of payloads this operator brings for the first time.
        """

    @abstractmethod
    def protect(self, payload: Payload) -> None:
        """Call before the memory of `payload` changes: copies it if its bytes are still needed."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything taken so far is readable."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left and complete the files. Idempotent."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: the files belong to the parent."""

    def _attempt(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function; whatever it raises ends the capture."""
        try:
            function(*args)
        except OSError as error:
            self._fail(explain(error, self.directory))
        except BaseException as error:
            log.debug("the writer failed", exc_info=True)
            self._fail(WriteError(f"the dump writer failed: {error!r}", hint="please report this"))
            if not self._may_swallow(error):
                raise

    def _may_swallow(self, error: BaseException) -> bool:
        """Whether an exception is ours alone; what ends a program belongs to the program."""
        return isinstance(error, Exception)

    def _fail(self, error: WriteError) -> None:
        first = self.failure is None
        if first:
            error.reported = True
            self.failure = error
        with contextlib.suppress(Exception):
            self._store.close()
        if first:
            # A handler of the user's may raise anything.
            with contextlib.suppress(Exception):
                log.warning("%s", error)

    def _write_records(self, items: list[Item]) -> None:
        stored = 0
        try:
            for item in items:
                payload = item.payload
                if payload is not None and payload.state != DONE:
                    self._write_payload(payload, item.line)
                stored += 1
        finally:
            if stored:
                self._add(items[:stored])

    def _add(self, items: list[Item]) -> None:
        """Write the lines of records whose bytes are stored."""
        self.logical_bytes += self._store.add(items)

    @abstractmethod
    def _write_payload(self, payload: Payload, line: Line) -> None: ...
