"""What GE makes of torchair's options and graphs: each question begins with GE closed, in a directory of its own."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.native.cann.names import sanitize
from ascend_dump.native.torchair.graph import operator_names
from ascend_dump.selftest.evidence import DeviceFile, device_files
from ascend_dump.selftest.program import ask_each

SIMULATED = not sys.modules.keys().isdisjoint({"torchair", "torchair.core._torchair"})
if not SIMULATED:
    import_module("torch_npu")
torchair: Any = import_module("torchair")
backend: Any = import_module("torchair.core._backend")
converter: Any = import_module("torchair._ge_concrete_graph.fx2ge_converter")
DEVICE = "cpu" if SIMULATED else "npu"
#: The global of torchair that holds the dump JSON of the process, and the function that writes it.
HEADER, WRITER = "g_cached_dump_root", "_set_dump_options_json"


class Products(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """Two products, the second of which can be in the scope of a dump."""

    def __init__(self, *, scoped: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.scoped = scoped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if not self.scoped:
            return self.second(x)
        with torchair.scope.data_dump():
            return self.second(x)


def forget(header: Any = None) -> None:
    """Close GE, and let torchair forget its options. header: a dump JSON of the process that it then goes on with."""
    torch._dynamo.reset()
    backend.finalize_graph_engine()
    backend._GLOBAL_COMPILE_OPTION = None
    setattr(converter, HEADER, header)


def without_json(function: Any) -> Any:
    """Call it while torchair writes no dump JSON: GE gets the options alone."""
    writer = getattr(converter, WRITER, None)
    setattr(converter, WRITER, lambda *arguments: None)
    try:
        return function()
    finally:
        if writer is None:
            delattr(converter, WRITER)
        else:
            setattr(converter, WRITER, writer)


def needs_json() -> None:
    """Raises LookupError where torchair writes no dump JSON, as its older versions do not."""
    if not hasattr(converter, WRITER):
        raise LookupError("this torchair writes no dump JSON")


def run(model: Any, place: Path, x: torch.Tensor, *, times: int = 1, graphs: bool = False, **options: Any) -> None:
    """Compile a model with a dump into that directory, and run it."""
    place.mkdir(exist_ok=True)
    config = torchair.CompilerConfig()
    for name, value in {"enable_dump": True, "dump_path": str(place), "dump_mode": "all", **options}.items():
        setattr(config.dump_config, name, value)
    if graphs:
        config.debug.graph_dump.type = "py"
        config.debug.graph_dump.path = str(place)
    compiled = torch.compile(model.to(DEVICE), backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    with torch.no_grad():
        for _ in range(times):
            compiled(x.to(DEVICE))


def files(place: Path) -> list[DeviceFile]:
    return [file for file in device_files(place) if file.name is not None]


def some_files(place: Path) -> list[DeviceFile]:
    """Those without which there is no answer. Raises LookupError where the device dumped nothing."""
    found = files(place)
    if not found:
        raise LookupError(f"nothing was dumped into {place.name!r}")
    return found


def first_graph(directory: Path) -> list[str]:
    """The steps that were dumped of a second graph, which asks for another one than the first. Torchair's own check
    of that is taken out."""
    place, x = directory / "first_graph", torch.ones(2, 8)
    forget()

    def run_both() -> set[str]:
        run(Products(), place, x, times=2, dump_step="0")
        before = {file.path for file in some_files(place)}
        backend._GLOBAL_COMPILE_OPTION = None
        run(Products(), place, torch.ones(3, 8), times=2, dump_step="1")
        return {file.levels[-1] for file in files(place) if file.path not in before}

    return sorted(without_json(run_both))


def json_and_options(directory: Path) -> list[str]:
    """The sides that were dumped, where the options ask for outputs and the JSON for inputs."""
    needs_json()
    place = directory / "json_and_options"
    (place / "worldsize1_global_rank0").mkdir(parents=True)
    forget({"dump": {"dump_path": str(place / "worldsize1_global_rank0"), "dump_mode": "input", "dump_list": []}})
    run(Products(), place, torch.ones(2, 8), dump_mode="output")
    return sorted({tensor.io for file in some_files(place) for tensor in read_header(file.path).tensors})


def refusal_dropped(directory: Path) -> str:
    """What the program is told where acl refuses the JSON, "" for nothing."""
    needs_json()
    place = directory / "refusal_dropped"
    forget({"dump": {"dump_path": str(place), "dump_mode": "everything", "dump_list": []}})
    try:
        run(Products(), place, torch.ones(2, 8))
    except Exception as error:  # whatever is raised is the answer
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def scope_selects(directory: Path) -> dict[str, list[str]]:
    """Types and names of the products that were dumped, of two of which the second is in the scope."""
    needs_json()
    place = directory / "scope"
    forget()
    run(Products(scoped=True), place, torch.ones(2, 8))
    products = [file.parsed for file in some_files(place) if "MatMul" in file.parsed.op_type]
    return {"types": sorted({one.op_type for one in products}), "names": sorted({one.op_name for one in products})}


def renamed(directory: Path) -> list[str]:
    """Operators in the dump that are none of torchair's graph."""
    place = directory / "names"
    forget()
    run(Products(), place, torch.ones(2, 8), graphs=True)
    texts = list(place.rglob("dynamo_optimized_graph_*.py"))
    if not texts:
        raise LookupError("torchair wrote no graph")
    names = {sanitize(name) for text in texts for name in operator_names(text)}
    return sorted({file.parsed.op_name for file in some_files(place)} - names)


def batch_statistics(directory: Path) -> dict[str, bool]:
    """Whether outputs 1 and 2 of BatchNormV3 are mean and variance of the batch."""
    place = directory / "batch_norm"
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 3 + 7
    forget()
    run(torch.nn.BatchNorm2d(3), place, x)
    for file in some_files(place):
        if file.parsed.op_type == "BatchNormV3":
            header = read_header(file.path)
            found = {tensor.index: decode(header, tensor).ravel() for tensor in header.tensors if tensor.io == "output"}
            dims = (0, 2, 3)
            wanted = {"mean": (1, x.mean(dims)), "variance": (2, x.var(dims, correction=0))}
            return {
                name: index in found and bool(np.allclose(found[index], value.numpy(), rtol=1e-2, atol=1e-2))
                for name, (index, value) in wanted.items()
            }
    raise LookupError("no BatchNormV3 was dumped")


def ask(directory: Path) -> dict[str, Any]:
    questions = (first_graph, json_and_options, refusal_dropped, scope_selects, renamed, batch_statistics)
    return ask_each(directory, {question.__name__: partial(question, directory) for question in questions})


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
