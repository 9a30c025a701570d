"""Compute statistics of queued tensors, once per distinct content."""

from __future__ import annotations

import logging
from typing import Any, Optional

import msgspec
import xxhash

from ascend_dump.dump_format import stored_statistics
from ascend_dump.errors import AscendDumpError
from ascend_dump.statistics import Statistics, with_needs
from ascend_dump.statistics.nonfinite import is_nonfinite
from ascend_dump.writing.payload import MeasuredBytes, Payload
from ascend_dump.writing.recent_cache import RecentCache

__all__ = ["Measuring"]

log = logging.getLogger("ascend_dump")

#: Maximum number of distinct tensors whose statistics are cached.
_CACHED = 1 << 15
#: Tensors up to this many bytes are measured on the recording thread: they are still in the processor's cache, and
#: their memory need not be kept alive for the writer thread.
_AT_ONCE = 16 << 20
#: Key of the cache: digest of the bytes, dtype, `Payload.strided`.
_Content = tuple[bytes, str, Optional[tuple[tuple[int, ...], tuple[int, ...]]]]


class Measuring:
    """Computes statistics on the writer thread. Only `at_once` is called by the recording thread.

    stats    names of the requested fields of `Statistics`
    """

    def __init__(self, stats: tuple[str, ...]) -> None:
        # Not imported on the writer thread: if the program forked during that import, the child process would have a
        # half-imported module.
        from ascend_dump.writing import summary

        self._summary: Any = summary
        self._stats = bool(stats)
        stored = stored_statistics(stats)
        names = with_needs(stats)
        #: For each stored statistic whether it is requested.
        self._requested = tuple(entry.name in names for entry in stored)
        self._optional = tuple(entry.name for entry in stored if entry.is_optional and entry.name in names)
        self._cache: RecentCache[_Content, MeasuredBytes] = RecentCache(_CACHED)

    def prepare(self) -> None:
        """Load modules and compile kernels in advance."""
        if self._stats:
            self._summary.prepare(self._optional)

    def age(self) -> None:
        """Drop the cached statistics that were not used since the last call."""
        self._cache.age()

    def at_once(self, payload: Payload) -> bool:
        """Set `payload.measured` for a payload with a digest, if this is fast, and return True; else return False.

        It is fast if the statistics are cached, or if they can be computed in one pass over the bytes.
        """
        if payload.strided is not None:
            return False
        key = (payload.digest, payload.dtype, None)
        measured = self._cache.get(key)
        if measured is None:
            one_pass = self._stats and not self._optional and payload.nbytes <= _AT_ONCE
            scan = self._summary.scanner(payload.dtype) if one_pass else None
            if scan is None:
                return False
            memory = payload.view()
            try:
                measured = MeasuredBytes(scan(memory))
            except Exception:  # `measure` reports the error
                return False
            if xxhash.xxh3_128_digest(memory) != payload.digest:
                return False  # another thread is writing to the memory
            self._cache.put(key, measured)
        payload.measured = measured
        return True

    def measure(self, payload: Payload) -> bool:
        """Measure a payload. Returns False if that fails; `payload.unmeasured` is the reason."""
        payload.measured = self._cache.get((payload.digest, payload.dtype, payload.strided))
        if payload.measured is None:
            try:
                payload.measured = self._measure(payload)
            except Exception as error:  # a tensor without statistics must not end the capture
                payload.unmeasured = f"no statistics for {payload.dtype}"
                if not isinstance(error, AscendDumpError):
                    payload.unmeasured += f": {error!r}"
                    log.debug("statistics failed", exc_info=True)
                return False
        return True

    def remember(self, payload: Payload) -> None:
        """Cache the statistics of a payload by its digest."""
        if payload.measured is not None:
            self._cache.put((payload.digest, payload.dtype, payload.strided), payload.measured)

    def find_nonfinite(self, measured: MeasuredBytes) -> None:
        """Set `measured.is_finite` if the pass over the bytes shows that they have no NaN and no Inf.

        Otherwise compute the statistics, which also sets `measured.nonfinite`.
        """
        if measured.scan is not None:
            measured.is_finite = measured.scan.is_finite()
            if not measured.is_finite:
                self.finish(measured)

    def finish(self, measured: MeasuredBytes) -> None:
        """Compute the statistics from the result of the pass over the bytes, unless they are computed already."""
        scan, measured.scan = measured.scan, None
        if scan is not None:
            self._enter(measured, scan.statistics())

    def _measure(self, payload: Payload) -> MeasuredBytes:
        measured = MeasuredBytes(None)
        if self._stats:
            bytes_of_view = (payload.view(), payload.dtype, payload.strided)
            self._enter(measured, self._summary.summarize(*bytes_of_view, self._optional))
        else:
            measured.nonfinite = self._summary.nonfinite(payload.view(), payload.dtype, payload.strided)
        return measured

    def _enter(self, measured: MeasuredBytes, statistics: Statistics) -> None:
        measured.nonfinite = statistics if is_nonfinite(statistics) else None
        count, *values = self._summary.as_stored(statistics)
        chosen = [value if is_requested else None for is_requested, value in zip(self._requested, values)]
        measured.stats = msgspec.Raw(msgspec.json.encode((count, *chosen)))
