"""Check the files that MindSpore has written: whether there are records, files lost on a full disk, and long names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from ascend_dump.native.cann.mapping import MAPPING
from ascend_dump.native.mindspore.names import holds_record

__all__ = ["Written", "examine_files"]

#: Names that MindSpore, or GE for it, gives to files whose names are too long. A file mapping.csv has the long names.
_RENAMED = re.compile(r"\d{1,20}\.npy|\d{10,20}", re.ASCII)


class Written(NamedTuple):
    """The result of `examine_files`.

    records  True if a file contains a tensor, statistics or an overflow
    empty    the empty files, which MindSpore could not write
    renamed  number of files whose name is a number, because their names were too long

    On a full disk MindSpore raises an error for tensors of 1024 bytes or more, but texts and smaller tensors silently
    become empty files (measured with MindSpore 2.10.0 on a CPU). An empty file has no other reason, because a tensor
    without elements is not written.
    """

    records: bool
    empty: tuple[Path, ...]
    renamed: int


def examine_files(root: Path) -> Written:
    """Check the names and sizes of all files below a directory. No file is opened."""
    records = mapped = False
    renamed = 0
    empty = []
    waiting = [os.fspath(root)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    records = records or holds_record(entry.name)
                    mapped = mapped or entry.name == MAPPING
                    renamed += _RENAMED.fullmatch(entry.name) is not None
                    if not entry.stat(follow_symlinks=False).st_size:
                        empty.append(Path(entry.path))
    return Written(records, tuple(sorted(empty)), renamed if mapped else 0)
