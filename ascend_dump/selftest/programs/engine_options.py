"""Facts about session options of GE that torchair itself does not set. The program adds them to torchair's options.

Each question opens GE anew. After GE refused options, it is opened with valid ones: GE might refuse all options once
it has refused some, and then the question has no answer.
"""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Callable

import torch
from torch import distributed
from torch.distributed._functional_collectives import all_reduce

from ascend_dump.native.cann.config import keys
from ascend_dump.native.cann.dump_file import payload, read_header
from ascend_dump.native.cann.overflow import decode_overflow
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.graph_engine import GraphEngine, files, some_files

engine = GraphEngine()
#: Texts of `dump_step` that a device would accept although GE's own check refuses them.
LOOSE = ("3-1", "1||3", " 2 ")
RUNS = 5


class Eightfold(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """A model with one operator, which overflows if its input is near the largest float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 8


class Reduced(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # as above
    """A model with a product that two operators read: a collective one, of a group of one rank, and a Relu."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 8
        return all_reduce(y, "sum", [0]) + torch.relu(y)


def run(
    options: Mapping[str, str],
    value: float = 1.0,
    *,
    model: Callable[[], Any] = Eightfold,
    times: int = 1,
    config: str = "",
    dynamic: bool = False,
) -> None:
    """Open GE with these options, and run a graph.

    value: all elements of its input, of shape (2, 8). model: makes the module. times: number of runs. config: path of a
    dump JSON that torchair passes to acl, "" for none. dynamic: compile with symbolic shapes.
    """
    engine.forget()
    compiler_config = engine.torchair.CompilerConfig()
    if config:
        compiler_config.dump_config.dump_config_path = config
    with engine.with_options(options):
        engine.call(engine.compile(model(), compiler_config, dynamic=dynamic), torch.full((2, 8), value), times=times)


def dump_into(root: Path) -> dict[str, str]:
    """Return GE's options for a dump to the directory `root`."""
    return {keys.ENABLE_DUMP: "1", keys.DUMP_PATH: str(root)}


def new_directory(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


def accepted(directory: Path, name: str, options: Mapping[str, str], value: float = 1.0) -> bool:
    """Return True if GE accepts these options. Raises LookupError if it then refuses valid options too."""
    try:
        run(options, value)
    except RuntimeError:
        try:
            run(dump_into(new_directory(directory, f"after_{name}")))
        except RuntimeError as error:
            raise LookupError(f"GE cannot be opened again after a refusal: {error}") from error
        return False
    return True


def data_unchecked(directory: Path) -> list[str]:
    """Return the suffixes of the dump files ("csv" or "") for a misspelt kind of data; none if GE refuses it."""
    root = new_directory(directory, "data")
    if not accepted(directory, "data", {**dump_into(root), keys.DUMP_DATA: "statistics"}):
        return []
    return sorted({"csv" if file.path.suffix == ".csv" else "" for file in some_files(root)})


def detected(directory: Path) -> dict[str, int]:
    """Return the number of overflow records by mode of detection; -1 if GE refuses the mode. "" means no mode."""
    records = {}
    for mode in ("all", "", "aicore_overflow", "atomic_overflow"):
        name = f"overflow_{mode}"
        root = new_directory(directory, name)
        options = {keys.ENABLE_DEBUG: "1", keys.DUMP_PATH: str(root), **({keys.DEBUG_MODE: mode} if mode else {})}
        is_accepted = accepted(directory, name, options, 3e38)
        records[mode] = sum(file.parsed.overflow for file in files(root)) if is_accepted else -1
    if records["all"] <= 0:
        raise LookupError("the overflow is not recorded with the mode all either")
    return records


class Halved(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # as above
    """A model with one operator, a conversion to float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


def conversion_status(directory: Path) -> list[int]:
    """Return the status words that are not 0 in the overflow records of a conversion to float16."""
    root = new_directory(directory, "conversion")
    run({keys.ENABLE_DEBUG: "1", keys.DEBUG_MODE: "all", keys.DUMP_PATH: str(root)}, 1e30, model=Halved)
    headers = [read_header(file.path) for file in files(root) if file.parsed.overflow]
    records = [decode_overflow(bytes(payload(header, header.outputs[0]))) for header in headers]
    return sorted({word for record in records for unit in record.units for word in unit.status if word})


def soc() -> str:
    """Return the name of the device's chip, such as "Ascend910B1"."""
    if engine.simulated:
        from ascend_dump.fakes import installed_device

        return installed_device().soc
    return str(engine.torch_npu.npu.get_device_name(0))


def config_of(directory: Path, name: str, **settings: Any) -> tuple[Path, str]:
    """Return a new directory, and the path of a dump JSON that dumps to it."""
    root = new_directory(directory, name)
    file = directory / f"{name}.json"
    file.write_text(json.dumps({"dump": {"dump_path": str(root), **settings}}))
    return root, str(file)


def acl_outranks_options(directory: Path) -> dict[str, bool]:
    """Return True for each directory with files: the one that a dump JSON names, and the one that the options name."""
    by_acl, config = config_of(directory, "by_acl", dump_mode="all", dump_list=[{}])
    by_options = new_directory(directory, "by_options")
    run(dump_into(by_options), config=config)
    dumped = {"acl": bool(files(by_acl)), "options": bool(files(by_options))}
    if not any(dumped.values()):
        raise LookupError("neither of them dumped anything")
    return dumped


def watch_static(directory: Path) -> dict[str, bool]:
    """Return True if the watcher wrote files, for a graph with static shapes and for one with dynamic shapes."""
    name = operator_name(directory)
    wrote = {}
    for kind in ("static", "dynamic"):
        watched = [{"layer": [name], "watcher_nodes": [name]}]
        root, config = config_of(directory, kind, dump_scene="watcher", dump_mode="output", dump_list=watched)
        run({}, config=config, dynamic=kind == "dynamic")
        wrote[kind] = bool(files(root))
    if not wrote["static"]:
        raise LookupError("the watcher wrote nothing of a static graph either")
    return wrote


def operator_name(directory: Path) -> str:
    """Return the name that the operator of `Eightfold` has in a dump. Raises LookupError if it is not unique."""
    root = new_directory(directory, "operator")
    run(dump_into(root))
    names = {file.parsed.op_name for file in some_files(root) if "Mul" in file.parsed.op_type}
    if len(names) != 1:
        raise LookupError(f"the product is {sorted(names) or 'nothing'} in the dump")
    return names.pop()


def watch_collective(directory: Path) -> dict[str, list[str]]:
    """Return the names of the operators after which the watcher wrote the output of the product of `Reduced`.

    "collective" and "others" list collective and other operators.
    """
    distributed.init_process_group(
        "gloo" if engine.simulated else "hccl", store=distributed.HashStore(), rank=0, world_size=1
    )
    try:
        root = new_directory(directory, "reduced")
        run(dump_into(root), model=Reduced)
        types = {file.parsed.op_name: file.parsed.op_type for file in some_files(root)}
        collective = {name for name, op_type in types.items() if op_type.startswith("Hcom")}
        [product] = [name for name, op_type in types.items() if "Mul" in op_type]
        if not collective:
            raise LookupError(f"the graph has no collective operator, only {', '.join(sorted(types.values()))}")
        watched = [{"watcher_nodes": [product]}]
        root, config = config_of(directory, "watched", dump_scene="watcher", dump_mode="output", dump_list=watched)
        run({}, config=config, model=Reduced)
    finally:
        distributed.destroy_process_group()
    names = [file.parsed.op_name.partition(f"_To_{product}") for file in some_files(root)]
    layers = {layer for layer, separator, _ in names if separator}
    return {"collective": sorted(layers & collective), "others": sorted(layers - collective)}


def symlink(directory: Path) -> dict[str, bool]:
    """Return True for each dump path that GE accepts: a directory, and a symbolic link to it."""
    root = new_directory(directory, "directory")
    link = directory / "link"
    link.symlink_to(root)
    return {path.name: accepted(directory, path.name, dump_into(path)) for path in (root, link)}


def step_range(directory: Path) -> dict[str, bool]:
    """Return True for each range of steps that GE accepts: one of two steps, and one of one step."""
    options = dump_into(new_directory(directory, "ranges"))
    return {text: accepted(directory, text, {**options, keys.DUMP_STEP: text}) for text in ("4-5", "5-5")}


def steps_on_the_device(directory: Path) -> dict[str, list[str]]:
    """Return the dumped steps of `RUNS` runs, for each text of `LOOSE` that GE accepts.

    Raises LookupError if GE refuses all of them.
    """
    steps = {}
    for number, text in enumerate(LOOSE):
        name = f"loose_{number}"
        root = new_directory(directory, name)
        options = {**dump_into(root), keys.DUMP_STEP: text}
        if accepted(directory, name, options):
            run(options, times=RUNS)
            steps[text] = sorted({file.levels[-1] for file in files(root)})
    if not steps:
        raise LookupError("GE itself refuses all of these texts, so no device reads one")
    return steps


def ask(directory: Path) -> dict[str, Any]:
    questions = (
        *(data_unchecked, detected, conversion_status, acl_outranks_options, watch_static),
        *(symlink, step_range, steps_on_the_device, watch_collective),
    )
    asked = {question.__name__: partial(question, directory) for question in questions}
    return ask_each(directory, {"soc": soc, **asked})


if __name__ == "__main__":
    ask(Path(sys.argv[3]).resolve())
