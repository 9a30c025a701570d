"""Facts about dumps of graphs that torchair compiles.

Each question closes GE before its dump (`engine.forget`), and dumps to a directory of its own.
"""

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.native.cann.names import sanitize
from ascend_dump.native.torchair.graph import operator_names
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.graph_engine import GraphEngine, files, some_files

engine = GraphEngine()


class Products(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """A model with two matrix products. scoped: the second one is in a scope of `data_dump`."""

    def __init__(self, *, scoped: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.scoped = scoped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if not self.scoped:
            return self.second(x)
        with engine.torchair.scope.data_dump():
            return self.second(x)


def first_graph(directory: Path) -> list[str]:
    """Return the dumped steps of a second graph, which requests another step than the first graph.

    torchair itself refuses different options of a second graph. This check is disabled here.
    """
    root, x = directory / "first_graph", torch.ones(2, 8)
    engine.forget()

    def run_both() -> set[str]:
        engine.run(Products(), root, x, times=2, dump_step="0")
        before = {file.path for file in some_files(root)}
        engine.backend._GLOBAL_COMPILE_OPTION = None
        engine.run(Products(), root, torch.ones(3, 8), times=2, dump_step="1")
        return {file.levels[-1] for file in files(root) if file.path not in before}

    with engine.without_json():
        return sorted(run_both())


def json_and_options(directory: Path) -> list[str]:
    """Return the dumped sides (input, output) if the options request outputs and the dump JSON requests inputs."""
    engine.needs_json()
    root = directory / "json_and_options"
    (root / "worldsize1_global_rank0").mkdir(parents=True)
    engine.forget({"dump": {"dump_path": str(root / "worldsize1_global_rank0"), "dump_mode": "input", "dump_list": []}})
    engine.run(Products(), root, torch.ones(2, 8), dump_mode="output")
    return sorted({tensor.io for file in some_files(root) for tensor in read_header(file.path).tensors})


def refusal_dropped(directory: Path) -> str:
    """Return the first line of the error that the program gets if acl refuses the dump JSON; "" if it gets none."""
    engine.needs_json()
    root = directory / "refusal_dropped"
    engine.forget({"dump": {"dump_path": str(root), "dump_mode": "everything", "dump_list": []}})
    try:
        engine.run(Products(), root, torch.ones(2, 8))
    except Exception as error:  # any error is the answer
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def scope_selects(directory: Path) -> dict[str, list[str]]:
    """Return the types and the names of the dumped products of a graph of two, of which the second is in the scope."""
    engine.needs_json()
    root = directory / "scope"
    engine.forget()
    engine.run(Products(scoped=True), root, torch.ones(2, 8))
    products = [file.parsed for file in some_files(root) if "MatMul" in file.parsed.op_type]
    return {
        "types": sorted({product.op_type for product in products}),
        "names": sorted({product.op_name for product in products}),
    }


def renamed(directory: Path) -> list[str]:
    """Return the names of dumped operators that are not in the graph that torchair writes as text."""
    root = directory / "names"
    engine.forget()
    engine.run(Products(), root, torch.ones(2, 8), graphs=True)
    texts = list(root.rglob("dynamo_optimized_graph_*.py"))
    if not texts:
        raise LookupError("torchair wrote no graph")
    names = {sanitize(name) for text in texts for name in operator_names(text)}
    return sorted({file.parsed.op_name for file in some_files(root)} - names)


def batch_statistics(directory: Path) -> dict[str, bool]:
    """Return True under "mean" if output 1 of BatchNormV3 is the batch's mean; the same for "variance" and output 2."""
    root = directory / "batch_norm"
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 3 + 7
    engine.forget()
    engine.run(torch.nn.BatchNorm2d(3), root, x)
    for file in some_files(root):
        if file.parsed.op_type == "BatchNormV3":
            header = read_header(file.path)
            outputs = {
                tensor.index: decode(header, tensor).ravel() for tensor in header.tensors if tensor.io == "output"
            }
            dims = (0, 2, 3)
            expected = {"mean": (1, x.mean(dims)), "variance": (2, x.var(dims, correction=0))}
            return {
                name: index in outputs and bool(np.allclose(outputs[index], value.numpy(), rtol=1e-2, atol=1e-2))
                for name, (index, value) in expected.items()
            }
    raise LookupError("no BatchNormV3 was dumped")


def max_pool_mask(directory: Path) -> dict[str, Any]:
    """Return the type of output 1 of MaxPoolWithArgmaxV1, and True if its values are PyTorch's indices."""
    root = directory / "max_pool"
    x = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    engine.forget()
    engine.run(torch.nn.MaxPool2d(2), root, x)
    indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1].numpy()
    for file in some_files(root):
        if file.parsed.op_type == "MaxPoolWithArgmaxV1":
            header = read_header(file.path)
            [array] = [
                decode(header, tensor) for tensor in header.tensors if (tensor.io, tensor.index) == ("output", 1)
            ]
            same = bool(np.array_equal(array.ravel(), indices.ravel()))
            return {"type": array.dtype.name, "indices": same}
    raise LookupError("no MaxPoolWithArgmaxV1 was dumped")


def saved_names(directory: Path) -> dict[str, Any]:
    """Return the names of the files that two graphs save in the mode reduce-overhead, with two runs of each."""
    root = directory / "aclgraph"
    root.mkdir()
    for _ in range(2):
        engine.forget()
        config = engine.torchair.CompilerConfig()
        config.mode = "reduce-overhead"
        config.dump_config.enable_dump = True
        config.dump_config.dump_path = str(root)
        with warnings.catch_warnings():
            # torchair warns that a dump may have no effect in this mode.
            warnings.simplefilter("ignore")
            compiled = engine.compile(torch.nn.ReLU(), config)
        try:
            engine.call(compiled, torch.ones(2, 8), times=2)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise LookupError(f"the mode reduce-overhead does not run: {error.inner_exception}") from error
    names = sorted(path.name for path in root.rglob("*.pt"))
    if not names:
        raise LookupError("torchair saved no tensors")
    return {"device": engine.device, "names": names}


def ask(directory: Path) -> dict[str, Any]:
    questions = (
        *(first_graph, json_and_options, refusal_dropped, scope_selects, renamed),
        *(batch_statistics, max_pool_mask, saved_names),
    )
    return ask_each(directory, {question.__name__: partial(question, directory) for question in questions})


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
