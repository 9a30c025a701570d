"""Facts about overflow detection of eager operators.

A process reads the switch of the detection once. So each question has a process of its own.
"""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.native.cann.names import eager_name, parse_name
from ascend_dump.selftest.processes import INTERFACE
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.kernel_dumps import KernelDumps

#: Keys of the dump JSON that switch the detection on; None removes a key that `KernelDumps` sets by default.
DEBUG: dict[str, Any] = {"dump_debug": "on", "dump_mode": None, "dump_op_switch": None, "dump_list": None}
SATURATION = "INF_NAN_MODE_FORCE_DISABLE"


class Detection:
    """Overflow detection in this process. When it is created, no operator has run."""

    def __init__(self, directory: Path) -> None:
        torch_npu: Any = import_module("torch_npu")
        #: Copying a tensor to the NPU initialises the NPU, but runs no operator.
        self.x = torch.full((64,), 6e4, dtype=torch.float16).npu()
        self.dumps = KernelDumps(torch_npu, directory)
        self.npu = torch_npu.npu
        self.result = ""

    def overflow(self) -> None:
        """Run an operator that overflows, and two that pass its result on; note the final result as text."""
        self.result = str(float((self.x * 2).abs().max().cpu()))

    def files(self, name: str) -> list[Path]:
        return self.dumps.files_of(name, launch=self.overflow, **DEBUG)

    def notes(self) -> dict[str, Any]:
        ask = getattr(self.npu.utils, "is_support_inf_nan", None)
        files = [described(path) for path in self.files("detected")]
        return {"inf_nan": None if ask is None else bool(ask()), "files": files, "result": self.result}

    def replay(self) -> None:
        graph = self.npu.NPUGraph()
        with self.npu.graph(graph):
            self.x * 2
        graph.replay()


def described(path: Path) -> dict[str, Any]:
    """Return name, level, sides and largest absolute output value of a file."""
    header, name = read_header(path), parse_name(path.name)
    eager = None if name is None else eager_name(name)
    outputs = [decode(header, tensor) for tensor in header.outputs if not tensor.error]
    return {
        "name": path.name,
        "is_kernel": eager is not None and eager.kernel is not None,
        "sides": sorted({tensor.io for tensor in header.tensors}),
        "max": str(float(max((np.abs(array.astype("f4")).max() for array in outputs), default=0))),
    }


def early(directory: Path) -> dict[str, Any]:
    """Switch the detection on before the first operator, and return what it writes.

    files     files of the first detection
    again     number of files when it is ended and switched on again
    captured  number of files for a kernel in a graph (NPUGraph)
    """
    detection = Detection(directory)
    noted = detection.notes()
    detection.overflow()
    again = len(detection.files("again"))
    captured = len(detection.dumps.files_of("captured", launch=detection.replay, **DEBUG))
    return {**noted, "again": again, "captured": captured}


def late(directory: Path) -> int:
    """Return the number of files of a detection that is switched on after the first operator."""
    detection = Detection(directory)
    detection.overflow()
    return len(detection.files("late"))


def saturated(directory: Path) -> dict[str, Any]:
    """Switch the detection on before the first operator, in saturation mode, and return what it writes."""
    os.environ[SATURATION] = "1"
    return Detection(directory).notes()


def ask(question: str, directory: Path) -> dict[str, Any]:
    os.environ.pop(SATURATION, None)
    answer = {each.__name__: each for each in (early, late, saturated)}[question]
    return ask_each(directory, {f"detected_{question}": partial(answer, directory.resolve())})


if __name__ == "__main__":
    ask(sys.argv[2][len(INTERFACE) :], Path(sys.argv[3]))
