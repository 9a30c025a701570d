"""Store records in the files of their step, each distinct tensor once, with statistics."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Optional

import xxhash

from ascend_dump.common.paths import add_private_directory
from ascend_dump.dump_format import Line
from ascend_dump.writing.budget import Budget, SizeLimit
from ascend_dump.writing.ending import Ended, NonfiniteWatch
from ascend_dump.writing.held_steps import HeldSteps
from ascend_dump.writing.measuring import Measuring
from ascend_dump.writing.payload import CHANGED, Item, Payload
from ascend_dump.writing.recent_cache import RecentCache
from ascend_dump.writing.retention import GONE, Retention
from ascend_dump.writing.shard import Limits
from ascend_dump.writing.step_files import StepFiles

__all__ = ["Store"]

#: Maximum number of distinct tensors whose position in the files is cached (about 200 bytes each).
_CACHED_LOCATIONS = 1 << 20
#: Number of records that are written at a time when a step in memory (`HeldSteps`) is written to its files.
_GATHER = 200
#: This many bytes of files other than tensors do not count for `max_bytes`.
_FREE = 1 << 20


class Store:
    """Stores tensors and records, one step after the other. Used by one thread, except `complete`.

    bytes_written  bytes of distinct tensors
    ended          why nothing is recorded after the open step; None if recording goes on
    retention      the steps on disk
    skipped        for each reason: number of tensors whose values or statistics are not stored
    first_skipped  for each reason: the first of these tensors
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
        spread: bool,
        watch: Optional[NonfiniteWatch],
        limits: Limits,
    ) -> None:
        self.bytes_written = 0
        self.skipped: Counter[str] = Counter()
        self.first_skipped: dict[str, str] = {}
        self._directory = directory
        self._metadata = metadata
        self._tensors = tensors
        self._stats = stats
        self.ended: Optional[Ended] = None
        self.watch = watch
        self._measuring = Measuring(stats) if stats or self.watch is not None else None
        self._limits = limits
        self._budget = Budget(directory, limit)
        self._steps, self._keep = steps, keep
        self.retention = Retention(directory, keep, spread=spread)
        #: The steps that are only in memory; None if each record is written to the files at once.
        self._held = HeldSteps(keep) if keep is not None and not tensors and not spread else None
        self._step: Optional[int] = None
        self._last_step: Optional[int] = None
        self._files: Optional[StepFiles] = None
        #: True once `Budget.forecast` has checked whether the following steps fit on the disk.
        self._forecast = False
        self._closed_records = 0
        self._begun = 0
        self._locations: RecentCache[bytes, tuple[str, int]] = RecentCache(_CACHED_LOCATIONS)

    @property
    def step(self) -> Optional[int]:
        """The open step."""
        return self._step

    @property
    def holds_steps(self) -> bool:
        """True if there are steps in memory that are not on disk."""
        return bool(self._held)

    @property
    def most_held(self) -> int:
        """The largest number of records of held steps that were in memory at a time."""
        return 0 if self._held is None else self._held.most

    @property
    def records(self) -> int:
        """Number of records in index files and in memory, including those of removed steps."""
        files = self._files
        held = self._held.records if self._held is not None else 0
        return self._closed_records + held + (files.records if files is not None else 0)

    def on_disk(self) -> tuple[int, int, int]:
        """Return the number of steps, operators and records on disk, without removed steps."""
        files, retention = self._files, self.retention
        steps, operators, records = len(retention.steps), retention.operators, retention.records
        if files is not None and files.records:
            steps += files.step not in retention.steps
            operators += files.operators
            records += files.records
        return steps, operators, records

    def end(self, reason: str) -> None:
        """Record nothing after the open step, which stays in addition to the `keep` steps before it.

        If called again, the first reason stays.
        """
        if self.ended is None:
            self.ended = Ended(reason, self._step if self._step is not None else self._last_step)
            self.write_held()

    def prepare(self) -> None:
        """Load modules and compile kernels in advance."""
        if self._measuring is not None:
            self._measuring.prepare()

    def begin(self, step: Optional[int]) -> None:
        """Close the open step and open another one; None opens none. Raises OSError."""
        self.close()
        if step is not None and not self._forecast and self.retention.steps:
            self._forecast = True
            counts = [count for count in (self._steps and self._steps - 1, self._keep) if count is not None]
            self._budget.forecast(self.retention.tensor_bytes + self.retention.other_bytes, min(counts, default=None))
        self._last_step = self._step if self._step is not None else self._last_step
        if step is not None and self._keep is not None:
            self._begun += 1
            # Forget tensors that were only in steps that are removed by now.
            if self._begun % (self._keep + 1) == 0:
                self._locations.age()
                if self._measuring is not None:
                    self._measuring.age()
        self._step = step if self.ended is None else None

    def store(self, payload: Payload, line: Line) -> None:
        """Write the bytes unless they are stored already, and set their position in the payload. Raises OSError.

        line  the record that names the entry in the shard
        """
        if not payload.digest:
            payload.digest = xxhash.xxh3_128_digest(payload.view())
        location: Optional[tuple[str, int]] = None
        appended = measured = False
        if self._tensors:
            files = self._open()  # before the location is looked up, because this may delete older shards
            location = self._locations.get(payload.digest)
            if location is None or not self.retention.is_live(location[0]):
                self._budget.check(self._spent(), payload.nbytes)
                name = f"{line.op_name}.{line.io}.{line.index}"
                location = files.append(name, payload.dtype, payload.shape, payload.view(), payload.nbytes)
                self.retention.wrote(files.step, location[0], payload.nbytes)
                self.bytes_written += payload.nbytes
                appended = True
        if self._measuring is not None and payload.measured is None:
            if not self._measuring.measure(payload):
                self._note_skipped(payload.unmeasured, line)
            measured = True
        if (appended or measured) and not payload.is_as_sealed():
            _disown(payload)
            return
        # Both caches are updated last, because `complete` reads them in another thread.
        if location is not None:
            payload.shard, payload.offset = location
            if appended:
                self._locations.put(payload.digest, location)
        if measured and self._measuring is not None:
            self._measuring.remember(payload)

    def complete(self, payload: Payload) -> bool:
        """Set the position in the files and the statistics of a payload that has a digest. Return True if both are set.

        Returns False if the payload must be stored: the files do not contain its bytes, or its statistics cannot be
        computed fast. Called by the recording thread. After True, the bytes are not needed any more.
        """
        if self._tensors:
            # With `keep=` only the writer's thread knows whether the shard will be kept.
            location = self._locations.get(payload.digest) if self.retention.keep is None else None
            if location is None:
                return False
            payload.shard, payload.offset = location
        if self._measuring is not None and not self._measuring.at_once(payload):
            payload.shard, payload.offset = "", 0
            return False
        return True

    def add(self, items: list[Item]) -> int:
        """Add records to the open step, after their bytes; return their size in bytes. Raises OSError."""
        nbytes = 0
        for item in items:
            line, payload = item.line, item.payload
            nbytes += line.nbytes
            if payload is not None:
                measured = payload.measured
                if payload.changed:
                    line.skipped = CHANGED
                elif measured is not None and measured.scan is not None and not measured.is_finite:
                    assert self._measuring is not None, "it has measured"
                    self._measuring.find_nonfinite(measured)
            if line.skipped:
                self._note_skipped(line.skipped, line)
        if self._held is None or self._files is not None:
            self._write(self._open(), items)
        else:
            assert self._step is not None, "records are dropped outside a step"
            for step, records in self._held.add(self._step, items):
                self.retention.dropped(step, records)
        if self.watch is not None and self.ended is None:
            ended = self.watch.look_at(items)
            if ended is not None:
                self.ended = ended._replace(step=self._step)
        if self._held is not None and (self.ended is not None or self._held.is_due(ends_step=False)):
            self.write_held()
        return nbytes

    def write_held(self, *, ends_step: bool = False) -> None:
        """Write the steps in memory to the files. ends_step: True if the open step is complete. Raises OSError."""
        if not self._held:
            return
        for step, items in self._held.take():
            files = self._open(step)
            for start in range(0, len(items), _GATHER):
                self._write(files, items[start : start + _GATHER])
            if step == self._step and not ends_step:
                files.flush()  # later records of the open step go to these files directly
            else:
                self._close_files()

    def _write(self, files: StepFiles, items: list[Item]) -> None:
        """Add the lines of records to the files of their step. Raises OSError."""
        lines = []
        keeps = self.retention.keep is not None
        for item in items:
            line, payload = item.line, item.payload
            if payload is not None and not payload.changed:
                line.hash = payload.digest.hex()
                measured = payload.measured
                if measured is not None and self._measuring is not None:
                    if measured.scan is not None:
                        self._measuring.finish(measured)
                    line.stats = measured.stats
                line.unmeasured = payload.unmeasured
                if payload.shard and keeps and not self.retention.reads(files.step, payload.shard):
                    line.skipped = GONE
                    self._note_skipped(GONE, line)
                elif payload.shard:
                    line.shard = payload.shard
                    line.offset += payload.offset
                    line.blob = (payload.offset, payload.nbytes)
            lines.append(line)
        self._budget.check(self._spent(), 0)
        files.add(lines)

    def flush(self) -> None:
        """Write all buffered data to the files. Raises OSError."""
        if self._files is not None:
            self._files.flush()

    def finish(self) -> None:
        """Complete the open step, and remove the steps that are not kept. Raises OSError."""
        self.close()
        self.write_held(ends_step=True)
        if self.ended is None:
            self.retention.thin()

    def close(self) -> None:
        """Complete the open step, and close its files if there are any. If this raises OSError, they are closed too."""
        step = self._step
        self._close_files()
        ended = None if self.watch is None or step is None else self.watch.end_step()
        if ended is not None and self.ended is None:
            self.ended = ended._replace(step=step)
        if self._held is not None and (self.ended is not None or self._held.is_due(ends_step=True)):
            self.write_held(ends_step=True)

    def _close_files(self) -> None:
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

    def _note_skipped(self, reason: str, line: Line) -> None:
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, f"{line.op_name}.{line.io}.{line.index}")

    def _spent(self) -> int:
        """Return the number of bytes on disk that count for `max_bytes`."""
        files = self._files
        besides = self.retention.other_bytes
        if files is not None:
            besides += files.text_bytes + files.header_bytes
        return self.retention.tensor_bytes + max(0, besides - _FREE) if self._tensors else besides

    def _open(self, step: Optional[int] = None) -> StepFiles:
        """Return the open files. If no files are open, open the files of `step`; None means the open step."""
        if self._files is None:
            step = self._step if step is None else step
            assert step is not None, "records are dropped outside a step"
            self.retention.begin(step)
            directory = self._directory / str(step)
            with contextlib.suppress(FileExistsError):
                add_private_directory(directory)
            self._files = StepFiles(
                directory,
                step,
                self._metadata,
                stats=self._stats,
                next_shard=self.retention.next_shard(step),
                limits=self._limits,
            )
        return self._files


def _disown(payload: Payload) -> None:
    """Mark a payload as changed between hashing and storing, and drop its digest and statistics, which are wrong."""
    payload.digest, payload.measured = b"", None
    payload.changed = True
