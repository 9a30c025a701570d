"""Run the scenarios of the self-test with a tiny offline model in pyACL."""

import atexit
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ascend_dump.selftest.onnx_model import OnnxNode
from ascend_dump.selftest.program import Network, StepSeen, main
from ascend_dump.selftest.programs.offline_network import OfflineNetwork, build_offline, start_device
from ascend_dump.selftest.tiny_network import run_step, weights

DEVICE = 0
try:
    acl: Any = import_module("acl")
except (ImportError, OSError) as error:
    print(f"acl cannot be imported: {error}")
    sys.exit(4)


WEIGHTS = dict(zip(("w1", "w2"), weights()))
NODES = (
    OnnxNode("first", "MatMul", ("x", "w1")),
    OnnxNode("relu", "Relu", ("first",)),
    OnnxNode("second", "MatMul", ("relu", "w2")),
)
#: The directory of the process, once acl is initialised; empty before.
initialised_in: list[Path] = []


def make() -> OfflineNetwork:
    if not initialised_in:
        initialised_in.append(Path(sys.argv[3]))
        start_device(acl, DEVICE)
        atexit.register(acl.finalize)
    return OfflineNetwork(acl, build_offline(acl, initialised_in[0] / "net.om", NODES, WEIGHTS))


def step(model: OfflineNetwork, number: int, overflow: bool) -> StepSeen:
    return run_step(model.run, number, overflow)


def facts(directory: Path) -> dict[str, Any]:
    return {"soc": acl.get_soc_name(), "device": DEVICE, "constants": len(WEIGHTS)}


if __name__ == "__main__":
    settings = {"framework": "acl", "options": {"status_check": True}}
    main(Network(make, step, settings, target=lambda model: None, anew=True, detects=True, facts=facts))
