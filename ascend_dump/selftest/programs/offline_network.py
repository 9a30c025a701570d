"""Offline models of a few operators, run with pyACL.

For a device, `atc` of CANN's toolkit builds the model. For the simulated device, a stand-in of the file is written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from ascend_dump.errors import AdapterError, FrameworkMissing
from ascend_dump.selftest.onnx_model import OnnxNode, convert_with_atc, onnx_model
from ascend_dump.selftest.processes import NO_DEVICE
from ascend_dump.selftest.tiny_network import IN, OUT, ROWS

__all__ = ["OfflineNetwork", "build_offline", "run_dumped", "start_device", "take"]

HOST_TO_DEVICE, DEVICE_TO_HOST, HUGE_FIRST = 1, 2, 0


def take(result: Any, call: str) -> Any:
    """Return the value that a function of acl returned, None if it returned only a code.

    result: the code, or a pair of value and code. call: name of the function. Raises AdapterError if the code is not 0.
    """
    value, code = result if isinstance(result, tuple) else (None, result)
    if code:
        raise AdapterError(f"{call} returned {code}")
    return value


def start_device(acl: Any, device: int, config: Optional[str] = None) -> None:
    """Initialise acl and select the device. Exits the program with `NO_DEVICE` if there is none.

    config: path of a JSON file for acl.init(), None for none.
    """
    code = acl.init() if config is None else acl.init(config)
    if code == 0:
        code = acl.rt.set_device(device)
    if code:
        print(f"acl finds no device: it returned {code}")
        sys.exit(NO_DEVICE)


def build_offline(
    acl: Any,
    om: Path,
    nodes: Sequence[OnnxNode],
    constants: Mapping[str, np.ndarray],
    *,
    fused: Mapping[str, str] = {},
) -> Path:
    """Build an offline model as the file `om`, unless it exists, and return its path.

    The input is `x`, of shape (ROWS, IN); the output is that of the last node, of shape (ROWS, OUT). fused: pairs of
    operators that the simulated device fuses into the first one; the second one must change nothing.
    """
    if om.exists():
        return om
    if getattr(acl, "__ascend_dump_fake__", False):
        _save_stand_in(om, nodes, constants, fused)
        return om
    model = onnx_model({"x": (ROWS, IN)}, constants, nodes, {nodes[-1].name: (ROWS, OUT)})
    try:
        convert_with_atc(model, om, acl.get_soc_name())
    except FrameworkMissing as error:
        print(error)
        sys.exit(NO_DEVICE)
    return om


def _save_stand_in(
    om: Path, nodes: Sequence[OnnxNode], constants: Mapping[str, np.ndarray], fused: Mapping[str, str]
) -> None:
    from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save

    fused_into = {second: first for first, second in fused.items()}
    offline_nodes = [OfflineNode(name, "Const", const=array) for name, array in constants.items()]
    for node in nodes:
        if node.name not in fused_into:
            originals = (node.name, fused[node.name]) if node.name in fused else ()
            inputs = tuple(f"{fused_into.get(name, name)}:0" for name in node.inputs)
            offline_nodes.append(OfflineNode(node.name, node.type, inputs, original_names=originals))
    spec = TensorSpec("x", (ROWS, IN), "float32")
    save(OfflineModel(om.stem, (spec,), tuple(offline_nodes), (f"{nodes[-1].name}:0",), True), om)


class OfflineNetwork:
    """An offline model that is loaded in its first run, because acl reads the settings of a dump at that time."""

    def __init__(self, acl: Any, om: Path) -> None:
        self.acl = acl
        self.om = om
        self.model: Optional[int] = None

    def load(self) -> int:
        """Load the model if it is not loaded, and return its id."""
        if self.model is None:
            self.model = int(take(self.acl.mdl.load_from_file(str(self.om)), "acl.mdl.load_from_file"))
        return self.model

    def unload(self) -> None:
        if self.model is not None:
            take(self.acl.mdl.unload(self.model), "acl.mdl.unload")
            self.model = None

    def run(self, x: np.ndarray) -> np.ndarray:
        """Return the output of shape (ROWS, OUT) for an input of shape (ROWS, IN)."""
        acl, model = self.acl, self.load()
        y = np.empty((ROWS, OUT), "f4")
        inputs, source = self._dataset(x.nbytes)
        outputs, result = self._dataset(y.nbytes)
        take(acl.rt.memcpy(source, x.nbytes, acl.util.bytes_to_ptr(x.tobytes()), x.nbytes, HOST_TO_DEVICE), "memcpy")
        take(acl.mdl.execute(model, inputs, outputs), "acl.mdl.execute")
        host = take(acl.rt.malloc_host(y.nbytes), "acl.rt.malloc_host")
        take(acl.rt.memcpy(host, y.nbytes, result, y.nbytes, DEVICE_TO_HOST), "memcpy")
        y[:] = np.frombuffer(acl.util.ptr_to_bytes(host, y.nbytes), "f4").reshape(y.shape)
        return y

    def _dataset(self, size: int) -> tuple[Any, int]:
        """Create a data set with one buffer on the device, and return it with the buffer's address.

        size: bytes of the buffer. Neither is freed before the process ends.
        """
        address = int(take(self.acl.rt.malloc(size, HUGE_FIRST), "acl.rt.malloc"))
        dataset = self.acl.mdl.create_dataset()
        self.acl.mdl.add_dataset_buffer(dataset, self.acl.create_data_buffer(address, size))
        return dataset, address


def run_dumped(acl: Any, config: str, om: Path, value: float = 1.0) -> int:
    """Call set_dump with this dump JSON, load the model, run it once, unload it, and return the code of set_dump.

    value: all elements of the input.
    """
    take(acl.mdl.init_dump(), "acl.mdl.init_dump")
    try:
        code = int(acl.mdl.set_dump(config))
        network = OfflineNetwork(acl, om)
        network.run(np.full((ROWS, IN), value, "f4"))
        network.unload()
    finally:
        acl.mdl.finalize_dump()
    return code
