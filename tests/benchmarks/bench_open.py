"""Opening a CANN tree of many files, as a multiple of `os.walk` with one `stat` per file.

Usage: bench_open.py [FILES]     (default 100000; the aim is at most 2)
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from ascend_dump.native.cann.names import DumpLevels, DumpName, build_levels, build_name
from ascend_dump.reading import open_dump

#: As many files as one step of a large model has.
PER_DIRECTORY = 2000
ROUNDS = 5


def make_tree(root: Path, files: int) -> None:
    """Empty files with the names of a training run on 4 devices, one directory per device and step."""
    for number in range(0, files, PER_DIRECTORY):
        step, device = divmod(number // PER_DIRECTORY, 4)
        place = DumpLevels("20260101010101", device, "ge_default_20260101010101_1", 11, step, rank=device, world=4)
        directory = root.joinpath(*build_levels(place))
        directory.mkdir(parents=True)
        for task in range(min(PER_DIRECTORY, files - number)):
            name = DumpName("device", "MatMulV2", f"layers_{task}_attention_dense_MatMul", 0, task % 65536, 7)
            (directory / build_name(name._replace(timestamp=1589195081588018 + task))).touch()


def walk_with_stat(root: Path) -> int:
    return sum(os.stat(os.path.join(parent, name)).st_size == 0 for parent, _, names in os.walk(root) for name in names)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(files: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        make_tree(root, files)
        assert walk_with_stat(root) == files
        # In turns, so that the machine's other work hits both alike.
        rounds = [(seconds(lambda: walk_with_stat(root)), seconds(lambda: open_dump(root))) for _ in range(ROUNDS)]
    walk, opened = (min(times) for times in zip(*rounds))
    print(f"{files} files: os.walk with stat {walk:.3f} s, open {opened:.3f} s, ratio {opened / walk:.2f}")
    return opened / walk


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
