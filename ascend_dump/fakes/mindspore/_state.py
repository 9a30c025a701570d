"""The part of a MindSpore process's state that the dump writers read: settings, device, rank and log."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.fakes.device.npu import OperatorFailed
from ascend_dump.native.mindspore.runtime import Runtime, parse_version

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["GRAPH_MODE", "PYNATIVE_MODE", "VERSION_VARIABLE", "MindSporeState"]

GRAPH_MODE, PYNATIVE_MODE = 0, 1
#: The variable that sets the version of the fake MindSpore. Below 2.6, a dump with jit_level O2 writes files.
VERSION_VARIABLE = "ASCEND_DUMP_FAKE_MINDSPORE_VERSION"
VERSION = "2.10.0"
#: The first version in which jit_level O2 (the graph engine GE) does not read the dump JSON.
_GE_WITHOUT_DUMP = (2, 6)


class MindSporeState:
    """The state of a process with MindSpore.

    context  settings of `set_context` and `set_device`
    rank     the rank after `communication.init`, else None
    size     the number of ranks
    """

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.version = os.environ.get(VERSION_VARIABLE, VERSION)
        self.context: dict[str, Any] = {
            "mode": PYNATIVE_MODE,
            "device_target": "CPU",
            "device_id": npu.device_id,
            "jit_level": "",
            "reserve_class_name_in_scope": True,
        }
        self.rank: Optional[int] = None
        self.size = 1

    @property
    def target(self) -> str:
        return str(self.context["device_target"])

    @property
    def runtime(self) -> Runtime:
        """The device and the way in which it runs graphs.

        On Ascend (an Atlas A2) kernels run one by one, unless jit_level is O2 (document of `set_context`, 2.5).
        """
        if self.target != "Ascend":
            return Runtime(self.target)
        ge = self.context["jit_level"] == "O2"
        return Runtime("Ascend", ge, ge and (parse_version(self.version) or (0, 0)) < _GE_WITHOUT_DUMP)

    @property
    def rank_id(self) -> int:
        return self.rank or 0

    def log(self, level: str, text: str) -> None:
        """Write a line of MindSpore's log to stderr, and to the log of the simulated device."""
        self.npu.log.append(f"[{level}] {text}")
        print(f"[{level}] {text}", file=sys.stderr)

    def run_on_device(self, op_type: str, name: str, node: Any, model_id: Optional[int] = None) -> None:
        """Report an operator to the simulated device. Raises RuntimeError if the device lets it fail."""
        try:
            inputs = [array for array in node.seen if array is not None]
            self.npu.run_op(op_type, name, inputs, list(node.results), model_id=model_id)
        except OperatorFailed as error:
            raise RuntimeError(f"Launch kernel failed, kernel full name: {name}") from error
