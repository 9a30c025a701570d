"""Statistics of tensors on their way to the files: of each distinct content once."""

from __future__ import annotations

import logging
from typing import Any, Optional

import msgspec
import xxhash

from ascend_dump._errors import AscendDumpError
from ascend_dump.nonfinite import is_nonfinite
from ascend_dump.statistics import STATISTIC_NAMES, Statistics
from ascend_dump.writing.lru_cache import LRUCache
from ascend_dump.writing.payload import MeasuredBytes, Payload

__all__ = ["Measuring"]

log = logging.getLogger("ascend_dump")

#: Distinct tensors whose statistics are remembered.
_KNOWN = 1 << 15
#: Bytes that are measured on the thread that makes records: while they are in the cache, and without being kept alive
#: for the other thread, which lets the program go on in memory that is not in the cache.
_AT_ONCE = 16 << 20
#: A digest, the type of the elements, and `Payload.strided`.
_Content = tuple[bytes, str, Optional[tuple[tuple[int, ...], tuple[int, ...]]]]


class Measuring:
    """Used by the writer's thread, and `at_once` by the thread that makes records.

    stats    names of the fields of `Statistics` that are wanted
    """

    def __init__(self, stats: tuple[str, ...]) -> None:
        # Not on the writer's thread: a process that is forked while another thread imports a module has half of it.
        from ascend_dump.writing import summary

        self._summary: Any = summary
        self._stats = bool(stats)
        self._wanted = tuple(name in stats for name in STATISTIC_NAMES)
        self._known: LRUCache[_Content, MeasuredBytes] = LRUCache(_KNOWN)

    def prepare(self) -> None:
        """Do what takes long the first time."""
        if self._stats:
            self._summary.prepare()

    def at_once(self, payload: Payload) -> bool:
        """Measure bytes that `digest` is of, if that takes one look at them; False: nothing was done."""
        if payload.strided is not None:
            return False
        key = (payload.digest, payload.dtype, None)
        found = self._known.get(key)
        if found is None:
            scan = self._summary.scanner(payload.dtype) if self._stats and payload.nbytes <= _AT_ONCE else None
            if scan is None:
                return False
            memory = payload.view()
            try:
                found = MeasuredBytes(scan(memory))
            except Exception:  # the other way says what is wrong
                return False
            if xxhash.xxh3_128_digest(memory) != payload.digest:
                return False  # somebody writes to it
            self._known.put(key, found)
        payload.measured = found
        return True

    def measure(self, payload: Payload) -> bool:
        """Measure bytes; False where that cannot be done, and `payload.unmeasured` says why."""
        payload.measured = self._known.get((payload.digest, payload.dtype, payload.strided))
        if payload.measured is None:
            try:
                payload.measured = self._measure(payload)
            except Exception as error:  # the statistics of one tensor never end a capture
                payload.unmeasured = f"no statistics for {payload.dtype}"
                if not isinstance(error, AscendDumpError):
                    payload.unmeasured += f": {error!r}"
                    log.debug("statistics failed", exc_info=True)
                return False
        return True

    def remember(self, payload: Payload) -> None:
        """Say that what was measured is of the bytes that `digest` is of."""
        if payload.measured is not None:
            self._known.put((payload.digest, payload.dtype, payload.strided), payload.measured)

    def finish(self, measured: MeasuredBytes) -> None:
        """Compute what was left for later."""
        scan, measured.scan = measured.scan, None
        if scan is not None:
            self._enter(measured, scan.statistics())

    def _measure(self, payload: Payload) -> MeasuredBytes:
        found = MeasuredBytes(None)
        if self._stats:
            self._enter(found, self._summary.summarize(payload.view(), payload.dtype, payload.strided))
        else:
            found.nonfinite = self._summary.nonfinite(payload.view(), payload.dtype, payload.strided)
        return found

    def _enter(self, measured: MeasuredBytes, found: Statistics) -> None:
        measured.nonfinite = found if is_nonfinite(found) else None
        count, *values = self._summary.as_stored(found)
        chosen = [value if wanted else None for wanted, value in zip(self._wanted, values)]
        measured.stats = msgspec.Raw(msgspec.json.encode((count, *chosen)))
