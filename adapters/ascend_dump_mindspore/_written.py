"""What MindSpore has left of a dump: whether it holds any record, and which files it lost on a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ascend_dump.native.mindspore.names import holds_record

__all__ = ["Written", "look_at"]


class Written(NamedTuple):
    """records: whether a file holds a tensor, statistics or an overflow. empty: files that MindSpore could not fill.

    On a full disk a tensor from 1024 bytes on raises in the program, while texts and smaller tensors become empty
    files without a word (measured with MindSpore 2.10.0 on a CPU). MindSpore leaves no empty file otherwise: it
    writes nothing of a tensor without elements.
    """

    records: bool
    empty: tuple[Path, ...]


def look_at(root: Path) -> Written:
    """Look at the names and sizes of all files below a directory; none is opened."""
    records = False
    empty = []
    waiting = [os.fspath(root)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    records = records or holds_record(entry.name)
                    if not entry.stat(follow_symlinks=False).st_size:
                        empty.append(Path(entry.path))
    return Written(records, tuple(sorted(empty)))
