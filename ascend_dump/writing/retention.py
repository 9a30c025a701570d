"""Which recorded steps of a writer stay on disk: the last `keep`, and the shards that they read from.

A step is removed so that a reader, or the next start after a kill, finds it whole or not at all: its index gets another
name first, at once, and from then on the step is no part of the dump. Its shards go when no step that stays reads
from them. Files that the writer did not make are left alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from ascend_dump._paths import open_directory, open_private
from ascend_dump.host import INDEX, REMOVED, STATISTIC

__all__ = ["GONE", "Retention"]

#: Why a record has no bytes whose shard was removed before the record came.
GONE = "its bytes went with an older step (keep=)"


class _StepOnDisk:
    """What a step has on disk.

    shards  its own, with the bytes of tensors in each
    reads   the shards that its lines read from, by the names that lines have for them
    text    bytes of its files that are no shards, headers: room that its shards reserve
    """

    __slots__ = ("headers", "operators", "reads", "records", "shards", "text")

    def __init__(self) -> None:
        self.shards: dict[str, int] = {}
        self.reads: set[str] = set()
        self.text = self.headers = self.records = self.operators = 0


class Retention:
    """The steps of one writer, in the order in which they were written to last. Used by one thread.

    tensor_bytes, other_bytes  on disk: of tensors, and of all else in the files of completed steps
    steps, operators, records  on disk: numbers of the completed steps with records, and what they hold
    """

    def __init__(self, directory: Path, keep: Optional[int]) -> None:
        self.keep = keep
        self.tensor_bytes = self.other_bytes = 0
        self.steps: set[int] = set()
        self.operators = self.records = 0
        self._removed_steps = self._removed_records = 0
        self._first_removed: Optional[int] = None
        self._last_removed: Optional[int] = None
        self._directory = directory
        self._steps: dict[int, _StepOnDisk] = {}
        #: Removed steps of which shards stay.
        self._remains: dict[int, _StepOnDisk] = {}
        #: Shards of the steps that stay: tensors that come again are read from these.
        self._live: set[str] = set()
        #: Above the numbers of the shards that a step had: none comes twice, even if its file is gone.
        self._next_shards: dict[int, int] = {}
        #: The same for removed steps together, which are not higher than `_highest`.
        self._next_removed, self._highest = 0, -1

    def begin(self, step: int) -> None:
        """Say that a step gets its first files, or more of them; older steps go. Raises OSError."""
        if self.keep is None:
            return
        remains = self._remains.pop(step, None)
        found = self._steps.pop(step, None) or remains or _StepOnDisk()
        self._steps[step] = found
        self._live.update(found.shards)
        self.thin(besides=step)

    def wrote(self, step: int, shard: str, nbytes: int) -> None:
        """Say that a tensor was stored in a shard."""
        self.tensor_bytes += nbytes
        if self.keep is not None:
            shards = self._steps[step].shards
            shards[shard] = shards.get(shard, 0) + nbytes
            self._live.add(shard)

    def completed(self, step: int, *, text: int, headers: int, operators: int, records: int, next_shard: int) -> None:
        """Say what a step that was closed has besides tensors.

        text        bytes of its files that are no shards
        headers, operators, records  what was added since it was opened: room that shards reserve, operators and lines
        next_shard  above the numbers of its shards
        """
        self._next_shards[step] = next_shard
        if records:
            self.steps.add(step)
            self.operators += operators
            self.records += records
        before = 0
        found = self._steps.get(step)
        if found is not None:
            before, found.text = found.text, text
            found.headers += headers
            found.operators += operators
            found.records += records
        self.other_bytes += text - before + headers

    def is_live(self, shard: str) -> bool:
        """Whether a tensor that comes again is to be read from this shard, and not stored anew.

        Not from one of a removed step: it would stay for good.
        """
        return self.keep is None or shard in self._live

    def reads(self, step: int, shard: str) -> bool:
        """Note that a line of this step reads from a shard. False: the shard is gone."""
        found = self._steps[step].reads
        if shard in found:
            return True
        if shard not in self._live and not any(shard in one.shards for one in self._remains.values()):
            return False
        found.add(shard)
        return True

    def next_shard(self, step: int) -> int:
        """A number that no shard of this step has or had."""
        found = self._next_shards.get(step)
        if found is not None:
            return found
        return self._next_removed if step <= self._highest else 0

    def thin(self, *, besides: Optional[int] = None) -> None:
        """Remove all but the last `keep` steps. Raises OSError.

        besides: the step that is being written, which does not count
        """
        if self.keep is None:
            return
        complete = [step for step in self._steps if step != besides]
        old = complete[: max(0, len(complete) - self.keep)]
        for step in old:
            found = self._steps.pop(step)
            self._live.difference_update(found.shards)
            self._hide(step, found)
            self._remains[step] = found
        if old:
            needed: set[str] = set().union(*(one.reads for one in self._steps.values()))
            for step in list(self._remains):
                self._remove(step, needed)

    def summary(self) -> dict[str, Any]:
        """How many steps were removed, how many records they had, the first and the last of them."""
        return {
            "steps": self._removed_steps,
            "records": self._removed_records,
            "first": self._first_removed,
            "last": self._last_removed,
        }

    def _hide(self, step: int, found: _StepOnDisk) -> None:
        """Take a step out of the dump; what stays of it are shards."""
        with _opened(self._directory / str(step)) as directory:
            if directory is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(INDEX, REMOVED, src_dir_fd=directory, dst_dir_fd=directory)
                    # Emptied, since it may stay for long.
                    os.close(open_private(REMOVED, os.O_WRONLY | os.O_TRUNC, directory=directory))
                _unlink(STATISTIC, directory)
        self.other_bytes -= found.text
        self._removed_steps += 1
        self._removed_records += found.records
        self.steps.discard(step)
        self.operators -= found.operators
        self.records -= found.records
        found.operators = found.records = 0  # it may be begun anew
        self._first_removed = step if self._first_removed is None else self._first_removed
        self._last_removed = step
        self._highest = max(self._highest, step)
        self._next_removed = max(self._next_removed, self._next_shards.pop(step, 0))

    def _remove(self, step: int, needed: set[str]) -> None:
        """Remove the shards of a removed step that no step needs, and its directory with the last one."""
        found = self._remains[step]
        with _opened(self._directory / str(step)) as directory:
            for shard in [one for one in found.shards if one not in needed]:
                if directory is not None:
                    _unlink(shard.partition("/")[2], directory)
                self.tensor_bytes -= found.shards.pop(shard)
            if found.shards:
                return
            if directory is not None:
                _unlink(REMOVED, directory)
        del self._remains[step]
        self.other_bytes -= found.headers
        # It stays where somebody else has put a file into it.
        with contextlib.suppress(OSError):
            os.rmdir(self._directory / str(step))


@contextlib.contextmanager
def _opened(step: Path) -> Iterator[Optional[int]]:
    """A descriptor of the directory of a step, None where somebody has removed it."""
    try:
        directory = open_directory(step)
    except FileNotFoundError:
        yield None
        return
    try:
        yield directory
    finally:
        os.close(directory)


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
