"""The asynchronous writer of dumps in ascend_dump's own format.

The recording thread queues records; one writer thread hashes, deduplicates, computes
statistics and writes. A queued tensor is not copied: its storage is kept alive, and `protect`
must be called before the storage is overwritten. The bytes of a tensor that is stored already
are not queued again (`complete`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Callable, NamedTuple, Optional, Union

from ascend_dump.common.counters import Tally
from ascend_dump.dump_format import Line
from ascend_dump.errors import WriteError
from ascend_dump.request import DumpRequest
from ascend_dump.statistics import STATISTIC_NAMES
from ascend_dump.writing.backlog import Backlog
from ascend_dump.writing.budget import SizeLimit, explain
from ascend_dump.writing.ending import Ended, NonfiniteWatch
from ascend_dump.writing.payload import COPYING, DONE, QUEUED, WRITING, Item, Payload, copy_memory
from ascend_dump.writing.shard import LIMITS, Limits
from ascend_dump.writing.store import Store

__all__ = ["HostWriter"]

log = logging.getLogger("ascend_dump")

#: Bytes of queued tensors above which the recording thread waits.
_BUFFER_BYTES = 512 << 20
#: Maximum number of operators with harmless NaN or Inf that the manifest names.
_MOST_HARMLESS = 16
#: A batch of records is queued when it exceeds this many bytes of tensors, or this many records.
_BATCH_BYTES = 4 << 20
_BATCH_ITEMS = 100
#: The limit of records in a batch if the last steps stay in memory (`HeldSteps`).
_HELD_BATCH_ITEMS = 1000
#: A smaller batch is queued if the writer gets nothing for this many seconds: the program may hang and then be killed.
_IDLE_SECONDS = 0.5
#: Prefix of the names of ascend_dump's threads.
_OURS = "ascend_dump"
_Task = Union[list[Item], threading.Event, "_Step", str, None]


class _Step(NamedTuple):
    number: Optional[int]


class EmptySteps(NamedTuple):
    """The number of steps without a record, and the first of them."""

    total: int = 0
    first: Optional[int] = None


class HostWriter:
    """Write records below `directory`, one subdirectory per step.

    tensors    True to write values; otherwise only the index is written
    stats      names of the `Statistics` fields to record; empty for none
    max_bytes  limit for the bytes of tensors plus the bytes of other files, of which the first MiB does not count.
               Without `tensors` it is the limit for the bytes of index and statistics. Recording stops before the
               limit is exceeded
    steps      the number of steps that will be recorded; None if unknown. After the first one a warning is logged if
               the disk or `max_bytes` has no room for all of them
    keep       the number of last steps to keep on disk; `max_bytes` then applies to the bytes on disk
    spread     with `keep`: keep steps at equal distances over the whole run, not the last ones
    until      "nonfinite": record nothing after the first step that produced NaN or Inf
    ignored    operators whose NaN and Inf do not count, in the form of `DumpRequest.ignore`
    follows    True if all operators are recorded with inputs and outputs. Then NaN and Inf are followed through the
               step, and do not count if they are gone at its end
    limits     the size limits of a shard
    buffer_bytes  bytes of queued tensors above which the program waits

    Errors of the file system never reach the program: the writer stops, logs the error once and sets `failure`. Later
    records are dropped.
    `records`, `bytes_written` (of distinct tensors) and `logical_bytes` (of all records) count what was written; they
    are exact after `flush` or `close` has returned. `empty_steps` counts steps that ended without a record.
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata: dict[str, str],
        tensors: bool = True,
        stats: tuple[str, ...] = (),
        max_bytes: Union[int, SizeLimit, None] = None,
        steps: Optional[int] = None,
        keep: Optional[int] = None,
        spread: bool = False,
        until: Optional[str] = None,
        ignored: Sequence[str] = (),
        follows: bool = False,
        limits: Limits = LIMITS,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self.directory = directory
        self.failure: Optional[WriteError] = None
        self.logical_bytes = 0
        self.empty_steps = EmptySteps()
        self._begun = 0
        self._open: Optional[int] = None
        self._is_empty = True
        self._store = Store(
            directory,
            metadata=metadata,
            tensors=tensors,
            stats=stats,
            limit=SizeLimit(max_bytes) if isinstance(max_bytes, int) else max_bytes,
            steps=steps,
            keep=keep,
            spread=spread,
            watch=NonfiniteWatch(ignored, follows=follows) if until == "nonfinite" else None,
            limits=limits,
        )
        self._is_end_logged = False
        self.skipped = self._store.skipped
        self.first_skipped = self._store.first_skipped
        self._backlog = Backlog(buffer_bytes)
        # Reentrant, because a finalizer may run an operator while the lock is held.
        self._handing_over = threading.RLock()
        self._change = threading.Condition(threading.RLock())
        self._batch: list[Item] = []
        self._batch_items = _BATCH_ITEMS if tensors or keep is None else _HELD_BATCH_ITEMS
        self._batch_bytes = 0
        self._batch_time = 0.0
        self._waiting = 0
        self._queue: SimpleQueue[_Task] = SimpleQueue()
        self._closing = False
        #: None until there is something to write: without a selected step no thread is started.
        self._thread: Optional[threading.Thread] = None

    @classmethod
    def of_request(
        cls, request: DumpRequest, directory: Path, limit: Optional[SizeLimit], *, framework: str = ""
    ) -> HostWriter:
        """Create the writer for the settings of a request."""
        return cls(
            directory,
            metadata={"producer": "ascend_dump", **({"framework": framework} if framework else {})},
            tensors=request.data in ("tensor", "full"),
            stats=(request.stats or STATISTIC_NAMES) if request.data in ("stats", "full") else (),
            max_bytes=limit,
            steps=request.steps.count,
            keep=request.keep,
            spread=bool(request.options.get("spread", False)),
            until=request.until,
            ignored=request.ignore,
            follows=request.mode == "all" and not request.layers and request.level != "module" and not request.scene,
            buffer_bytes=request.options.get("buffer_bytes") or _BUFFER_BYTES,
        )

    @property
    def records(self) -> int:
        return self._store.records

    @property
    def bytes_written(self) -> int:
        return self._store.bytes_written

    def tally(self) -> Tally:
        """Return the counts of the recorded steps and records; exact after `close` has returned."""
        steps, operators, records = self._store.on_disk()
        return Tally(steps, operators, records, self.logical_bytes, self._begun, in_memory=self._store.most_held)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of distinct tensors on disk, without removed steps."""
        return self._store.retention.tensor_bytes

    @property
    def ended(self) -> Optional[Ended]:
        """The reason why the recording ended; None if it goes on. Set by the writer thread."""
        return self._store.ended

    def end(self, reason: str) -> None:
        """Record nothing after the open step, which stays in addition to the `keep` steps before it.

        If called again, the first reason stays.
        """
        self._send(reason)

    def kept(self) -> dict[str, Any]:
        """Return fields of the manifest about removed steps and NaN and Inf; exact after `close` has returned.

        removed  with keep: the number of removed steps and of their records, and the first and last of these steps
        ended    the fields of `Ended`, only if the recording ended before the capture
        unknown  with until="nonfinite": the number of tensors that could not be checked for NaN and Inf
        harmless  operators whose NaN or Inf was gone at the end of their step, with the number of these steps
        """
        store = self._store
        fields: dict[str, Any] = {}
        if store.retention.keep is not None:
            fields["removed"] = store.retention.summary()
        if store.ended is not None:
            fields["ended"] = store.ended._asdict()
        if store.watch is not None:
            fields["unknown"] = store.watch.unknown
            if store.watch.harmless:
                fields["harmless"] = dict(store.watch.harmless.most_common(_MOST_HARMLESS))
        return fields

    def begin_step(self, number: int) -> None:
        """End the open step and open another one."""
        self._note_end()
        self._open = number
        self._begun += 1
        self._send(_Step(number))

    def end_step(self) -> None:
        """Complete the files of the open step, if there is one."""
        self._note_end()
        if self._thread is not None:
            self._send(_Step(None))

    def _note_end(self) -> None:
        if self._open is not None and self._is_empty:
            first = self._open if self.empty_steps.first is None else self.empty_steps.first
            self.empty_steps = EmptySteps(self.empty_steps.total + 1, first)
        self._open, self._is_empty = None, True

    def put(self, items: list[Item], new_bytes: int) -> None:
        """Queue the records of one operator.

        Waits while more than `buffer_bytes` are queued, or while many records are in no file yet (`Backlog.is_late`).

        new_bytes  approximate bytes of the payloads that are queued for the first time
        """
        if self.failure is not None or self._closing:
            return
        self._is_empty = False
        with self._handing_over:
            if not self._batch:
                self._batch_time = time.monotonic()
            self._batch.extend(items)
            self._batch_bytes += new_bytes
            full = self._batch_bytes > _BATCH_BYTES or len(self._batch) > self._batch_items
        if full:
            self._send()
            if self._backlog.is_full():
                self._wait(lambda: not self._backlog.is_full(0.5))
            if self._is_late():
                self._wait(lambda: not self._is_late(0.5))

    def complete(self, payload: Payload) -> bool:
        """Complete a payload that has a digest without the writer thread, if that is possible (`Store.complete`).

        If True is returned, the memory of the payload may change. If False, the payload must be queued.
        """
        if not self._store.complete(payload):
            return False
        payload.owner = None
        payload.state = DONE
        payload.counted = True
        return True

    def protect(self, payload: Payload) -> None:
        """Prepare for a change of the payload's memory: call before each change.

        If the bytes are still queued, copy them; if the writer is using them, wait until it has finished.
        """
        if payload.state == DONE or isinstance(payload.owner, bytes):
            return
        with self._change:
            mine = payload.state == QUEUED
            if mine:
                if self.failure is not None or not self._is_alive():
                    return  # nothing is written any more
                payload.state = COPYING
        if mine:
            self._copy(payload)
        else:
            self._wait(lambda: payload.state == DONE or isinstance(payload.owner, bytes))

    def flush(self) -> None:
        """Wait until all records queued so far are in the files."""
        if self._thread is None and not self._batch:
            return
        done = threading.Event()
        self._send(done)
        while self._is_alive() and not done.wait(0.2):
            pass

    def close(self) -> None:
        """Write the queue, complete the files and end the thread. A second call does nothing."""
        if self._batch:
            self._send()
        thread = self._thread
        if thread is None:
            self._closing = True
        elif thread is not threading.current_thread():
            self._send()
            self._closing = True
            self._queue.put(None)
            thread.join()

    def abandon(self) -> None:
        """Drop all state in a forked child, because the files belong to the parent."""
        self._thread = None
        self._closing = True
        # Threads of the parent may have held the locks at the fork.
        self._handing_over = threading.RLock()
        self._change = threading.Condition(threading.RLock())
        self._queue = SimpleQueue()
        self._batch = []

    def _send(self, then: _Task = None) -> None:
        """Queue the batch of records, then `then` unless it is None.

        Records are queued in batches because waking the writer for each operator is slower.
        """
        self._start_thread()
        if not self._is_alive():
            self._batch.clear()
            if self.failure is None and not self._closing:
                # The thread ends without `close` and without a failure only at the end of the interpreter.
                self.failure = WriteError(
                    "the writer thread has ended", hint="stop the capture before the process ends"
                )
            return
        fresh: list[Item] = []
        with self._handing_over:
            batch, self._batch, self._batch_bytes = self._batch, fresh, 0
            if batch:
                self._backlog.add(batch, self._batch_time)
                self._queue.put(batch)
            if then is not None:
                self._queue.put(then)

    def _copy(self, payload: Payload) -> None:
        """Copy the bytes of a payload that the caller has put into the state COPYING."""
        copy = None
        try:
            copy = copy_memory(payload.address, payload.nbytes)
        except MemoryError:
            self._send()
            if not payload.counted:
                raise  # not queued yet, so waiting would not help
        finally:
            with self._change:
                if copy is not None:
                    payload.owner = copy
                payload.state = QUEUED
                self._change.notify_all()
        if copy is None:
            self._wait(lambda: payload.state == DONE)

    def _is_late(self, share: float = 1.0) -> bool:
        return self.failure is None and self._backlog.is_late(share)

    def _start_thread(self) -> None:
        """Start the writer thread, when there is something to write."""
        if self._thread is not None or self._closing or self.failure is not None:
            return
        with self._handing_over:
            if self._thread is not None:
                return
            # Assigned before the thread starts: a finalizer may run in between and must not start another thread.
            self._thread = threading.Thread(target=self._run, name=f"{_OURS} writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                hint = "lower the number of threads"
                self._fail(WriteError(f"the writer thread cannot be started: {error}", hint=hint))

    def _is_alive(self) -> bool:
        thread = self._thread
        return thread is not None and (thread.ident is None or thread.is_alive())

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._change:
            self._waiting += 1
            try:
                while not done() and self._is_alive():
                    self._change.wait(0.1)
            finally:
                self._waiting -= 1

    # Below here: the writer thread.

    def _run(self) -> None:
        self._attempt(self._store.prepare)
        # True if this thread has to end by itself once no other thread of the program is left.
        looks = _may_be_left_alone()
        while True:
            try:
                task = self._queue.get(timeout=_IDLE_SECONDS if self._may_be_idle() or looks else None)
            except Empty:
                if self._batch:
                    self._send()
                elif self._store.holds_steps:
                    # The program may only be computing, or may hang and be killed later.
                    self._attempt(self._store.write_held)
                if looks and _is_left_alone():
                    self._queue.put(None)
                continue
            self._attempt(self._do, task)
            if isinstance(task, threading.Event):
                task.set()
            elif task is None:
                return

    def _may_be_idle(self) -> bool:
        return self._store.step is not None or self._store.holds_steps

    def _attempt(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function. An exception ends the capture, but not this thread: other threads may wait for it."""
        try:
            function(*args)
        except OSError as error:
            self._fail(explain(error, self.directory))
        except BaseException as error:
            log.debug("the writer failed", exc_info=True)
            self._fail(WriteError(f"the dump writer failed: {error!r}", hint="please report this"))

    def _fail(self, error: WriteError) -> None:
        first = self.failure is None
        if first:
            error.reported = True
            self.failure = error
        with contextlib.suppress(Exception):
            self._store.close()
        if first:
            # A logging handler of the user may raise.
            with contextlib.suppress(Exception):
                log.warning("%s", error)

    def _do(self, task: _Task) -> None:
        if isinstance(task, list):
            self._backlog.take(task)
            self._write(task)
            # If more is queued, the buffered data is written together with it, unless that would be late.
            if not self._queue.empty() and not self._is_late(0.25):
                return
            self._store.flush()
        elif isinstance(task, str):
            self._store.end(task)
            return
        elif isinstance(task, threading.Event):
            self._store.write_held()
            self._store.flush()
        elif task is None and self.failure is None:
            self._store.finish()
        else:
            self._store.begin(None if task is None else task.number)
        self._backlog.save()
        self._wake()
        self._log_end()

    def _log_end(self) -> None:
        """Log in which step NaN or Inf ended the recording. Later calls do nothing."""
        ended = self._store.ended
        if ended is not None and ended.operator and not self._is_end_logged:
            self._is_end_logged = True
            log.warning("%s at step %s: the capture keeps it and records nothing more", ended.reason, ended.step)

    def _write(self, items: list[Item]) -> None:
        try:
            if self.failure is None and self._store.step is not None:
                self._write_records(items)
        finally:
            # Even after a failure no payload may stay queued: the recording thread may be waiting for it.
            for item in items:
                payload = item.payload
                if payload is not None and payload.state != DONE:
                    self._release(payload)
            self._backlog.store_lines(items)
            self._wake()

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
                # If storing one record failed, the lines of the records before it are still written.
                self.logical_bytes += self._store.add(items[:stored])

    def _write_payload(self, payload: Payload, line: Line) -> None:
        with self._change:
            while payload.state == COPYING:
                self._change.wait()
            payload.state = WRITING
        try:
            self._store.store(payload, line)
        finally:
            self._release(payload)

    def _release(self, payload: Payload) -> None:
        payload.owner = None
        payload.state = DONE
        self._backlog.store(payload.nbytes)
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            with self._change:
                self._change.notify_all()


def _may_be_left_alone() -> bool:
    """Return True if this process was forked by a thread other than the main one.

    The thread that forked is the main thread of this process. When it returns, Python runs no exit functions, and the
    process ends with its last thread. A writer that waits for records would keep the process alive for ever.
    """
    return type(threading.main_thread()).__name__ != "_MainThread"


def _is_left_alone() -> bool:
    # True if only threads of ascend_dump are left.
    return all(thread.name.startswith(_OURS) for thread in threading.enumerate())
