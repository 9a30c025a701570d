"""Session options of GE that torchair does not set; they are added to those that it sets.

Each question opens GE anew. After a refusal GE is tried with valid options: it might refuse all from then on.
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
#: Dump steps that a device would read although GE's own check refuses them.
LOOSE = ("3-1", "1||3", " 2 ")
RUNS = 5


class Eightfold(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """One operator; it overflows if its input is near the largest float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 8


class Reduced(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # as above
    """A product, read by a collective operator of a group of one rank and by a second operator."""

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
    """Open GE with these options, and run a graph. config: a dump JSON that torchair passes to acl."""
    engine.forget()
    compiler_config = engine.torchair.CompilerConfig()
    if config:
        compiler_config.dump_config.dump_config_path = config
    with engine.with_options(options):
        engine.call(engine.compile(model(), compiler_config, dynamic=dynamic), torch.full((2, 8), value), times=times)


def dump_into(root: Path) -> dict[str, str]:
    """Return the options of a dump."""
    return {keys.ENABLE_DUMP: "1", keys.DUMP_PATH: str(root)}


def new_directory(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


def accepted(directory: Path, name: str, options: Mapping[str, str], value: float = 1.0) -> bool:
    """Return True if GE accepts these options. Raises LookupError if it refuses valid options after them."""
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
    """Return the suffixes of files of a misspelt kind of data; none if GE refuses it."""
    root = new_directory(directory, "data")
    if not accepted(directory, "data", {**dump_into(root), keys.DUMP_DATA: "statistics"}):
        return []
    return sorted({"csv" if file.path.suffix == ".csv" else "" for file in some_files(root)})


def detected(directory: Path) -> dict[str, int]:
    """Return the number of records of an overflow by mode of detection, "" for none; -1 if GE refuses the mode."""
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
    """A conversion to float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


def conversion_status(directory: Path) -> list[int]:
    """Return the status words in the records of an overflow of a conversion to float16."""
    root = new_directory(directory, "conversion")
    run({keys.ENABLE_DEBUG: "1", keys.DEBUG_MODE: "all", keys.DUMP_PATH: str(root)}, 1e30, model=Halved)
    headers = [read_header(file.path) for file in files(root) if file.parsed.overflow]
    records = [decode_overflow(bytes(payload(header, header.outputs[0]))) for header in headers]
    return sorted({word for record in records for unit in record.units for word in unit.status if word})


def soc() -> str:
    """Return the name of the device."""
    if engine.simulated:
        from ascend_dump.fakes import installed_device

        return installed_device().soc
    return str(engine.torch_npu.npu.get_device_name(0))


def config_of(directory: Path, name: str, **settings: Any) -> tuple[Path, str]:
    """Return a new directory, and a dump JSON for it."""
    root = new_directory(directory, name)
    file = directory / f"{name}.json"
    file.write_text(json.dumps({"dump": {"dump_path": str(root), **settings}}))
    return root, str(file)


def acl_outranks_options(directory: Path) -> dict[str, bool]:
    """Return by directory, of the dump JSON and of the options: True if it has files."""
    by_acl, config = config_of(directory, "by_acl", dump_mode="all", dump_list=[{}])
    by_options = new_directory(directory, "by_options")
    run(dump_into(by_options), config=config)
    dumped = {"acl": bool(files(by_acl)), "options": bool(files(by_options))}
    if not any(dumped.values()):
        raise LookupError("neither of them dumped anything")
    return dumped


def watch_static(directory: Path) -> dict[str, bool]:
    """Return by kind of shapes: True if the watcher wrote files."""
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
    """Return the name of the product in a dump of the graph. Raises LookupError if there is not exactly one."""
    root = new_directory(directory, "operator")
    run(dump_into(root))
    names = {file.parsed.op_name for file in some_files(root) if "Mul" in file.parsed.op_type}
    if len(names) != 1:
        raise LookupError(f"the product is {sorted(names) or 'nothing'} in the dump")
    return names.pop()


def watch_collective(directory: Path) -> dict[str, list[str]]:
    """Return the operators after which the watcher wrote the output of a product: collective operators and others."""
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
    """Return by path, of a directory and a link to it: True if GE accepts it."""
    root = new_directory(directory, "directory")
    link = directory / "link"
    link.symlink_to(root)
    return {path.name: accepted(directory, path.name, dump_into(path)) for path in (root, link)}


def step_range(directory: Path) -> dict[str, bool]:
    """Return by range: True if GE accepts it."""
    options = dump_into(new_directory(directory, "ranges"))
    return {text: accepted(directory, text, {**options, keys.DUMP_STEP: text}) for text in ("4-5", "5-5")}


def steps_on_the_device(directory: Path) -> dict[str, list[str]]:
    """Return the dumped steps by accepted text. Raises LookupError if GE refuses all texts."""
    steps = {}
    for number, text in enumerate(LOOSE):
        name = f"loose_{number}"
        root = new_directory(directory, name)
        options = {**dump_into(root), keys.DUMP_STEP: text}
        if accepted(directory, name, options):
            run(options, times=RUNS)
            steps[text] = sorted({file.levels[-1] for file in files(root)})
    if not steps:
        raise LookupError("GE itself refuses every such text, so that no device gets one")
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
