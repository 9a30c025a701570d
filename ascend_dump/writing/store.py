"""What a writer does with records: each distinct tensor once, statistics, the step's files."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec
import xxhash

from ascend_dump._errors import AscendDumpError
from ascend_dump._paths import add_private_directory
from ascend_dump.host import Line
from ascend_dump.nonfinite import is_nonfinite
from ascend_dump.statistics import STATISTIC_NAMES, Statistics
from ascend_dump.writing.budget import Budget, SizeLimit
from ascend_dump.writing.ending import Ended, NonfiniteWatch
from ascend_dump.writing.lru_cache import LRUCache
from ascend_dump.writing.payload import CHANGED, Item, Payload
from ascend_dump.writing.retention import GONE, Retention
from ascend_dump.writing.shard import Limits
from ascend_dump.writing.step_files import StepFiles

__all__ = ["Store"]

log = logging.getLogger("ascend_dump")

#: Distinct tensors whose place is remembered (about 200 bytes each), and whose statistics are.
_KNOWN_PLACES = 1 << 20
_KNOWN_STATS = 1 << 15
#: Bytes besides those of tensors that do not count for `max_bytes`; many short steps have more than their tensors.
_FREE = 1 << 20
#: A digest, the type of the elements, and `Payload.strided`.
_Content = tuple[bytes, str, Optional[tuple[tuple[int, ...], tuple[int, ...]]]]


class _Measured(NamedTuple):
    """What is known of the elements of a payload: `Payload.stats`, and `Payload.nonfinite`."""

    stats: Optional[msgspec.Raw]
    nonfinite: Optional[Statistics]


class Store:
    """Store tensors and records of one step after the other. Used by one thread.

    bytes_written  of distinct tensors
    ended          why nothing is recorded after the open step, None while more is
    retention      which steps are on disk
    skipped        number of tensors by the reason for which something of them is not stored
    first_skipped  the first of each
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata: dict[str, str],
        tensors: bool,
        stats: tuple[str, ...],
        limit: Optional[SizeLimit],
        steps: Optional[int],
        keep: Optional[int],
        until: Optional[str],
        limits: Limits,
    ) -> None:
        self.bytes_written = 0
        self.skipped: Counter[str] = Counter()
        self.first_skipped: dict[str, str] = {}
        self._directory = directory
        self._metadata = metadata
        self._tensors = tensors
        self._stats = stats
        self._summary: Any = None
        self.ended: Optional[Ended] = None
        self.watch: Optional[NonfiniteWatch] = NonfiniteWatch() if until == "nonfinite" else None
        if stats or self.watch is not None:
            # Not on the writer's thread: a process that is forked while another thread imports a module has half of it.
            from ascend_dump.writing import summary

            self._summary = summary
        self._wanted = tuple(name in stats for name in STATISTIC_NAMES)
        self._limits = limits
        self._budget = Budget(directory, limit)
        self._steps, self._keep = steps, keep
        self.retention = Retention(directory, keep)
        self._step: Optional[int] = None
        self._last_step: Optional[int] = None
        self._files: Optional[StepFiles] = None
        #: Whether the steps to come were compared with the room for them.
        self._forecast = False
        self._closed_records = 0
        self._places: LRUCache[bytes, tuple[str, int]] = LRUCache(_KNOWN_PLACES)
        self._known_stats: LRUCache[_Content, _Measured] = LRUCache(_KNOWN_STATS)

    @property
    def step(self) -> Optional[int]:
        """The open step."""
        return self._step

    @property
    def records(self) -> int:
        """Records that are in index files."""
        files = self._files
        return self._closed_records + (files.records if files is not None else 0)

    def on_disk(self) -> tuple[int, int, int]:
        """How many steps, operators and records are on disk: those written, but for what was removed."""
        files, kept = self._files, self.retention
        steps, operators, records = len(kept.steps), kept.operators, kept.records
        if files is not None and files.records:
            steps += files.step not in kept.steps
            operators += files.operators
            records += files.records
        return steps, operators, records

    def end(self, reason: str) -> None:
        """Record nothing after the open step, and remove nothing. The first reason holds."""
        if self.ended is None:
            self.ended = Ended(reason, self._step if self._step is not None else self._last_step)

    def prepare(self) -> None:
        """Do what takes long the first time."""
        if self._stats:
            self._summary.prepare()

    def begin(self, step: Optional[int]) -> None:
        """Close the open step and open another, or none. Raises OSError."""
        self.close()
        if step is not None and not self._forecast and self.retention.steps:
            self._forecast = True
            more = [one for one in (self._steps and self._steps - 1, self._keep) if one is not None]
            self._budget.forecast(self.retention.tensor_bytes + self.retention.other_bytes, min(more, default=None))
        self._last_step = self._step if self._step is not None else self._last_step
        self._step = step if self.ended is None else None

    def store(self, payload: Payload, line: Line) -> None:
        """Write the bytes unless they are known, and say in the payload where they are. Raises OSError.

        line: the record to name them after
        """
        if not payload.digest:
            payload.digest = xxhash.xxh3_128_digest(payload.view())
        read = False
        if self._tensors:
            files = self._open()  # first, since it may let older shards go
            place = self._places.get(payload.digest)
            if place is None or not self.retention.is_live(place[0]):
                self._budget.check(self._spent(), payload.nbytes)
                name = f"{line.op_name}.{line.io}.{line.index}"
                place = files.append(name, payload.dtype, payload.shape, payload.view(), payload.nbytes)
                self.retention.wrote(files.step, place[0], payload.nbytes)
                self._places.put(payload.digest, place)
                self.bytes_written += payload.nbytes
                read = True
            payload.shard, payload.offset = place
        if (self._stats or self.watch is not None) and payload.stats is None:
            measured = self._measured(payload, line)
            if measured is not None:
                payload.stats, payload.nonfinite = measured
            read = True
        if read and not payload.is_as_sealed():
            self._disown(payload)

    def add(self, items: list[Item]) -> int:
        """Add records, whose bytes are stored, to the open step; returns how many bytes they are of. Raises OSError."""
        lines = []
        nbytes = 0
        files = self._open()
        keeps = self.retention.keep is not None
        for item in items:
            line, payload = item.line, item.payload
            if payload is not None and payload.changed:
                line.skipped = CHANGED
                self._note_skipped(CHANGED, line)
            elif payload is not None:
                line.hash = payload.digest.hex()
                line.stats = payload.stats
                line.unmeasured = payload.unmeasured
                if payload.shard and keeps and not self.retention.reads(files.step, payload.shard):
                    line.skipped = GONE
                    self._note_skipped(GONE, line)
                elif payload.shard:
                    line.shard = payload.shard
                    line.offset += payload.offset
                    line.blob = (payload.offset, payload.nbytes)
            elif line.skipped:
                self._note_skipped(line.skipped, line)
            nbytes += line.nbytes
            lines.append(line)
        self._budget.check(self._spent(), 0)
        files.add(lines)
        if self.watch is not None and self.ended is None:
            found = self.watch.look_at(items)
            if found is not None:
                self.ended = found._replace(step=files.step)
        return nbytes

    def _disown(self, payload: Payload) -> None:
        """Forget a payload that changed between hashing and storing: its digest does not describe the stored bytes."""
        self._places.drop(payload.digest)
        self._known_stats.drop((payload.digest, payload.dtype, payload.strided))
        payload.digest, payload.shard, payload.offset, payload.stats, payload.nonfinite = b"", "", 0, None, None
        payload.changed = True

    def flush(self) -> None:
        """Make everything so far readable. Raises OSError."""
        if self._files is not None:
            self._files.flush()

    def finish(self) -> None:
        """Complete the open step, the last one, and remove those that are not to stay. Raises OSError."""
        self.close()
        if self.ended is None:
            self.retention.thin()

    def close(self) -> None:
        """Complete the files of the open step. Raises OSError after closing them."""
        files = self._files
        if files is not None:
            try:
                files.close()
            finally:
                self.retention.completed(
                    files.step,
                    text=files.text_bytes,
                    headers=files.header_bytes,
                    operators=files.operators,
                    records=files.records,
                    next_shard=files.next_shard,
                )
                self._closed_records += files.records
                self._files = None

    def _measured(self, payload: Payload, line: Line) -> Optional[_Measured]:
        key = (payload.digest, payload.dtype, payload.strided)
        found = self._known_stats.get(key)
        if found is None:
            try:
                found = self._measure(payload)
            except Exception as error:  # the statistics of one tensor never end a capture
                payload.unmeasured = f"no statistics for {payload.dtype}"
                if not isinstance(error, AscendDumpError):
                    payload.unmeasured += f": {error!r}"
                    log.debug("statistics failed", exc_info=True)
                self._note_skipped(payload.unmeasured, line)
                return None
            self._known_stats.put(key, found)
        return found

    def _measure(self, payload: Payload) -> _Measured:
        if not self._stats:
            return _Measured(None, self._summary.nonfinite(payload.view(), payload.dtype, payload.strided))
        found = self._summary.summarize(payload.view(), payload.dtype, payload.strided)
        return _Measured(self._chosen(self._summary.as_stored(found)), found if is_nonfinite(found) else None)

    def _chosen(self, stats: tuple[Any, ...]) -> msgspec.Raw:
        count, *values = stats
        return msgspec.Raw(
            msgspec.json.encode((count, *[value if wanted else None for wanted, value in zip(self._wanted, values)]))
        )

    def _note_skipped(self, reason: str, line: Line) -> None:
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, f"{line.op_name}.{line.io}.{line.index}")

    def _spent(self) -> int:
        """What counts for `max_bytes`."""
        files = self._files
        besides = self.retention.other_bytes
        if files is not None:
            besides += files.text_bytes + files.header_bytes
        return self.retention.tensor_bytes + max(0, besides - _FREE) if self._tensors else besides

    def _open(self) -> StepFiles:
        if self._files is None:
            step = self._step
            assert step is not None, "records are dropped outside a step"
            self.retention.begin(step)
            directory = self._directory / str(step)
            with contextlib.suppress(FileExistsError):
                add_private_directory(directory)
            self._files = StepFiles(
                directory,
                step,
                self._metadata,
                table=bool(self._stats),
                next_shard=self.retention.next_shard(step),
                limits=self._limits,
            )
        return self._files
