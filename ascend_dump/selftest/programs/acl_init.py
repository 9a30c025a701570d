"""Facts about a dump whose configuration is passed to acl.init(). A process can call acl.init() only once."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import numpy as np

from ascend_dump.selftest.onnx_model import OnnxNode
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.offline_network import OfflineNetwork, build_offline, start_device
from ascend_dump.selftest.tiny_network import IN, OUT, ROWS

acl: Any = import_module("acl")
DEVICE = 0


class InitialDump:
    """A dump that acl.init() configured, with the questions about it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dumps = directory / "initial"
        self.dumps.mkdir()
        config = directory / "initial.json"
        config.write_text(json.dumps({"dump": {"dump_path": str(self.dumps), "dump_mode": "all", "dump_list": [{}]}}))
        start_device(acl, DEVICE, str(config))

    def number_of_files(self) -> int:
        """Load a model, run it once, unload it, and return the number of dump files so far."""
        nodes = (OnnxNode("only", "MatMul", ("x", "w")),)
        om = build_offline(acl, self.directory / "net.om", nodes, {"w": np.ones((IN, OUT), "f4")})
        network = OfflineNetwork(acl, om)
        network.run(np.ones((ROWS, IN), "f4"))
        network.unload()
        return sum(path.is_file() for path in self.dumps.rglob("*"))

    def init_twice(self) -> int:
        return int(acl.init(str(self.directory / "missing.json")))

    def init_dump_after_init(self) -> dict[str, int]:
        return {"files": self.number_of_files(), "code": acl.mdl.init_dump()}

    def finalize_ends_init(self) -> dict[str, int]:
        before = self.number_of_files()
        return {"before": before, "code": acl.mdl.finalize_dump(), "after": self.number_of_files()}


def ask(directory: Path) -> dict[str, Any]:
    initial = InitialDump(directory.resolve())
    questions: dict[str, Callable[[], Any]] = {
        "init_twice": initial.init_twice,
        "init_dump_after_init": initial.init_dump_after_init,
        "finalize_ends_init": initial.finalize_ends_init,
    }
    return ask_each(directory, questions)


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
    acl.finalize()
