"""Throughput of comparing tensors in memory, in GB/s of one side; also of msprobe, if it is installed.

Usage: bench_compare_tensors.py [MEGABYTES [arrays|dumps]]     (default 256; the aim is 2 GB/s, 50 times msprobe)

msprobe is the package mindstudio-probe. `arrays` compares pairs of arrays, the same for both tools; msprobe's functions
are called as its own comparison calls them, to check a pair for NaN and Inf and to compute its numbers; it converts
bfloat16 to float32. `dumps` compares two dumps of one program in which every tensor differs: the commands `ascend-dump
compare` and `msprobe compare` from start to exit, each on dumps in its own format with the same tensors, then on dumps
four times as large. The additional time for the larger dumps gives the throughput without the start.

Other work on the machine makes wall times longer and hardly changes processor times, so both are printed, and ratios
are taken from calls of the two tools in turns. "2 processors" is twice the amount compared in one second of processor
time. numpy multiplies with threads of a library, which wait busily for some time after a call: each measurement begins
after they have stopped. Time that they wait within a call counts as processor time of msprobe, not as wall time.

Measured on two processors with AVX-512 (load 4 to 7, so that ratios vary; msprobe 26.2.0), where every element differs,
on arrays of 64 MB, two runs or more: float32 11 GB/s on 2 processors, 61 to 81 times msprobe by the time of a processor
and 62 to 105 by the wall; bfloat16 5.3 to 5.6, 87 to 102 and 95 to 115 times; float16 5.7 to 6.1, 97 times and more;
float64 13 to 15, 34 to 82 and 40 to 91 times; int32 20, 482 times and more; float8_e4m3fn 5. With load 1 and both
threads busy, the kernels alone took 0.41 ns of wall time for an element of float64 and 0.38 for one of bfloat16,
msprobe 35 and 31 ns: 86 and 83 times. For an element in the cache they take 0.6 ns of processor time; float64 is
limited by the bandwidth of the memory. On arrays of 4 MB, which stay in the cache, msprobe takes half as long for an
element of float64, so the ratio is 25.

On another machine with two processors (load 16), two dumps of 256 MB: 7 times as fast as msprobe from start to exit; of
1 GB: 11 times; by the additional time for the larger ones: 31 times, 39 times by wall time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable, Optional

import ml_dtypes
import numba  # noqa: F401  # loaded, as it is in a long comparison
import numpy as np

from ascend_dump.analysis.compare import measure

ROUNDS = 5
_DISTINCT = 1 << 20
#: Threads of libraries wait busily for the next call, for less than this.
_ASLEEP = 0.2
_TENSORS = 16
Times = tuple[float, float]  # of the wall, of the processors


def pair(name: str, size: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Two tensors of so many bytes, of which a share of the elements differs."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    rng = np.random.default_rng(0)
    count = size // dtype.itemsize
    b = (3 * rng.standard_normal(_DISTINCT)).astype(dtype)
    noise = np.where(rng.random(_DISTINCT) < share, 1 + 0.01 * rng.standard_normal(_DISTINCT), 1.0)
    a = (b.astype("float64") * noise).astype(dtype)
    return np.resize(a, count), np.resize(b, count)


def seconds(call: Callable[[], object]) -> Times:
    time.sleep(_ASLEEP)
    start, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - used


def medians(times: list[Times]) -> Times:
    wall, used = (median(column) for column in zip(*times))
    return wall, used


def of_msprobe() -> Optional[Callable[[Any, Any], object]]:
    try:
        from msprobe.core.compare.npy_compare import CompareResult, ValidateTensor, compare_ops_apply
    except ImportError:
        return None

    def compare(a: Any, b: Any) -> object:
        checked = ValidateTensor().check_tensor(CompareResult(_read_there(a), _read_there(b)))
        return compare_ops_apply(checked.n_value, checked.b_value, checked.error_flag, checked.err_msg)

    return compare


def _read_there(array: np.ndarray) -> Any:
    if array.dtype.name != "bfloat16":
        return array
    import torch

    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(torch.float32).numpy()


def arrays(size: int) -> None:
    peer = of_msprobe()
    heads = ("type", "differ", "GB/s", "2 processors", "times msprobe", "of processor")
    print("".join(f"{head:>15}" for head in heads))
    for name in ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "int32"):
        for share in (0.0, 0.01, 1.0):
            a, b = pair(name, size, share)
            measure(a, b)
            ours: list[Times] = []
            theirs: list[Times] = []
            for _ in range(ROUNDS):
                ours.append(seconds(lambda a=a, b=b: measure(a, b)))
                if peer is not None and share == 1.0 and not name.startswith("float8"):
                    theirs.append(seconds(lambda a=a, b=b: peer(a, b)))
            wall, used = medians(ours)
            ratios = ["-", "-"]
            if theirs:
                ratios = [f"{there / here:.0f}" for there, here in zip(medians(theirs), (wall, used))]
            row = (name, f"{share:.0%}", f"{a.nbytes / wall / 1e9:.2f}", f"{2 * a.nbytes / used / 1e9:.2f}", *ratios)
            print("".join(f"{cell:>15}" for cell in row), flush=True)


def program(factor: float, count: int) -> Callable[[], None]:
    """Operators on distinct tensors of so many elements; a dump holds their inputs and outputs, twice `_TENSORS`."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(count, generator=generator) for _ in range(_TENSORS)]
    noise = 1 + factor * torch.randn(count, generator=generator)
    inputs = [one * noise for one in inputs]

    def run() -> None:
        for one in inputs:
            torch.nn.functional.relu(one)

    return run


def make_dump(tool: str, root: Path, factor: float, count: int) -> None:
    """Run in a process of its own, because both patch PyTorch."""
    run = program(factor, count)
    if tool == "ascend_dump":
        import ascend_dump

        with ascend_dump.capture(framework="torch", path=root, mode="all"):
            run()
        return
    from msprobe.pytorch import PrecisionDebugger

    everything: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    settings = {"task": "tensor", "dump_path": str(root), "rank": [], "step": [], "level": "L1", "tensor": everything}
    file = root.with_suffix(".json")
    file.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(file))
    debugger.start()
    run()
    debugger.stop()
    debugger.step()


def command(argv: list[str], codes: tuple[int, ...]) -> Times:
    """How long a program takes from start to exit."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        raise SystemExit(f"{argv}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def dumps(size: int, folder: Path, rounds: int = 3) -> dict[str, Times]:
    """What each tool takes for two dumps of so many bytes."""
    count = size // 4 // (2 * _TENSORS)
    tools = ["ascend_dump"] + (["msprobe"] if of_msprobe() is not None else [])
    for tool in tools:
        for side, factor in (("actual", 1e-3), ("reference", 0.0)):
            folder.joinpath(tool).mkdir(exist_ok=True, parents=True)
            root = folder / tool / side
            making = [sys.executable, __file__, "--make", tool, str(root), str(factor), str(count)]
            subprocess.run(making, check=True, capture_output=True)
    programs = Path(sys.executable).parent
    ours = [sys.executable, "-m", "ascend_dump", "compare", *(str(folder / tools[0] / side) for side in SIDES)]
    command(ours, (0, 1))  # compiles
    times: dict[str, list[Times]] = {tool: [] for tool in tools}
    for number in range(rounds):
        times["ascend_dump"].append(command(ours, (0, 1)))
        if "msprobe" in tools:
            [target], [golden] = (list((folder / "msprobe" / side).glob("step*/*/dump.json")) for side in SIDES)
            out = folder / f"out{number}"
            out.mkdir(mode=0o750)
            # Modes of folders and files are checked there.
            their = [str(programs / "msprobe"), "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out)]
            times["msprobe"].append(command(their, (0,)))
    found = {tool: medians(some) for tool, some in times.items()}
    for tool, (wall, used) in found.items():
        print(
            f"{tool}: two dumps of {2 * _TENSORS} float32 tensors, {size >> 20} MB of each side, from start to exit: "
            f"{wall:.2f} s, {used:.2f} s of processor; {size / wall / 1e9:.2f} GB/s",
            flush=True,
        )
    _ratio(found, "from start to exit")
    return found


def _ratio(found: dict[str, Times], how: str) -> None:
    if "msprobe" in found:
        wall, used = (there / here for there, here in zip(found["msprobe"], found["ascend_dump"]))
        print(f"msprobe takes {wall:.0f} times as long {how}, {used:.0f} times of processor", flush=True)


def growing(size: int, folder: Path) -> None:
    """Dumps of two sizes, and what both tools take for a byte more."""
    small, large = dumps(size, folder / "small"), dumps(4 * size, folder / "large")
    more: dict[str, Times] = {}
    for tool, (wall, used) in small.items():
        more[tool] = large[tool][0] - wall, large[tool][1] - used
        each = [3 * size / 1e9 / one for one in more[tool]]
        print(f"{tool}: without its start {each[0]:.2f} GB/s, {each[1]:.2f} GB in a second of a processor")
    _ratio(more, "without the start of either")


SIDES = ("actual", "reference")


def main(megabytes: int = 256, only: str = "") -> None:
    if only in "arrays":
        arrays(megabytes << 20)
    if only in "dumps":
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            growing(megabytes << 20, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make_dump(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 256, *sys.argv[2:3])
