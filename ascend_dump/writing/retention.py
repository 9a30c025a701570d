"""Keep `keep` steps of a writer on disk, with the shards that they use.

Older steps are removed. With `spread`, every second step is removed instead, each time `keep` steps are complete.

A reader, or a restart after a kill, finds a step either complete or not at all: first its index is renamed, which
removes the step from the dump. Its shards are deleted when no remaining step uses them. Files that the writer did not
create are not touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from ascend_dump.common.paths import open_directory, open_private, remove_directory
from ascend_dump.dump_format import COMPRESSED_INDEX, INDEX, REMOVED, STATISTIC
from ascend_dump.writing.spread_steps import steps_between

__all__ = ["GONE", "Retention"]

#: The reason in a record whose shard was removed before the record was written.
GONE = "its bytes were removed with an older step (keep=)"


class _StepOnDisk:
    """The files of a step.

    shards  the shards of the step, with the number of bytes of tensors in each
    reads   names of the shards to which lines of the step refer; these may belong to earlier steps
    text    bytes of the other files of the step
    headers bytes that the shards of the step reserve for headers
    operators, records  number of operators and of records in the index of the step
    """

    __slots__ = ("headers", "operators", "reads", "records", "shards", "text")

    def __init__(self) -> None:
        self.shards: dict[str, int] = {}
        self.reads: set[str] = set()
        self.text = self.headers = self.records = self.operators = 0


class Retention:
    """The steps of one writer, in the order of their last write. Not thread-safe.

    spread  True to remove every second step each time `keep` steps are complete, instead of the oldest steps
    tensor_bytes  bytes of tensors on disk
    other_bytes   bytes of everything else on disk, of completed steps
    steps         the step numbers of the completed steps on disk that have records
    operators, records  number of operators and of records in these steps
    """

    def __init__(self, directory: Path, keep: Optional[int], *, spread: bool = False) -> None:
        self.keep = keep
        self._spread = spread
        self.tensor_bytes = self.other_bytes = 0
        self.steps: set[int] = set()
        self.operators = self.records = 0
        self._removed_steps = self._removed_records = 0
        self._first_removed: Optional[int] = None
        self._last_removed: Optional[int] = None
        self._directory = directory
        self._steps: dict[int, _StepOnDisk] = {}
        #: Removed steps whose shards are still in use.
        self._remains: dict[int, _StepOnDisk] = {}
        #: Shards of the steps on disk. Later equal tensors may refer to these shards only.
        self._live: set[str] = set()
        #: The next shard number of each step: no number is used twice, even if the file was deleted.
        self._next_shards: dict[int, int] = {}
        #: A shard number that is unused in every removed step, and the number of the highest removed step.
        self._next_removed, self._highest = 0, -1

    def begin(self, step: int) -> None:
        """Note that the files of a step are opened, and remove steps that are not kept. Raises OSError."""
        if self.keep is None:
            return
        remains = self._remains.pop(step, None)
        on_disk = self._steps.pop(step, None) or remains or _StepOnDisk()
        self._steps[step] = on_disk
        self._live.update(on_disk.shards)
        self.thin(besides=step)

    def wrote(self, step: int, shard: str, nbytes: int) -> None:
        """Note that a tensor was stored in a shard."""
        self.tensor_bytes += nbytes
        if self.keep is not None:
            shards = self._steps[step].shards
            shards[shard] = shards.get(shard, 0) + nbytes
            self._live.add(shard)

    def completed(self, step: int, *, text: int, headers: int, operators: int, records: int, next_shard: int) -> None:
        """Note the sizes of a step whose files were closed.

        text        bytes of its files other than shards
        headers     bytes that its new shards reserve for headers
        operators, records  numbers of operators and records added since the files were opened
        next_shard  the next free shard number
        """
        self._next_shards[step] = next_shard
        if records:
            self.steps.add(step)
            self.operators += operators
            self.records += records
        before = 0
        on_disk = self._steps.get(step)
        if on_disk is not None:
            before, on_disk.text = on_disk.text, text
            on_disk.headers += headers
            on_disk.operators += operators
            on_disk.records += records
        self.other_bytes += text - before + headers

    def is_live(self, shard: str) -> bool:
        """Return True if a later equal tensor may refer to this shard.

        If the step of the shard was removed, the result is False, so that the shard can be deleted soon.
        """
        return self.keep is None or shard in self._live

    def reads(self, step: int, shard: str) -> bool:
        """Note that a line of this step refers to a shard, so that the shard stays. Returns False if it was deleted."""
        shards = self._steps[step].reads
        if shard in shards:
            return True
        if shard not in self._live and not any(shard in step_on_disk.shards for step_on_disk in self._remains.values()):
            return False
        shards.add(shard)
        return True

    def next_shard(self, step: int) -> int:
        """Return a number that no shard of this step has had."""
        number = self._next_shards.get(step)
        if number is not None:
            return number
        return self._next_removed if step <= self._highest else 0

    def thin(self, *, besides: Optional[int] = None) -> None:
        """Remove all but the last `keep` steps, or every second step if steps are spread. Raises OSError.

        besides  the step that is being written, which does not count; None at the end of the recording
        """
        if self.keep is None:
            return
        complete = [step for step in self._steps if step != besides]
        if not self._spread:
            old: Sequence[int] = complete[: max(0, len(complete) - self.keep)]
        else:
            # At the end of the recording no step follows that needs room.
            old = () if besides is None else steps_between(complete, self.keep)
        for step in old:
            removed = self._steps.pop(step)
            self._live.difference_update(removed.shards)
            self._hide(step, removed)
            self._remains[step] = removed
        if old:
            needed: set[str] = set().union(*(on_disk.reads for on_disk in self._steps.values()))
            for step in list(self._remains):
                self._remove(step, needed)

    def dropped(self, step: int, records: int) -> None:
        """Note that `records` records of a step were dropped before they were written. A step that has no files counts
        as removed."""
        self._removed_records += records
        if step not in self._steps:
            self._note_removed(step)

    def _note_removed(self, step: int) -> None:
        self._removed_steps += 1
        # Steps are not removed in order: a step that is dropped before it is written is newer than the steps on disk.
        self._first_removed = step if self._first_removed is None else min(self._first_removed, step)
        self._last_removed = step if self._last_removed is None else max(self._last_removed, step)

    def summary(self) -> dict[str, Any]:
        """Return the number of removed steps and of their records, and the lowest and highest of these steps."""
        return {
            "steps": self._removed_steps,
            "records": self._removed_records,
            "first": self._first_removed,
            "last": self._last_removed,
        }

    def _hide(self, step: int, removed: _StepOnDisk) -> None:
        """Remove a step from the dump; only its shards remain."""
        with _opened(self._directory / str(step)) as directory:
            if directory is not None:
                _rename_index(directory)
                _unlink(STATISTIC, directory)
        self.other_bytes -= removed.text
        self._note_removed(step)
        self._removed_records += removed.records
        self.steps.discard(step)
        self.operators -= removed.operators
        self.records -= removed.records
        removed.operators = removed.records = 0  # the step may be recorded again
        self._highest = max(self._highest, step)
        self._next_removed = max(self._next_removed, self._next_shards.pop(step, 0))

    def _remove(self, step: int, needed: set[str]) -> None:
        """Delete the shards of a removed step that are not in `needed`, and its directory if no shard remains."""
        removed = self._remains[step]
        with _opened(self._directory / str(step)) as directory:
            for shard in [name_of_shard for name_of_shard in removed.shards if name_of_shard not in needed]:
                if directory is not None:
                    _unlink(shard.partition("/")[2], directory)
                self.tensor_bytes -= removed.shards.pop(shard)
            if removed.shards:
                return
            if directory is not None:
                _unlink(REMOVED, directory)
        del self._remains[step]
        self.other_bytes -= removed.headers
        # The directory stays if it has other files.
        remove_directory(self._directory / str(step))


@contextlib.contextmanager
def _opened(step: Path) -> Iterator[Optional[int]]:
    """Yield a descriptor of the directory of a step; None if it was deleted."""
    try:
        directory = open_directory(step)
    except FileNotFoundError:
        yield None
        return
    try:
        yield directory
    finally:
        os.close(directory)


def _rename_index(directory: int) -> None:
    """Give the index of a step the name REMOVED, and truncate it, because the file may remain for long."""
    name = INDEX
    with contextlib.suppress(FileNotFoundError):
        os.stat(COMPRESSED_INDEX, dir_fd=directory, follow_symlinks=False)
        # If the plain one is left beside it, it goes first: otherwise it would be the index for a moment.
        _unlink(INDEX, directory)
        name = COMPRESSED_INDEX
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, REMOVED, src_dir_fd=directory, dst_dir_fd=directory)
        os.close(open_private(REMOVED, os.O_WRONLY | os.O_TRUNC, directory=directory))


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
