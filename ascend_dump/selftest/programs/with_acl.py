"""A tiny offline model that runs through pyACL. On a device `atc` of CANN's toolkit makes it."""

import atexit
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import numpy as np

from ascend_dump._errors import FrameworkMissing
from ascend_dump.selftest.onnx_model import OnnxNode, convert_with_atc, onnx_model
from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.tiny_network import IN, OUT, ROWS, run_step, weights

HOST_TO_DEVICE, DEVICE_TO_HOST, HUGE_FIRST = 1, 2, 0
DEVICE = 0
try:
    acl: Any = import_module("acl")
except (ImportError, OSError) as error:
    print(f"acl cannot be imported: {error}")
    sys.exit(4)
SIMULATED = bool(getattr(acl, "__ascend_dump_fake__", False))


def take(found: Any, call: str) -> Any:
    """What a call gives beside its code, which has to be 0."""
    value, code = found if isinstance(found, tuple) else (None, found)
    if code:
        raise SystemExit(f"{call} returned {code}")
    return value


WEIGHTS = dict(zip(("w1", "w2"), weights()))
NODES = (
    OnnxNode("first", "MatMul", ("x", "w1")),
    OnnxNode("relu", "Relu", ("first",)),
    OnnxNode("second", "MatMul", ("relu", "w2")),
)


def build(place: Path) -> Path:
    """The model as a file, made once in a process."""
    om = place / "net.om"
    if om.exists():
        return om
    if SIMULATED:
        from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save

        constants = [OfflineNode(name, "Const", const=array) for name, array in WEIGHTS.items()]
        nodes = [OfflineNode(node.name, node.type, tuple(f"{name}:0" for name in node.inputs)) for node in NODES]
        spec = TensorSpec("x", (ROWS, IN), "float32")
        save(OfflineModel("net", (spec,), (*constants, *nodes), ("second:0",), True), om)
        return om
    model = onnx_model({"x": (ROWS, IN)}, WEIGHTS, NODES, {"second": (ROWS, OUT)})
    try:
        convert_with_atc(model, om, acl.get_soc_name())
    except FrameworkMissing as error:
        print(error)
        sys.exit(4)
    return om


class OfflineNetwork:
    """The model, loaded by its first step: acl looks at the settings of a dump when a model is loaded."""

    def __init__(self, om: Path) -> None:
        self.om = om
        self.model: Optional[int] = None

    def run(self, x: np.ndarray) -> np.ndarray:
        if self.model is None:
            self.model = int(take(acl.mdl.load_from_file(str(self.om)), "acl.mdl.load_from_file"))
        y = np.empty((ROWS, OUT), "f4")
        given, source = dataset(x.nbytes)
        made, result = dataset(y.nbytes)
        take(acl.rt.memcpy(source, x.nbytes, acl.util.bytes_to_ptr(x.tobytes()), x.nbytes, HOST_TO_DEVICE), "memcpy")
        take(acl.mdl.execute(self.model, given, made), "acl.mdl.execute")
        host = take(acl.rt.malloc_host(y.nbytes), "acl.rt.malloc_host")
        take(acl.rt.memcpy(host, y.nbytes, result, y.nbytes, DEVICE_TO_HOST), "memcpy")
        y[:] = np.frombuffer(acl.util.ptr_to_bytes(host, y.nbytes), "f4").reshape(y.shape)
        return y


def dataset(size: int) -> tuple[Any, int]:
    """A data set of one buffer on the device, and the buffer's address; they are few and stay."""
    address = int(take(acl.rt.malloc(size, HUGE_FIRST), "acl.rt.malloc"))
    made = acl.mdl.create_dataset()
    acl.mdl.add_dataset_buffer(made, acl.create_data_buffer(address, size))
    return made, address


begun: list[Path] = []


def make() -> OfflineNetwork:
    if not begun:
        begun.append(Path(sys.argv[3]))
        code = acl.init()
        if code == 0:
            atexit.register(acl.finalize)
            code = acl.rt.set_device(DEVICE)
        if code:
            print(f"acl finds no device: it returned {code}")
            sys.exit(4)
    return OfflineNetwork(build(begun[0]))


def step(model: OfflineNetwork, number: int, overflow: bool) -> StepSeen:
    return run_step(model.run, number, overflow)


def facts(directory: Path) -> dict[str, Any]:
    return {"soc": acl.get_soc_name(), "device": DEVICE}


if __name__ == "__main__":
    settings = {"framework": "acl", "options": {"status_check": True}}
    main(Network(make, step, settings, target=lambda made: None, anew=True, detects=True, facts=facts))
