"""What GE makes of session options that torchair would not give it: they are put beside its own.

Each question opens GE anew. Behind a refusal GE is tried with options that it takes: it might refuse all from then on.
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
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.graph_engine import GraphEngine, files, some_files

engine = GraphEngine()
#: Dump steps that a device would read although GE's own check refuses them.
LOOSE = ("3-1", "1||3", " 2 ")
RUNS = 5


class Eightfold(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """One operator, which overflows where its input is near the largest float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 8


class Reduced(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # as above
    """A product, which a collective operator of a group of one rank reads, and another operator."""

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

    config: a dump JSON that torchair hands to acl.
    """
    engine.forget()
    made = engine.torchair.CompilerConfig()
    if config:
        made.dump_config.dump_config_path = config
    with engine.with_options(options):
        engine.call(engine.compile(model(), made, dynamic=dynamic), torch.full((2, 8), value), times=times)


def dump_into(place: Path) -> dict[str, str]:
    """The options of a dump."""
    return {keys.ENABLE_DUMP: "1", keys.DUMP_PATH: str(place)}


def place_of(directory: Path, name: str) -> Path:
    found = directory / name
    found.mkdir()
    return found


def accepted(directory: Path, name: str, options: Mapping[str, str], value: float = 1.0) -> bool:
    """Whether GE accepts these options. Raises LookupError if it refuses them, and then valid options too."""
    try:
        run(options, value)
    except RuntimeError:
        try:
            run(dump_into(place_of(directory, f"after_{name}")))
        except RuntimeError as error:
            raise LookupError(f"GE cannot be opened again after a refusal: {error}") from error
        return False
    return True


def data_unchecked(directory: Path) -> list[str]:
    """The suffixes of what a misspelt kind of data dumped, none where GE refuses it."""
    place = place_of(directory, "data")
    if not accepted(directory, "data", {**dump_into(place), keys.DUMP_DATA: "statistics"}):
        return []
    return sorted({"csv" if file.path.suffix == ".csv" else "" for file in some_files(place)})


def detected(directory: Path) -> dict[str, int]:
    """By mode of overflow detection, "" for none, the number of records of an overflow; -1 where GE refuses it."""
    found = {}
    for mode in ("all", "", "aicore_overflow", "atomic_overflow"):
        name = f"overflow_{mode}"
        place = place_of(directory, name)
        options = {keys.ENABLE_DEBUG: "1", keys.DUMP_PATH: str(place), **({keys.DEBUG_MODE: mode} if mode else {})}
        taken = accepted(directory, name, options, 3e38)
        found[mode] = sum(file.parsed.overflow for file in files(place)) if taken else -1
    if found["all"] <= 0:
        raise LookupError("the overflow is not recorded with the mode all either")
    return found


def soc() -> str:
    """The name of the device."""
    if engine.simulated:
        from ascend_dump.fakes import installed_device

        return installed_device().soc
    return str(engine.torch_npu.npu.get_device_name(0))


def config_of(directory: Path, name: str, **settings: Any) -> tuple[Path, str]:
    """A directory, and a dump JSON for it."""
    place = place_of(directory, name)
    file = directory / f"{name}.json"
    file.write_text(json.dumps({"dump": {"dump_path": str(place), **settings}}))
    return place, str(file)


def acl_outranks_options(directory: Path) -> dict[str, bool]:
    """Which of two directories got files: that of the dump JSON, or that of the options."""
    by_acl, config = config_of(directory, "by_acl", dump_mode="all", dump_list=[{}])
    by_options = place_of(directory, "by_options")
    run(dump_into(by_options), config=config)
    found = {"acl": bool(files(by_acl)), "options": bool(files(by_options))}
    if not any(found.values()):
        raise LookupError("neither of them dumped anything")
    return found


def watch_static(directory: Path) -> dict[str, bool]:
    """Whether the watcher wrote anything of a graph with static shapes, and of one with dynamic ones."""
    name = operator_name(directory)
    found = {}
    for kind in ("static", "dynamic"):
        watched = [{"layer": [name], "watcher_nodes": [name]}]
        place, config = config_of(directory, kind, dump_scene="watcher", dump_mode="output", dump_list=watched)
        run({}, config=config, dynamic=kind == "dynamic")
        found[kind] = bool(files(place))
    if not found["static"]:
        raise LookupError("the watcher wrote nothing of a static graph either")
    return found


def operator_name(directory: Path) -> str:
    """That of the graph's one operator, as a dump says; raises LookupError where the graph has others than that."""
    place = place_of(directory, "operator")
    run(dump_into(place))
    names = {file.parsed.op_name for file in some_files(place) if "Mul" in file.parsed.op_type}
    if len(names) != 1:
        raise LookupError(f"the product is {sorted(names) or 'nothing'} in the dump")
    return names.pop()


def watch_collective(directory: Path) -> dict[str, list[str]]:
    """The operators after which the watcher wrote the output of a product: collective operators and others."""
    distributed.init_process_group(
        "gloo" if engine.simulated else "hccl", store=distributed.HashStore(), rank=0, world_size=1
    )
    try:
        place = place_of(directory, "reduced")
        run(dump_into(place), model=Reduced)
        types = {file.parsed.op_name: file.parsed.op_type for file in some_files(place)}
        collective = {name for name, op_type in types.items() if op_type.startswith("Hcom")}
        [product] = [name for name, op_type in types.items() if "Mul" in op_type]
        if not collective:
            raise LookupError(f"the graph has no collective operator, only {', '.join(sorted(types.values()))}")
        watched = [{"watcher_nodes": [product]}]
        place, config = config_of(directory, "watched", dump_scene="watcher", dump_mode="output", dump_list=watched)
        run({}, config=config, model=Reduced)
    finally:
        distributed.destroy_process_group()
    names = [file.parsed.op_name.partition(f"_To_{product}") for file in some_files(place)]
    layers = {layer for layer, separator, _ in names if separator}
    return {"collective": sorted(layers & collective), "others": sorted(layers - collective)}


def symlink(directory: Path) -> dict[str, bool]:
    """Whether GE takes a directory, and a link to it."""
    place = place_of(directory, "directory")
    link = directory / "link"
    link.symlink_to(place)
    return {path.name: accepted(directory, path.name, dump_into(path)) for path in (place, link)}


def step_range(directory: Path) -> dict[str, bool]:
    """By range, whether GE takes it."""
    options = dump_into(place_of(directory, "ranges"))
    return {text: accepted(directory, text, {**options, keys.DUMP_STEP: text}) for text in ("4-5", "5-5")}


def steps_on_the_device(directory: Path) -> dict[str, list[str]]:
    """By a text that GE lets pass, the steps that were dumped. Raises LookupError where it refuses all of them."""
    found = {}
    for number, text in enumerate(LOOSE):
        name = f"loose_{number}"
        place = place_of(directory, name)
        options = {**dump_into(place), keys.DUMP_STEP: text}
        if accepted(directory, name, options):
            run(options, times=RUNS)
            found[text] = sorted({file.levels[-1] for file in files(place)})
    if not found:
        raise LookupError("GE itself refuses every such text, so that no device gets one")
    return found


def ask(directory: Path) -> dict[str, Any]:
    questions = (
        *(data_unchecked, detected, acl_outranks_options, watch_static),
        *(symlink, step_range, steps_on_the_device, watch_collective),
    )
    asked = {question.__name__: partial(question, directory) for question in questions}
    return ask_each(directory, {"soc": soc, **asked})


if __name__ == "__main__":
    ask(Path(sys.argv[3]).resolve())
