"""The writer that works in the thread of the program, for where no CPU is left for another thread.

Operators that use every CPU wait for the slowest of their threads, so a second thread of ours
costs them more than its own time. Here a tensor is read right after the operator, while it is in
the CPU's cache, and no memory is kept for later; or, with a team, a few tensors at a time by the
threads of the operators themselves.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import deque
from pathlib import Path
from typing import Any, Callable

from ascend_dump._errors import WriteError
from ascend_dump.host.layout import Line
from ascend_dump.writing.base import Writer
from ascend_dump.writing.payload import DONE, Item, Payload, copy_memory

__all__ = ["DirectWriter"]


#: What waits for a team: enough for many threads to share, little to keep alive.
_BATCH_BYTES = 32 << 20
_BATCH_ITEMS = 200


class DirectWriter(Writer):
    """`put` returns when the records are with the files of the step, or wait for a few more."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        # Reentrant: a finalizer that runs an operator may come in between, and waits in `_todo`.
        self._lock = threading.RLock()
        self._busy = False
        self._todo: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._batch: list[Item] = []
        self._batch_bytes = 0
        self._read: list[Item] = []
        #: Whether garbage is not collected for a moment because of `_write`.
        self._paused = False
        self._closed = False
        # Compiling takes long, and the first operators are not there yet. Without it they wait.
        if not self._store.takes_many:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._attempt, args=(self._store.prepare,), daemon=True).start()

    def begin_step(self, number: int) -> None:
        self._complete(self._store.begin, number)

    def end_step(self) -> None:
        self._complete(self._store.begin, None)

    def put(self, items: list[Item], new_bytes: int) -> None:
        with self._lock:
            self._batch += items
            self._batch_bytes += new_bytes
            waits = self._store.takes_many and self._batch_bytes < _BATCH_BYTES and len(self._batch) < _BATCH_ITEMS
        if not waits:
            self._hand_over()

    def protect(self, payload: Payload) -> None:
        if payload.state != DONE and self._batch:
            # Most likely it is among them, and to read it now costs less than a copy.
            self._hand_over()
        if payload.state != DONE and not isinstance(payload.owner, bytes):
            with self._lock:  # another thread may read it at this moment
                if payload.state != DONE:
                    payload.owner = copy_memory(payload.address, payload.nbytes)

    def flush(self) -> None:
        self._complete(self._store.flush)

    def close(self) -> None:
        self._complete(self._store.close)
        self._closed = True

    def abandon(self) -> None:
        self._closed = True
        # The parent's threads may have held the lock as it forked.
        self._lock = threading.RLock()
        self._todo.clear()
        self._batch = []
        self._read = []
        if self._paused:
            gc.enable()
            self._paused = False

    def _complete(self, then: Callable[..., None], *args: Any) -> None:
        """Write all there is, before something else is done with the files."""
        self._hand_over()
        self._do(self._add_read)
        self._do(then, *args)

    def _hand_over(self) -> None:
        """Write what `put` gathered."""
        with self._lock:
            batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._do(self._write, batch)

    def _do(self, function: Callable[..., None], *args: Any) -> None:
        if self._closed:
            return
        with self._lock:
            self._todo.append((function, args))
            if self._busy:
                return
            self._busy = True
            try:
                while self._todo:
                    task, given = self._todo.popleft()
                    self._attempt(task, *given)
            finally:
                self._busy = False

    def _write(self, items: list[Item]) -> None:
        payloads = (item.payload for item in items)
        new = {id(one): one for one in payloads if one is not None and one.state != DONE}
        collects = gc.isenabled()
        try:
            # A finalizer may let go of memory, and this thread reads it.
            self._paused = collects
            gc.disable()
            if self.failure is None and self._store.step is not None:
                if new:
                    self._store.measure(list(new.values()), self._add_read)
                self._add_read()
                if self.failure is None:
                    self._write_records(items)
        finally:
            if collects:
                gc.enable()
            self._paused = False
            for payload in new.values():
                payload.owner = None
                payload.state = DONE

    def _add(self, items: list[Item]) -> None:
        if self._store.takes_many:
            self._read = items  # their lines are written while the next tensors are hashed
        else:
            super()._add(items)

    def _add_read(self) -> None:
        """Write the lines of records whose bytes were read before."""
        items, self._read = self._read, []
        if items:
            self._attempt(super()._add, items)

    def _fail(self, error: WriteError) -> None:
        self._add_read()
        super()._fail(error)

    def _write_payload(self, payload: Payload, line: Line) -> None:
        self._store.store(payload, line)
        payload.owner = None
        payload.state = DONE
