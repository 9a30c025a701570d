"""The asynchronous writer of host dumps.

The training thread hands over records; one writer thread hashes, deduplicates, computes
statistics and writes. A tensor is not copied to be queued: its storage is kept alive, and
`protect` is called before anything overwrites it. One of which nothing new is to be written
needs not be queued at all (`complete`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Callable, NamedTuple, Optional, Union

from ascend_dump._errors import WriteError
from ascend_dump._tally import Tally
from ascend_dump.host import Line
from ascend_dump.writing.budget import SizeLimit, explain
from ascend_dump.writing.ending import Ended
from ascend_dump.writing.payload import COPYING, DONE, QUEUED, WRITING, Item, Payload, copy_memory
from ascend_dump.writing.shard import LIMITS, Limits
from ascend_dump.writing.store import Store

__all__ = ["HostWriter"]

log = logging.getLogger("ascend_dump")

#: Bytes of tensors kept alive for the writer before the training thread waits for it.
_BUFFER_BYTES = 512 << 20
#: What a queued record takes besides its tensor's bytes: they too must not pile up without bound.
_ITEM_BYTES = 1024
#: Records are handed to the writer in batches of about this size.
_BATCH_BYTES = 4 << 20
_BATCH_ITEMS = 100
#: A smaller batch waits at most this long: the program may hang and then be killed.
_IDLE_SECONDS = 0.5
#: A program that is killed loses at most about so many records, or those of so many seconds, whichever are more:
#: it waits when the writer falls behind further. A third of the records may be in the batch.
_LOST_ITEMS = 300
_LOST_SECONDS = 0.5
#: What the names of our own threads begin with.
_OURS = "ascend_dump"
_Task = Union[list[Item], threading.Event, "_Step", str, None]


class _Step(NamedTuple):
    number: Optional[int]


class EmptySteps(NamedTuple):
    """How many steps there are without a record, and the first of them."""

    total: int = 0
    first: Optional[int] = None


class HostWriter:
    """Write records below `directory`, one subdirectory per step.

    tensors    write values; otherwise only the index
    stats      names of `Statistics` fields to record, empty for none
    max_bytes  stop before more bytes of tensors than this are written, with what the files hold besides from
               1 MiB on; without `tensors` when the index and statistics have about this size
    steps      how many will be recorded, None if unknown. Once the first one is complete, its size is multiplied by
               this, and a warning says when the disk or `max_bytes` has no room for all of them
    keep       how many steps stay, the last ones; `max_bytes` then counts what is on disk
    until      "nonfinite": nothing is recorded after the first step that produced NaN or Inf
    limits     when a shard is full
    buffer_bytes  of tensors that are kept alive for the thread before the program waits for it

    Nothing raised by the file system reaches the program: the writer stops, reports once, and
    `failure` says why. `put` after that is accepted and dropped.
    `records`, `bytes_written` (of distinct tensors) and `logical_bytes` (of all records) are
    those of what was written; they are exact once `flush` or `close` has returned.
    `empty_steps` tells of steps that have ended without a record.
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
        until: Optional[str] = None,
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
            until=until,
            limits=limits,
        )
        self._told = False
        self.skipped = self._store.skipped
        self.first_skipped = self._store.first_skipped
        self._buffer = buffer_bytes
        # Reentrant both: a finalizer that runs an operator may come in between.
        self._handing_over = threading.RLock()
        self._change = threading.Condition(threading.RLock())
        self._queued_bytes = 0  # written under _handing_over
        self._stored_bytes = 0  # written by the writer thread only
        self._batch: list[Item] = []
        self._batch_bytes = 0
        self._batch_time = 0.0
        #: When each batch began that was handed over and is not in the files; and how many records those are.
        self._unsaved: deque[float] = deque()
        self._handed_over = 0  # written under _handing_over
        self._saved = 0  # written by the writer thread only, as what follows
        self._unsaved_batches = 0
        self._unsaved_items = 0
        self._waiting = 0
        self._queue: SimpleQueue[_Task] = SimpleQueue()
        self._closing = False
        #: None until there is something to write: a block of which no step is selected needs none.
        self._thread: Optional[threading.Thread] = None

    @property
    def records(self) -> int:
        return self._store.records

    @property
    def bytes_written(self) -> int:
        return self._store.bytes_written

    def tally(self) -> Tally:
        """What was recorded so far; exact once `close` has returned."""
        steps, operators, records = self._store.on_disk()
        return Tally(steps, operators, records, self.logical_bytes, self._begun)

    @property
    def tensor_bytes(self) -> int:
        """Of distinct tensors that are on disk: those written, but for what was removed."""
        return self._store.retention.tensor_bytes

    @property
    def ended(self) -> Optional[Ended]:
        """Why nothing is recorded after a step, None while more is. The thread is behind the program by what waits."""
        return self._store.ended

    def end(self, reason: str) -> None:
        """Record nothing after the open step, which stays with those before it. The first reason holds."""
        self._send(reason)

    def kept(self) -> dict[str, Any]:
        """What a manifest says of the steps that stay; exact once `close` has returned.

        removed  with keep: how many steps were removed, how many records they had, the first and the last of them
        ended    why and where the recording ended before the capture did, if it did
        unknown  with until="nonfinite": of how many tensors nobody could tell whether they hold NaN or Inf
        """
        store = self._store
        found: dict[str, Any] = {}
        if store.retention.keep is not None:
            found["removed"] = store.retention.summary()
        if store.ended is not None:
            found["ended"] = store.ended._asdict()
        if store.watch is not None:
            found["unknown"] = store.watch.unknown
        return found

    def begin_step(self, number: int) -> None:
        """Open a step; ends the one before."""
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
        """Queue the records of one operator; waits while more than the buffer is queued.

        new_bytes: about how many bytes of payloads this operator brings for the first time.
        """
        if self.failure is not None or self._closing:
            return
        self._is_empty = False
        with self._handing_over:
            if not self._batch:
                self._batch_time = time.monotonic()
            self._batch.extend(items)
            self._batch_bytes += new_bytes
            full = self._batch_bytes > _BATCH_BYTES or len(self._batch) > _BATCH_ITEMS
        if full:
            self._send()
            if self._queued_bytes - self._stored_bytes > self._buffer:
                self._wait(lambda: self._queued_bytes - self._stored_bytes <= self._buffer // 2)
            if self._is_behind(_LOST_SECONDS):
                self._wait(lambda: not self._is_behind(_LOST_SECONDS / 2))

    def complete(self, payload: Payload) -> bool:
        """Finish a payload whose digest is known, if nothing is to be written of it: the memory may change after that.

        False: it has to be queued, since its bytes are new.
        """
        if not self._store.complete(payload):
            return False
        payload.owner = None
        payload.state = DONE
        payload.counted = True
        return True

    def protect(self, payload: Payload) -> None:
        """Call before the memory of `payload` changes: copies it if its bytes are still needed."""
        if payload.state == DONE or isinstance(payload.owner, bytes):
            return
        with self._change:
            mine = payload.state == QUEUED
            if mine:
                if self.failure is not None or not self._is_alive():
                    return  # nothing will read it any more
                payload.state = COPYING
        if mine:
            self._copy(payload)
        else:
            self._wait(lambda: payload.state == DONE or isinstance(payload.owner, bytes))

    def flush(self) -> None:
        """Return when everything taken so far is readable."""
        if self._thread is None and not self._batch:
            return
        done = threading.Event()
        self._send(done)
        while self._is_alive() and not done.wait(0.2):
            pass

    def close(self) -> None:
        """Write what is queued, complete the files and end the thread. Idempotent."""
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
        """In a forked child: the files belong to the parent."""
        self._thread = None
        self._closing = True
        # The parent's threads may have held the locks as it forked.
        self._handing_over = threading.RLock()
        self._change = threading.Condition(threading.RLock())
        self._queue = SimpleQueue()
        self._batch = []

    def _send(self, then: _Task = None) -> None:
        """Hand over what `put` gathered: waking the writer for each operator costs more."""
        self._start_thread()
        if not self._is_alive():
            self._batch.clear()
            if self.failure is None and not self._closing:
                # Only the end of the interpreter stops it from outside.
                self.failure = WriteError(
                    "the writer thread has ended", hint="stop the capture before the process ends"
                )
            return
        fresh: list[Item] = []
        with self._handing_over:
            batch, self._batch, self._batch_bytes = self._batch, fresh, 0
            if batch:
                nbytes = len(batch) * _ITEM_BYTES
                for item in batch:
                    payload = item.payload
                    if payload is not None and not payload.counted:
                        payload.counted = True
                        nbytes += payload.nbytes
                self._queued_bytes += nbytes
                self._handed_over += len(batch)
                self._unsaved.append(self._batch_time)
                self._queue.put(batch)
            if then is not None:
                self._queue.put(then)

    def _copy(self, payload: Payload) -> None:
        """Copy a payload that the caller has put into the state COPYING."""
        copy = None
        try:
            copy = copy_memory(payload.address, payload.nbytes)
        except MemoryError:
            self._send()
            if not payload.counted:
                raise  # not handed over yet, so that waiting would not help
        finally:
            with self._change:
                if copy is not None:
                    payload.owner = copy
                payload.state = QUEUED
                self._change.notify_all()
        if copy is None:
            self._wait(lambda: payload.state == DONE)

    def _is_behind(self, seconds: float) -> bool:
        """Whether many records wait, the first of them for longer than this."""
        if self.failure is not None or self._handed_over - self._saved <= _LOST_ITEMS - _BATCH_ITEMS:
            return False
        try:
            return time.monotonic() - self._unsaved[0] > seconds
        except IndexError:
            return False

    def _start_thread(self) -> None:
        """With the first thing to write."""
        if self._thread is not None or self._closing or self.failure is not None:
            return
        with self._handing_over:
            if self._thread is not None:
                return
            # Known before it runs: a finalizer that comes in between must not start another.
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
        looks = _may_be_left_alone()
        while True:
            try:
                task = self._queue.get(timeout=None if self._store.step is None and not looks else _IDLE_SECONDS)
            except Empty:
                self._send()
                if looks and _is_left_alone():
                    self._queue.put(None)
                continue
            self._attempt(self._do, task)
            if isinstance(task, threading.Event):
                task.set()
            elif task is None:
                return

    def _attempt(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function; whatever it raises ends the capture, and not this thread: others wait for it."""
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
            # A handler of the user's may raise anything.
            with contextlib.suppress(Exception):
                log.warning("%s", error)

    def _do(self, task: _Task) -> None:
        if isinstance(task, list):
            self._unsaved_batches += 1
            self._unsaved_items += len(task)
            self._write(task)
            if not self._queue.empty() and not self._is_behind(_LOST_SECONDS / 4):
                return
            self._store.flush()
        elif isinstance(task, str):
            self._store.end(task)
            return
        elif isinstance(task, threading.Event):
            self._store.flush()
        elif task is None and self.failure is None:
            self._store.finish()
        else:
            self._store.begin(None if task is None else task.number)
        self._count_saved()
        self._tell_end()

    def _tell_end(self) -> None:
        """Say once which step ended the recording by what it produced."""
        ended = self._store.ended
        if ended is not None and ended.operator and not self._told:
            self._told = True
            log.warning("%s at step %s: the capture keeps it and records nothing more", ended.reason, ended.step)

    def _count_saved(self) -> None:
        for _ in range(self._unsaved_batches):
            self._unsaved.popleft()
        self._saved += self._unsaved_items
        self._unsaved_batches = self._unsaved_items = 0
        self._wake()

    def _write(self, items: list[Item]) -> None:
        try:
            if self.failure is None and self._store.step is not None:
                self._write_records(items)
        finally:
            # Whatever happened, nothing may stay queued: the training thread could wait for it.
            for item in items:
                payload = item.payload
                if payload is not None and payload.state != DONE:
                    self._release(payload)
            self._count_stored(len(items) * _ITEM_BYTES)

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
                # The lines of records whose bytes are stored.
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
        self._count_stored(payload.nbytes)

    def _count_stored(self, nbytes: int) -> None:
        self._stored_bytes += nbytes
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            with self._change:
                self._change.notify_all()


def _may_be_left_alone() -> bool:
    """Whether another thread than the main one forked this process.

    That thread is the main one here, and only returns: Python calls none of its exit functions for it, and the process
    ends with its last thread, which must not be the one that waits for more to write.
    """
    return type(threading.main_thread()).__name__ != "_MainThread"


def _is_left_alone() -> bool:
    return all(thread.name.startswith(_OURS) for thread in threading.enumerate())
