"""Facts about dumps of kernels that an NPUGraph captures and replays."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.kernel_dumps import KernelDumps

torch_npu: Any = import_module("torch_npu")
REPLAYS = 2


def replay() -> None:
    """Capture one multiplication in a graph, and replay the graph `REPLAYS` times."""
    x = torch.ones(64).npu()
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        x * 8
    for _ in range(REPLAYS):
        graph.replay()


def captured(dumps: KernelDumps) -> list[dict[str, Any]]:
    """Return a dict for each file of a dump during the replays.

    name    path below the directory of the device
    sides   "input", "output" or both
    bytes   size of the file
    record  size of one record: header and payload
    """
    files = dumps.files_of("captured", launch=replay)
    if not files:
        raise LookupError("a captured kernel left no file")
    records = []
    for path in files:
        # The first two levels are the time and the device.
        name = "/".join(path.relative_to(dumps.directory / "captured").parts[2:])
        header = read_header(path)
        last = header.tensors[-1]
        sides = sorted({tensor.io for tensor in header.tensors})
        size = path.stat().st_size
        records.append({"name": name, "sides": sides, "bytes": size, "record": last.offset + last.size})
    return records


def captured_statistics(dumps: KernelDumps) -> int:
    """Return the number of files that a dump of statistics writes during the replays."""
    return len(dumps.files_of("captured_statistics", launch=replay, dump_data="stats"))


def capturing(dumps: KernelDumps) -> bool:
    """Return True if torch_npu refuses to wait for the device while a graph is being captured.

    This has to be the last question: the device may not work afterwards. Raises LookupError if no graph can be
    captured.
    """
    refused = False
    try:
        with torch_npu.npu.graph(torch_npu.npu.NPUGraph()):
            try:
                torch_npu.npu.synchronize()
            except RuntimeError:
                refused = True
                raise
    except RuntimeError:
        if not refused:
            raise LookupError("a graph cannot be captured") from None
    return refused


def ask(directory: Path) -> dict[str, Any]:
    # Run the kernel outside a graph first, because it may have to be loaded.
    (torch.ones(64).npu() * 8).cpu()
    dumps = KernelDumps(torch_npu, directory)
    questions = (captured, captured_statistics, capturing)
    return ask_each(directory, {question.__name__: partial(question, dumps) for question in questions})


if __name__ == "__main__":
    ask(Path(sys.argv[3]).resolve())
