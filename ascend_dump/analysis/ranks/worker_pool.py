"""A worker pool that survives the death of one of its processes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from queue import SimpleQueue
from typing import Any, Optional, TypeVar

from ascend_dump.common.log import log
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, WorkerLost

__all__ = ["RankWorkers"]

_Result = TypeVar("_Result")
_GUARD = 'start workers below `if __name__ == "__main__":`, because each worker process imports the program first'
#: If the process of one task dies this many times, the task itself is taken as the reason.
_MOST_DEATHS = 3


class RankWorkers(Executor):
    """An executor of `count` processes on this machine.

    A `ProcessPoolExecutor` ends as a whole when one of its processes is killed. Here that process is replaced and its
    task is repeated. If the processes of a task are killed three times, WorkerLost is raised for the task.

    >>> with RankWorkers(2) as workers:   # doctest: +SKIP
    ...     ascend_dump.compare("npu_dumps", "gpu_dumps", executor=workers)
    """

    def __init__(self, count: int) -> None:
        """Raises ConfigError if `count` is less than 1, and in a worker that imports the program of its pool."""
        if count < 1:
            raise ConfigError(f"{count} workers", hint="expected a number from 1 on")
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigError("a worker process imports this program, which starts workers itself", hint=_GUARD)
        # One thread for each process waits for it.
        self._threads = ThreadPoolExecutor(count, "ascend_dump-ranks")
        self._idle: SimpleQueue[Optional[ProcessPoolExecutor]] = SimpleQueue()
        self._all: set[ProcessPoolExecutor] = set()
        self._lock = threading.Lock()
        self._ended = False
        for _ in range(count):
            self._idle.put(None)

    def submit(self, function: Callable[..., _Result], /, *arguments: Any, **named: Any) -> Future[_Result]:
        return self._threads.submit(self._run, function, arguments, named)

    def _run(self, function: Callable[..., _Result], arguments: tuple[Any, ...], named: dict[str, Any]) -> _Result:
        pool, deaths = self._idle.get(), 0
        try:
            for _ in range(_MOST_DEATHS):
                pool = pool or self._new()
                try:
                    return pool.submit(function, *arguments, **named).result()
                except BrokenProcessPool:
                    deaths += 1
                    self._drop(pool)
                    pool = None
                    if self._ended:
                        break
                    log.warning("a worker process was killed; its rank is repeated")
            raise WorkerLost(
                f"the process of one rank was killed {counted(deaths, 'time')}",
                hint="the system kills processes that need too much memory: see its log, and use fewer workers; "
                f"in a program of your own, {_GUARD}",
            )
        finally:
            self._idle.put(pool)

    def _new(self) -> ProcessPoolExecutor:
        # A forked process has no copies of the threads of this process. It may wait for ever for a lock that one of
        # them held, so processes are spawned.
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        with self._lock:
            self._all.add(pool)
        return pool

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            self._all.discard(pool)
        pool.shutdown(wait=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        with self._lock:
            pools = list(self._all)
        for pool in pools:
            pool.shutdown(wait=wait)
