"""Dumps of kernels that a graph (NPUGraph) captures and replays."""

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
    """Capture a kernel, and replay it."""
    x = torch.ones(64).npu()
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        x * 8
    for _ in range(REPLAYS):
        graph.replay()


def captured(dumps: KernelDumps) -> list[dict[str, Any]]:
    """Return name, size and the size of one record of each file."""
    files = dumps.files_of("captured", launch=replay)
    if not files:
        raise LookupError("a captured kernel left no file")
    records = []
    for path in files:
        # After the time and the device.
        name = "/".join(path.relative_to(dumps.directory / "captured").parts[2:])
        header = read_header(path)
        last = header.tensors[-1]
        sides = sorted({tensor.io for tensor in header.tensors})
        size = path.stat().st_size
        records.append({"name": name, "sides": sides, "bytes": size, "record": last.offset + last.size})
    return records


def captured_statistics(dumps: KernelDumps) -> int:
    """Return the number of files of a dump of statistics."""
    return len(dumps.files_of("captured_statistics", launch=replay, dump_data="stats"))


def capturing(dumps: KernelDumps) -> bool:
    """Return True if waiting for the device is refused in a capture. The last question: the device may fail then."""
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
    # Run it outside a capture first: a kernel may have to be loaded.
    (torch.ones(64).npu() * 8).cpu()
    dumps = KernelDumps(torch_npu, directory)
    questions = (captured, captured_statistics, capturing)
    return ask_each(directory, {question.__name__: partial(question, dumps) for question in questions})


if __name__ == "__main__":
    ask(Path(sys.argv[3]).resolve())
