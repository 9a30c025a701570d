"""The time of `convert` relative to that of the file system and numpy for the same bytes, within one run.

    python tests/benchmarks/bench_convert.py [--files N] [--mb MB] [--repeat N] [--dir DIR]

Files hold three float16 tensors of MB each. Cases run in turn, the best round of each counts:

- floor: read the header, map the payload, `numpy.save` a contiguous array, one thread;
- copy: `copy_file_range` of the whole files;
- ours: `convert`, one thread and the default number of threads;
- msaccucmp: its command, where CANN's libascend_dump_parser.so is found.

Then layouts in memory, against a plain transposed copy of the same bytes. A directory in memory
(`--dir /dev/shm`) leaves the disk's moods out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Optional

import numpy as np

from ascend_dump.converting.convert import Options, convert_all, find_tasks
from ascend_dump.native.cann import dump_file, formats

#: At most this multiple of the floor, and of a plain transposed copy.
GOAL_FLOOR, GOAL_LAYOUT = 1.3, 1.5
PARSER = "libascend_dump_parser.so"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the tables. Returns 1 when a goal is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20, help="files of each kind (default 20)")
    parser.add_argument("--mb", type=float, default=1.0, help="megabytes of each tensor (default 1)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, the best of which counts (default 5)")
    parser.add_argument("--dir", type=Path, help="where to work (default: the directory for temporary files)")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="bench-convert-", dir=options.dir))
    try:
        worst = max(
            bench_files(root, options, "ND", None, options.mb),
            bench_files(root, options, "ND", None, 0.01),
            bench_files(root, options, "NC1HWC0", "NCHW", options.mb),
            bench_files(root, options, "FRACTAL_NZ", "ND", options.mb),
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    layout = bench_layouts(options.repeat)
    print(f"\ngoals: at most {GOAL_FLOOR} x the floor, measured {worst:.2f}; ", end="")
    print(f"at most {GOAL_LAYOUT} x a transposed copy, measured {layout:.2f}")
    return int(worst > GOAL_FLOOR or layout > GOAL_LAYOUT)


def bench_files(root: Path, options: argparse.Namespace, source: str, target: Optional[str], mb: float) -> float:
    """One table of times; returns ours with one thread over the floor."""
    directory, out = root / "in", root / "out"
    for path in (directory, out):
        shutil.rmtree(path, ignore_errors=True)
    count = options.files if mb >= 0.1 else options.files * 10
    write_files(directory, count, source, mb)
    files = sorted(directory.iterdir())

    def ours(jobs: int) -> Callable[[], None]:
        def run() -> None:
            for result in convert_all(find_tasks([directory], out), Options(format=target), jobs=jobs):
                assert not result.failures, result.failures[0].error

        return run

    cases: dict[str, Callable[[], None]] = {
        "floor": lambda: save_plainly(files, out, target),
        "copy": lambda: copy_whole(files, out),
        "ours, 1 thread": ours(1),
        "ours": ours(0),
    }
    peer = msaccucmp(directory, out, target)
    if peer is not None:
        cases["msaccucmp"] = peer
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(options.repeat):
        for name, run in cases.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    size = sum(path.stat().st_size for path in files)
    print(f"\n{source} -> {target or 'as it is'}, {count} files of 3 x {mb:g} MB")
    for name, seconds in best.items():
        ratio = seconds / best["floor"]
        print(f"  {name:16}{seconds * 1e3:9.1f} ms {size / seconds / 1e6:8.0f} MB/s   {ratio:5.2f} x floor")
    if peer is None:
        print(f"  msaccucmp       skipped: {PARSER}, which comes with CANN, is not found")
    return best["ours, 1 thread"] / best["floor"]


def write_files(directory: Path, count: int, source: str, mb: float) -> None:
    directory.mkdir()
    elements = max(1, int(mb * 2**20) // 2)
    if source == "NC1HWC0":
        batch = max(1, elements // (4 * 32 * 32 * 16))
        shape, original = (batch, 4, 32, 32, 16), (batch, 60, 32, 32)
    elif source == "FRACTAL_NZ":
        blocks = max(1, elements // (32 * 256))
        shape, original = (blocks, 32, 16, 16), (512, blocks * 16 - 8)
    else:
        shape = original = (1, elements)
    array = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(np.float16)
    number = formats.format_number(source)
    for index in range(count):
        tensors = [
            dump_file.tensor_of(io, at, array, format=number, original_shape=original, address=1)
            for io, at in (("input", 0), ("input", 1), ("output", 0))
        ]
        stamp = 1700000000000000 + index
        path = directory / f"MatMul.layer{index}.{index}.1.{stamp}"
        dump_file.write(path, tensors, op_name=f"layer{index}", dump_time=stamp)


def save_plainly(files: list[Path], out: Path, target: Optional[str]) -> None:
    """The shortest way numpy has, as a program without this package would do it."""
    for path in files:
        dump = dump_file.read_header(path)
        mapped = np.memmap(path, np.uint8, "r")
        for tensor in dump.tensors:
            array = mapped[tensor.offset : tensor.offset + tensor.size].view(np.float16).reshape(tensor.shape)
            if target == "NCHW":
                n, c, h, w = tensor.original_shape
                array = array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c]
            elif target == "ND":
                m, k = tensor.original_shape
                array = array.transpose(1, 2, 0, 3).reshape(m, -1)[:, :k]
            np.save(out / f"{path.name}.{tensor.io}.{tensor.index}.npy", np.ascontiguousarray(array))


def copy_whole(files: list[Path], out: Path) -> None:
    for path in files:
        with open(path, "rb") as source, open(out / path.name, "wb") as copy:
            left = path.stat().st_size
            while left:
                left -= os.copy_file_range(source.fileno(), copy.fileno(), left)


def msaccucmp(directory: Path, out: Path, target: Optional[str]) -> Optional[Callable[[], None]]:
    """Its command on the directory, None where it or its parser is missing."""
    spec = find_spec("msprobe")
    toolkit = os.environ.get("ASCEND_TOOLKIT_HOME", "/usr/local/Ascend/ascend-toolkit/latest")
    places = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), f"{toolkit}/tools/adump/lib64"]
    if spec is None or not spec.submodule_search_locations:
        return None
    if not any(os.path.exists(os.path.join(place, PARSER)) for place in places if place):
        return None
    script = Path(next(iter(spec.submodule_search_locations))) / "msaccucmp" / "msaccucmp.py"
    command = [sys.executable, str(script), "convert", "-d", str(directory), "-out", str(out)]
    return lambda: subprocess.run(
        [*command, *(["-f", target] if target else [])], stdout=subprocess.DEVNULL, check=True
    )


def bench_layouts(repeat: int) -> float:
    """Conversions in memory; returns the worst ratio to a plain transposed copy."""
    worst = 0.0
    cases = (
        ("NC1HWC0", "NCHW", (8, 60, 32, 32), "NCHW", (0, 1, 4, 2, 3)),
        ("NC1HWC0", "NHWC", (8, 60, 32, 32), "NCHW", (0, 2, 3, 1, 4)),
        ("NDC1HWC0", "NCDHW", (2, 60, 4, 32, 32), "NCDHW", (0, 2, 5, 1, 3, 4)),
        ("FRACTAL_NZ", "ND", (1, 1024, 1016), "ND", (0, 2, 3, 1, 4)),
        ("FRACTAL_Z", "NCHW", (256, 250, 3, 3), "NCHW", (2, 0, 3, 1)),
        ("NCHW", "NHWC", (8, 64, 32, 32), "NCHW", (0, 2, 3, 1)),
    )
    print("\nlayouts in memory, ratio to numpy.ascontiguousarray of a transposition of the same bytes")
    for source, target, shape, origin, order in cases:
        for dtype in (np.float16, np.float32):
            plain = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)
            array = plain if source == origin else formats.convert(plain, origin, source)
            # FRACTAL_Z has more axes than its shape tells.
            axes = (array.shape[0] // 9, 9, -1, 16) if source == "FRACTAL_Z" else array.shape
            view = array.reshape(axes).transpose(order)
            ours = partial(formats.convert, array, source, target, original_shape=shape, original_format=origin)
            floor = partial(np.ascontiguousarray, view)
            seconds, least = float("inf"), float("inf")
            for _ in range(4 * repeat):
                seconds, least = min(seconds, timed(ours)), min(least, timed(floor))
            worst = max(worst, seconds / least)
            size = array.nbytes / 1e6
            print(f"  {source:10} -> {target:6}{np.dtype(dtype).name:9}{size:5.1f} MB {seconds / least:5.2f} x")
    return worst


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
