"""What torchair would refuse of a request, or accept without doing it, and what comes too late."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from ascend_dump import AscendDumpError, NotSupported
from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, current_rank, size_is_unlimited, worst_first
from ascend_dump.native.cann.config import Situation, check_ge_options
from ascend_dump.native.cann.config.of_request import problems_of_config
from ascend_dump.native.cann.config.scenes import SCENES
from ascend_dump.native.torchair.config.check import check_working_directory
from ascend_dump_torchair import _engine
from ascend_dump_torchair._config import find_detours, has, is_config, is_foreign, read, torchair
from ascend_dump_torchair._settings import OF_MODULES, OF_ROADS, TorchairSettings, build_settings
from ascend_dump_torchair._target import find_compiled, find_scopes, is_compilable, uses_cache

__all__ = ["check", "config_of"]

_CACHE = "a model of cache_compile keeps the dump options it was first compiled with, the path among them"


def check(request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
    """Everything to know before the start, errors first."""
    problems = list(_of_torchair(request, target))
    if not problems:
        config = config_of(request, target)
        problems += _of_target(target)
        try:
            settings = _plan(request, config, run)
            problems += _of_timing(request, settings)
            problems += _of_config(config, settings)
            problems += _of_settings(request, config, settings, run)
            problems += _of_model(target, settings)
            problems += _unused(request, target, settings)
        except AscendDumpError as error:
            problems.append(Problem(error.code, "error", error.message, error.hint))
        problems += _of_request(request)
    return worst_first(problems)


def config_of(request: DumpRequest, target: Any) -> Any:
    """The config to fill: the target, the one in the options, or a new one."""
    if is_config(target):
        return target
    given = request.options.get("compiler_config")
    return torchair().CompilerConfig() if given is None else given


def _of_torchair(request: DumpRequest, target: Any) -> Iterator[Problem]:
    """Whether torchair is there, and the config is one of its own."""
    try:
        loaded = torchair()
        loaded.CompilerConfig  # noqa: B018  (a proxy imports torchair, or raises, when it is looked at)
    except (ImportError, AttributeError) as error:
        first = (str(error).splitlines() or [""])[0]
        yield Problem("AD248", "error", f"torchair cannot be used: {first}", "import torchair before the capture")
        return
    given = target if is_config(target) else request.options.get("compiler_config")
    if given is None:
        return
    place = "target" if is_config(target) else "options"
    if not is_config(given):
        message = f"compiler_config is a {type(given).__name__}, not a CompilerConfig"
        yield Problem("AD248", "error", message, "give a torchair.CompilerConfig()", place)
    elif is_foreign(given):
        message = (
            f"this CompilerConfig is the one of {type(given).__module__}, a second copy of torchair in this process: "
            "the backend does not know it"
        )
        yield Problem("AD248", "error", message, "`import torchair` and use torchair.CompilerConfig", place)


def _of_target(target: Any) -> Iterator[Problem]:
    if target is None or is_config(target):
        return
    compiled = find_compiled(target)
    if compiled is not None:
        message = f"{compiled} is compiled already, and its backend has the options it was made with"
        hint = "capture the eager module, or the CompilerConfig of its backend before the first call"
        yield Problem("AD253", "error", message, hint, "target")
    elif not is_compilable(target):
        message = f"a {type(target).__name__} cannot be compiled in place"
        hint = "capture its CompilerConfig, and give the backend to torch.compile yourself"
        yield Problem("AD253", "error", message, hint, "target")


def _of_timing(request: DumpRequest, settings: TorchairSettings) -> Iterator[Problem]:
    if settings.road in ("options", "json") and _engine.recorded() is not None:
        if not request.options.get("reset"):
            message = "GE is initialised already, by a graph that was built before: its options count for the process"
            hint = (
                "begin the capture before the first call of any compiled model, or close GE and compile every graph "
                "anew with options={'reset': True}"
            )
            yield Problem("AD240", "error", message, hint, "target")
        elif not _engine.can_close():
            message = "this torchair has nothing that closes GE"
            hint = "begin the capture before the first call of any compiled model"
            yield Problem("AD240", "error", message, hint, "options")
    anew = _engine.was_closed() or _engine.recorded() is not None
    if settings.road in ("options", "json") and anew and "torch_npu" in sys.modules:
        message = (
            "GE has been initialised in this process before. Beside torch_npu, closing it ends torchair's session and "
            "not GE itself; whether a device takes the new options has not been tried"
        )
        yield Problem(
            "AD240", "warning", message, "use a process for each capture where the dump stays empty", "target"
        )
    distributed = sys.modules.get("torch.distributed")
    grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if current_rank().world > 1 and not grouped:
        message = (
            "this is one of several ranks, but the process group is not initialised: torchair names the directory "
            "of the rank when the first graph is built, worldsize1_global_rank0 until then"
        )
        hint = "call torch.distributed.init_process_group before the capture"
        yield Problem("AD241", "warning", message, hint, "ranks")


def _of_config(config: Any, settings: TorchairSettings) -> Iterator[Problem]:
    """What the config says already and the capture puts aside."""
    file = read(config, "dump_config.dump_config_path")
    enabled = read(config, "dump_config.enable_dump") == "1"
    if file is not None and settings.road == "options":
        message = f"the config's own dump_config_path={file!r} is put aside, as it and options exclude each other"
        yield Problem("AD242", "warning", message, "unset it, or capture with options={'json': True}", "target")
    if enabled and settings.road in ("json", "eager"):
        message = "the config's own enable_dump is put aside, as it and a dump JSON exclude each other"
        yield Problem("AD242", "warning", message, "leave it off", "target")
    for option in find_detours(config):
        if settings.road != "eager" or option == "debug.fx_summary.type":
            message = f"config.{option} is on, with which torchair runs every graph eagerly: none reaches the device"
            yield Problem("AD371", "silent", message, "switch it off while dumping", "target")


def _plan(request: DumpRequest, config: Any, run: RunDirectory) -> TorchairSettings:
    """The settings for the planned directory; nothing is made."""
    settings = build_settings(request, config, run.path, run.beside("torchair.json"))
    for option in settings.options:
        if not has(config, option):
            raise NotSupported(
                f"this torchair has no option config.{option}", hint="it came with a later torch_npu; see its release"
            )
    return settings


def _of_settings(request: DumpRequest, config: Any, settings: TorchairSettings, run: RunDirectory) -> Iterator[Problem]:
    # Overflow detection is a switch of atc, by which nothing is converted here.
    here = Situation.here()._replace(
        exception_on="torch_npu" in sys.modules or None, status_check=True, planned=os.fspath(run.path)
    )
    if settings.road == "json":
        assert settings.file is not None, "this road is the one with a file"
        yield from problems_of_config(settings.file, run.path, here)
        yield from SCENES.problems(request)
    elif settings.road == "options":
        names = {"dump_step": "dumpStep", "dump_mode": "dumpMode", "dump_layer": "dumpLayer", "dump_data": "dumpData"}
        asked = {f"ge.exec.{ge}": settings.options.get(f"dump_config.{name}", "") for name, ge in names.items()}
        given = {key: value for key, value in asked.items() if value != ""}
        given.update({"ge.exec.enableDump": "1", "ge.exec.dumpPath": os.fspath(run.path)})
        yield from check_ge_options(given, situation=here)
        if _engine.generates_json():
            yield from (found for found in check_working_directory(os.getcwd()) if found.severity == "error")
    elif settings.road == "aclgraph":
        yield from _ignored(request, "AD249", "the aclgraph modes ignore it: every execution saves all tensors", True)
        yield from _of_aclgraph(config, settings)
    else:
        yield from _ignored(request, "AD251", "the eager dumper ignores it: every execution saves all tensors", False)


def _of_aclgraph(config: Any, settings: TorchairSettings) -> Iterator[Problem]:
    stage = settings.options.get("dump_config.data_dump_stage", read(config, "dump_config.data_dump_stage"))
    if read(config, "experimental_config.aclgraph._super_kernel_optimize") == "1" and stage != "original":
        message = "torchair switches the dump of optimized graphs off where super_kernel_optimize is on"
        yield Problem("AD249", "silent", message, "switch it off, or use data_dump_stage='original'", "target")
    message = (
        "files are numbered by name, in all graphs together: where several graphs run (training, graph breaks, other "
        "shapes), the numbers are no steps"
    )
    yield Problem("AD249", "warning", message, "run one graph in the block, such as inference of one shape", "steps")


def _ignored(request: DumpRequest, code: str, why: str, captured: bool) -> Iterator[Problem]:
    given: dict[str, Optional[str]] = {
        "steps": None if request.steps.all else str(request.steps),
        "layers": " ".join(request.layers) if captured else None,
        "data": None if request.data == "tensor" else request.data,
        "stats": " ".join(request.stats),
        "models": " ".join(request.models),
        "level": None if request.level == "all" else request.level,
        "quant": "True" if request.quant else None,
    }
    if captured:
        given["mode"] = "input" if request.mode == "input" else None
    else:
        given["mode"] = None if request.mode == "all" else request.mode
    for name, value in given.items():
        if value:
            hint = "leave it out and select when reading, or use the mode max-autotune without eager"
            yield Problem(code, "silent", f"{name}={value!r}: {why}", hint, name)
    if captured and request.mode == "all":
        message = "the aclgraph modes save outputs and the inputs of the graph, not the inputs of each operator"
        yield Problem(code, "warning", message, "give mode='output' to say that this is meant", "mode")


def _unused(request: DumpRequest, target: Any, settings: TorchairSettings) -> Iterator[Problem]:
    """Options that are taken and change nothing."""
    given = {name for name, value in request.options.items() if value not in (None, False)}
    for name in sorted(given & OF_ROADS.keys()):
        if settings.road not in OF_ROADS[name]:
            yield _nothing(name, f"the dump is set {_ROADS[settings.road]}, where nothing looks at it")
    if target is None or is_config(target):
        for name in sorted(given.intersection(OF_MODULES)):
            yield _nothing(name, "the program compiles by itself here")
    if is_config(target) and "compiler_config" in given and request.options["compiler_config"] is not target:
        yield _nothing("compiler_config", "the config that is captured is the target")


_ROADS = {
    "options": "by the options of dump_config",
    "json": "by a dump JSON",
    "aclgraph": "by an aclgraph mode",
    "eager": "by the eager dumper",
}


def _nothing(name: str, why: str) -> Problem:
    return Problem("AD255", "silent", f"options[{name!r}] changes nothing: {why}", "leave it out", "options")


def _of_model(target: Any, settings: TorchairSettings) -> Iterator[Problem]:
    """What stands in the model itself."""
    if target is None or is_config(target):
        return
    if uses_cache(target):
        yield Problem("AD247", "silent", _CACHE, "capture without cache_compile, and clear its cache", "target")
    for place in find_scopes(target):
        if settings.road != "options":
            message = f"{place} uses scope.data_dump(), which only the options of the mode max-autotune look at"
            yield Problem("AD250", "silent", message, "use layers=, or the mode max-autotune", "target")
        elif not _engine.generates_json():
            message = f"{place} uses scope.data_dump(), which this torchair does not hand on"
            yield Problem("AD250", "silent", message, "use layers= with the names of the operators", "target")
        else:
            message = (
                f"{place} uses scope.data_dump(), and torchair lists the types of its operators where names are "
                "compared: of each type the first operator of the whole graph is dumped, the others are not"
            )
            yield Problem("AD250", "silent", message, "use layers= with the names of the operators", "target")


def _of_request(request: DumpRequest) -> Iterator[Problem]:
    if request.scene in (None, "watch") and request.steps.all:
        message = "each execution of a graph adds data to the dump"
        yield Problem("AD115", "warning", message, "run few steps inside the block, or set steps=", "steps")
    yield from size_is_unlimited(request)
