"""The asynchronous writer of host dumps.

The training thread hands over records; one writer thread hashes, deduplicates, computes
statistics and writes. A tensor is not copied to be queued: its storage is kept alive, and
`protect` is called before anything overwrites it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Optional, Union

import xxhash

from ascend_dump._errors import WriteError
from ascend_dump._paths import PRIVATE_DIRECTORY
from ascend_dump.writing.layout import Line
from ascend_dump.writing.step_files import StepFiles

__all__ = ["HostWriter", "Item", "Payload"]

log = logging.getLogger("ascend_dump")

_QUEUED, _COPYING, _WRITING, _DONE = range(4)

#: Bytes of tensors kept alive for the writer before the training thread waits for it.
_BUFFER_BYTES = 512 << 20
#: Records are handed to the writer in batches of about this size.
_BATCH_BYTES = 4 << 20
_BATCH_ITEMS = 100
#: The free space of the file system is looked at each time this much was written.
_CHECK_EVERY = 64 << 20
#: Free space that is left to others: 5 % of the file system, within these bounds.
_RESERVE = (64 << 20, 1 << 30)


class Payload:
    """Bytes in memory that one or more records read from.

    owner    keeps the memory at `address` alive, or is the bytes themselves
    dtype, shape  how the bytes are entered in the shard
    strided  (shape, strides in bytes) for statistics, when they are not over the plain range
    """

    __slots__ = (
        "owner",
        "address",
        "nbytes",
        "dtype",
        "shape",
        "strided",
        "state",
        "shard",
        "offset",
        "hash",
        "stats",
    )

    def __init__(
        self,
        owner: Any,
        address: int,
        nbytes: int,
        dtype: str,
        shape: tuple[int, ...],
        strided: Optional[tuple[tuple[int, ...], tuple[int, ...]]] = None,
    ) -> None:
        self.owner = owner
        self.address = address
        self.nbytes = nbytes
        self.dtype = dtype
        self.shape = shape
        self.strided = strided
        self.state = _QUEUED
        self.shard = ""
        self.offset = 0
        self.hash = ""
        self.stats: Optional[tuple[Any, ...]] = None

    def view(self) -> Union[bytes, memoryview]:
        if isinstance(self.owner, bytes):
            return self.owner
        return memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")


class Item(NamedTuple):
    """One record on its way: the line, and the bytes it reads from, if any.

    The line's `offset` is the byte position of element 0 within the payload; the writer makes
    it a file position, and fills in hash, shard, blob and statistics.
    """

    line: Line
    payload: Optional[Payload]


class _Step(NamedTuple):
    number: int


class HostWriter:
    """Write records below `directory`, one subdirectory per step.

    tensors    write values; otherwise only the index
    stats      names of `Statistics` fields to record, empty for none
    max_bytes  stop when this much is written

    Nothing raised by the file system reaches the training thread: the writer stops, reports
    once, and `failure` says why. `put` after that is accepted and dropped.
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata: dict[str, str],
        tensors: bool = True,
        stats: tuple[str, ...] = (),
        max_bytes: Optional[int] = None,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self.directory = directory
        self.failure: Optional[WriteError] = None
        self.records = 0
        self.bytes_written = 0
        self.logical_bytes = 0
        self.skipped: Counter[str] = Counter()
        self.first_skipped: dict[str, str] = {}
        self._metadata = metadata
        self._tensors = tensors
        self._stats = stats
        self._max_bytes = max_bytes
        self._buffer = buffer_bytes
        self._files: Optional[StepFiles] = None
        self._step: Optional[int] = None
        self._known: dict[tuple[bytes, int], tuple[str, int]] = {}
        self._known_stats: dict[tuple[bytes, str], tuple[Any, ...]] = {}
        self._next_check = 0
        self._queued_bytes = 0  # written by the training thread only
        self._stored_bytes = 0  # written by the writer thread only
        self._batch: list[Item] = []
        self._batch_bytes = 0
        self._waiting = 0
        self._change = threading.Condition()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread: Optional[threading.Thread] = threading.Thread(
            target=self._run, name="ascend_dump writer", daemon=True
        )
        self._thread.start()

    def begin_step(self, number: int) -> None:
        self._send()
        self._queue.put(_Step(number))

    def end_step(self) -> None:
        self._send()
        self._queue.put(_Step(-1))

    def put(self, items: list[Item], new_bytes: int) -> None:
        """Queue the records of one operator; waits while more than the buffer is queued.

        new_bytes: bytes of the payloads that this operator brings for the first time.
        """
        batch = self._batch
        batch += items
        self._batch_bytes += new_bytes
        if self._batch_bytes > _BATCH_BYTES or len(batch) > _BATCH_ITEMS:
            self._send()
            if self._queued_bytes - self._stored_bytes > self._buffer:
                self._wait(lambda: self._queued_bytes - self._stored_bytes <= self._buffer // 2)

    def _send(self) -> None:
        """Hand over what `put` gathered: waking the writer for each operator costs more."""
        if self._batch:
            self._queued_bytes += self._batch_bytes
            self._queue.put(self._batch)
            self._batch, self._batch_bytes = [], 0

    def protect(self, payload: Payload) -> None:
        """Call before the memory of `payload` changes: copies it if it is still queued."""
        if payload.state == _DONE or isinstance(payload.owner, bytes):
            return
        with self._change:
            if payload.state == _QUEUED:
                payload.state = _COPYING
        if payload.state == _COPYING:
            payload.owner = ctypes.string_at(payload.address, payload.nbytes)
            with self._change:
                payload.state = _QUEUED
                self._change.notify_all()
        else:
            self._wait(lambda: payload.state == _DONE)

    def flush(self) -> None:
        """Return when everything queued so far is readable."""
        done = threading.Event()
        self._send()
        self._queue.put(done)
        while self._thread is not None and self._thread.is_alive() and not done.wait(0.2):
            pass

    def close(self) -> None:
        """Write what is queued, complete the files and end the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._send()
            self._queue.put(None)
            thread.join()

    def abandon(self) -> None:
        """In a forked child: the thread and the files belong to the parent."""
        self._thread = None
        self._queue = SimpleQueue()

    def _wait(self, done: Any) -> None:
        with self._change:
            self._waiting += 1
            try:
                while not done() and self._thread is not None and self._thread.is_alive():
                    self._change.wait(0.1)
            finally:
                self._waiting -= 1

    # Below here: the writer thread.

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            try:
                if isinstance(item, list):
                    self._write(item)
                    if self._queue.empty() and self._files is not None:
                        self._files.flush()
                elif isinstance(item, threading.Event):
                    if self._files is not None:
                        self._files.flush()
                    item.set()
                else:
                    self._close_step()
                    if item is None:
                        return
                    self._step = item.number if item.number >= 0 else None
            except OSError as error:
                self._fail(WriteError(f"writing the dump failed: {error}", hint="the run goes on without it"))
                if isinstance(item, threading.Event):
                    item.set()
            except Exception as error:
                log.debug("the writer failed", exc_info=True)
                self._fail(WriteError(f"the dump writer failed: {error!r}", hint="please report this"))
                if isinstance(item, threading.Event):
                    item.set()
            if item is None:
                return

    def _fail(self, error: WriteError) -> None:
        if self.failure is None:
            self.failure = error
            error.reported = True
            log.warning("%s", error)
        with contextlib.suppress(OSError):
            self._close_step()

    def _close_step(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def _write(self, items: list[Item]) -> None:
        try:
            if self.failure is not None or self._step is None:
                return
            lines = []
            try:
                for line, payload in items:
                    if payload is not None:
                        if payload.state != _DONE:
                            if not self._has_room(payload):
                                return
                            self._store(payload, line)
                        line.hash = payload.hash
                        line.stats = payload.stats
                        if payload.shard:
                            line.shard = payload.shard
                            line.offset += payload.offset
                            line.blob = (payload.offset, payload.nbytes)
                    elif line.skipped:
                        self.skipped[line.skipped] += 1
                        self.first_skipped.setdefault(line.skipped, f"{line.op_name}.{line.io}.{line.index}")
                    lines.append(line)
                    self.logical_bytes += line.nbytes
            finally:
                if lines:
                    self.records += len(lines)
                    self._open_step().add(lines)
        finally:
            # Whatever happened, nothing may stay queued: the training thread could wait for it.
            for _, payload in items:
                if payload is not None and payload.state != _DONE:
                    self._release(payload)

    def _store(self, payload: Payload, line: Line) -> None:
        with self._change:
            while payload.state == _COPYING:
                self._change.wait()
            payload.state = _WRITING
        try:
            data = payload.view()
            digest = xxhash.xxh3_128_digest(data)
            payload.hash = digest.hex()
            if self._tensors:
                place = self._known.get((digest, payload.nbytes))
                if place is None:
                    name = f"{line.op_name}.{line.io}.{line.index}"
                    place = self._open_step().append(name, payload.dtype, payload.shape, data, payload.nbytes)
                    self._known[digest, payload.nbytes] = place
                    self.bytes_written += payload.nbytes
                payload.shard, payload.offset = place
            if self._stats:
                key = (digest, f"{payload.dtype}{payload.strided}")
                if key not in self._known_stats:
                    self._known_stats[key] = self._statistics(payload, data)
                payload.stats = self._known_stats[key]
        finally:
            self._release(payload)

    def _release(self, payload: Payload) -> None:
        payload.owner = None
        payload.state = _DONE
        self._stored_bytes += payload.nbytes
        if self._waiting:
            with self._change:
                self._change.notify_all()

    def _statistics(self, payload: Payload, data: Union[bytes, memoryview]) -> tuple[Any, ...]:
        from ascend_dump.writing.summary import summarize

        return summarize(data, payload.dtype, payload.strided)

    def _open_step(self) -> StepFiles:
        if self._files is None:
            assert self._step is not None, "records are dropped outside a step"
            directory = self.directory / str(self._step)
            directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
            self._files = StepFiles(directory, self._step, self._metadata, stats=self._stats)
        return self._files

    def _has_room(self, payload: Payload) -> bool:
        """Whether the next payload may be written; reports once when it may not."""
        if not self._tensors:
            return True
        if self._max_bytes is not None and self.bytes_written + payload.nbytes > self._max_bytes:
            self._fail(
                WriteError(
                    f"max_bytes={self._max_bytes} is reached after {self.records} records: "
                    "the capture stops, the run goes on",
                    hint="raise max_bytes, or select fewer steps or layers",
                    code="AD503",
                )
            )
            return False
        if self.bytes_written + payload.nbytes >= self._next_check:
            self._next_check = self.bytes_written + payload.nbytes + _CHECK_EVERY
            disk = os.statvfs(self.directory)
            free = disk.f_bavail * disk.f_frsize
            reserve = min(max(disk.f_blocks * disk.f_frsize // 20, _RESERVE[0]), _RESERVE[1])
            if free - payload.nbytes - _CHECK_EVERY < reserve:
                self._fail(
                    WriteError(
                        f"only {free >> 20} MiB are free below {self.directory}: the capture stops, the run goes on",
                        hint="free some space, give another path=, or select fewer steps or layers",
                        code="AD502",
                    )
                )
                return False
        return True
