"""Facts about dumps of offline models: the model is dumped with one setting after the other.

The answer to most questions is a dict: `code`, the return code of set_dump, and `files`, a dict for each dump file.
"""

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import numpy as np

from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.native.cann.mapping import MAPPING, read_mapping
from ascend_dump.native.cann.names import parse_name
from ascend_dump.selftest.onnx_model import OnnxNode
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.offline_network import (
    OfflineNetwork,
    build_offline,
    run_dumped,
    start_device,
    take,
)
from ascend_dump.selftest.tiny_network import HIDDEN, IN, ROWS, weights

acl: Any = import_module("acl")
DEVICE = 0
ODD, LONG = "odd.name:with a/slash", "long_" + "n" * 295
CONSTANTS = {**dict(zip(("w1", "w2"), weights())), "bias": np.ones(HIDDEN, "f4")}
PLAIN = (
    OnnxNode("first", "MatMul", ("x", "w1")),
    OnnxNode("sum", "Add", ("first", "bias")),
    OnnxNode("relu", "Relu", ("sum",)),
    OnnxNode("twice", "Relu", ("relu",)),
    OnnxNode("second", "MatMul", ("twice", "w2")),
)


class OfflineDumps:
    """Dumps below `directory`, each to a directory of its own. The models are built there too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def plain(self) -> Path:
        return build_offline(acl, self.directory / "plain.om", PLAIN, CONSTANTS, fused={"relu": "twice"})

    def config(self, root: Path, **settings: Any) -> str:
        root.mkdir(parents=True, exist_ok=True)
        return self.text(root.name, {"dump_path": str(root), "dump_mode": "all", "dump_list": [{}], **settings})

    def text(self, name: str, settings: dict[str, Any]) -> str:
        file = self.directory / f"{name}.json"
        file.write_text(json.dumps({"dump": {key: value for key, value in settings.items() if value is not None}}))
        return str(file)

    def dump(self, name: str, *, value: float = 1.0, **settings: Any) -> dict[str, Any]:
        """Dump one run of the model `PLAIN` to the directory `name`, and return the code and the files.

        value: all elements of the input. settings: further keys of the dump JSON; None removes a default key.
        """
        root = self.directory / name
        return {"code": run_dumped(acl, self.config(root, **settings), self.plain(), value), "files": dump_files(root)}

    def fused(self) -> str:
        """Return the name of an operator of `PLAIN` that was fused into another one. Raises LookupError if none was."""
        files = dump_files(self.directory / "whole")
        origins = {(origin["name"], file["operator"]) for file in files for origin in file["origins"]}
        names = {node.name for node in PLAIN}
        fused: list[str] = sorted(name for name, operator in origins if name != operator and name in names)
        if not fused:
            raise LookupError("no operator was fused")
        return fused[0]

    def fused_layer(self) -> dict[str, Any]:
        """Dump with a layer that is the name of a fused operator."""
        name = self.fused()
        return {"layer": name, **self.dump("fused_layer", dump_list=[{"layer": [name]}])}

    def fused_watched(self) -> dict[str, Any]:
        """Dump with a watcher on the name of a fused operator."""
        watched = [{"layer": ["second"], "watcher_nodes": [self.fused()]}]
        return self.dump("fused_watched", dump_scene="watcher", dump_mode="output", dump_list=watched)

    def renamed(self, model: str, name: str) -> dict[str, Any]:
        """Return the code and the files of a dump of another model.

        model: name of the model. name: name of its second operator.
        """
        nodes = (
            OnnxNode("first", "MatMul", ("x", "w1")),
            OnnxNode(name, "Relu", ("first",)),
            OnnxNode("second", "MatMul", (name, "w2")),
        )
        om = build_offline(acl, self.directory / f"{model}.om", nodes, CONSTANTS)
        root = self.directory / f"of_{model}"
        return {"code": run_dumped(acl, self.config(root), om), "files": dump_files(root)}

    def loaded(self) -> list[int]:
        """Return the number of files after each of three runs.

        The model of the first run is loaded before set_dump. It is unloaded, and loaded again for the second run. The
        third run follows finalize_dump.
        """
        root = self.directory / "loaded"
        network = OfflineNetwork(acl, self.plain())
        network.load()
        take(acl.mdl.init_dump(), "acl.mdl.init_dump")
        take(acl.mdl.set_dump(self.config(root)), "acl.mdl.set_dump")
        counts = []
        for change in (lambda: None, network.unload, acl.mdl.finalize_dump):
            change()
            network.run(np.ones((ROWS, IN), "f4"))
            counts.append(len(dump_files(root)))
        network.unload()
        return counts

    def address(self) -> dict[str, Any]:
        root = Path("by_address")
        settings = {"dump_path": f"127.0.0.1:{root}", "dump_mode": "all", "dump_list": [{}]}
        return {"code": run_dumped(acl, self.text("address", settings), self.plain()), "files": dump_files(root)}


def dump_files(root: Path) -> list[dict[str, Any]]:
    """Return a dict for each file below a dump path, except mapping files. Tensors are described by size only."""
    return [_described(path, root) for path in sorted(root.rglob("*")) if path.is_file() and path.name != MAPPING]


def _described(path: Path, root: Path) -> dict[str, Any]:
    name = path.name
    mapping = path.with_name(MAPPING)
    original = read_mapping(mapping).names.get(name, "") if mapping.is_file() else ""
    parsed = parse_name(original or name)
    entry: dict[str, Any] = {
        "name": name,
        "original": original,
        "root": str(root),
        "levels": list(path.parent.relative_to(root).parts),
        "type": parsed.op_type if parsed else "",
        "task": parsed.task_id if parsed else None,
    }
    if path.suffix == ".csv":
        return {**entry, "head": path.read_text(errors="replace").partition("\n")[0]}
    header = read_header(path)
    origins = [
        {"name": tensor.original_op.name, "type": tensor.original_op.data_type, "dumped_type": tensor.data_type}
        for tensor in header.outputs
        if tensor.original_op is not None
    ]
    return {
        **entry,
        "operator": header.op_name,
        "inputs": [tensor.size for tensor in header.inputs],
        "origins": origins,
    }


def ask(directory: Path) -> dict[str, Any]:
    start_device(acl, DEVICE)
    dumps = OfflineDumps(directory.resolve())
    without = [{"name": "first", "pos": ["input0"]}]
    watched = [{"layer": ["second"], "watcher_nodes": ["first"]}]
    debug: dict[str, Any] = {"value": 3e38, "dump_debug": "on", "dump_mode": None, "dump_list": None}
    settings: dict[str, dict[str, Any]] = {
        "whole": {},
        "one_layer": {"dump_list": [{"layer": ["first"]}]},
        "last_layer": {"dump_list": [{"layer": ["second"]}]},
        "two_items": {"dump_list": [{"layer": ["first"]}, {"layer": ["second"]}]},
        "blacklist": {"dump_level": "op", "dump_list": [{"layer": ["first"], "opname_blacklist": without}]},
        "chosen": {"dump_data": "stats", "dump_stats": ["Max", "L2norm"], "dump_list": [{"layer": ["first"]}]},
        "watcher": {"dump_scene": "watcher", "dump_mode": "output", "dump_list": watched},
        "overflow": debug,
        "overflow_of_step": {**debug, "dump_step": "5"},
        "other_step": {"dump_step": "5"},
        "first_step": {"dump_step": "0"},
        "blank directory": {},
    }
    questions: dict[str, Callable[[], Any]] = {
        name: partial(dumps.dump, name, **keys) for name, keys in settings.items()
    }
    questions["fused_layer"] = dumps.fused_layer
    questions["fused_watched"] = dumps.fused_watched
    questions["loaded"] = dumps.loaded
    questions["odd_names"] = partial(dumps.renamed, "dotted.net", ODD)
    questions["long_names"] = partial(dumps.renamed, "long", LONG)
    # The last question, because a device may wait long for an address that does not answer.
    questions["address"] = dumps.address
    return ask_each(directory, questions)


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
    acl.finalize()
