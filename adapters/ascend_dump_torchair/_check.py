"""Find settings that torchair refuses, that it accepts and ignores, or that come too late."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ascend_dump import AscendDumpError
from ascend_dump.adapter import (
    DumpRequest,
    Problem,
    RunDirectory,
    current_rank,
    size_is_unlimited,
    steps_are_no_directories,
    worst_first,
)
from ascend_dump.native.cann.config import Situation, check_ge_options
from ascend_dump.native.cann.config.of_request import problems_of_config
from ascend_dump.native.scenes import SCENES
from ascend_dump.native.torchair.config.check import check_working_directory
from ascend_dump.native.torchair.config.roads import ROADS, RoadSubject
from ascend_dump_torchair import _engine
from ascend_dump_torchair._config import config_of, find_detours, is_config, is_foreign, read_options, torchair
from ascend_dump_torchair._settings import SettingsPlan, TorchairSettings
from ascend_dump_torchair._target import find_compiled, find_scopes, is_compilable, uses_cache

__all__ = ["check"]

_CACHE = "a model of cache_compile keeps the dump options with which it was first compiled, including the path"


def check(request: DumpRequest, target: Any, run: RunDirectory, plan: SettingsPlan) -> list[Problem]:
    """Return all problems of a request, errors first. plan: the plan of this request and run."""
    config = request.options.get("compiler_config")
    problems = list(_of_torchair(target, config))
    if problems:
        return problems
    problems += _of_target(target, config)
    options = read_options(config_of(target, config))
    detours = find_detours(options)
    road = ""
    try:
        settings = plan.settings(options)
        road = settings.road
        problems += _of_engine(road, reset=bool(request.options.get("reset")))
        problems += _of_config(options, detours, road)
        problems += _of_model(target, road)
        problems += _of_settings(settings, options, run)
        problems += SCENES.problems(request) if road == "json" else ()
    except AscendDumpError as error:
        problems.append(Problem(error.code, "error", error.message, error.hint))
    problems += size_is_unlimited(request)
    if road == "aclgraph":
        problems += steps_are_no_directories(request, "the files of an aclgraph are all in one directory")
    problems += ROADS.problems(RoadSubject(request, road, compiles=target is not None and not is_config(target)))
    return worst_first(problems)


def _of_torchair(target: Any, config: Any) -> Iterator[Problem]:
    """Yield the problem if torchair cannot be imported, or the config is not an instance of its class."""
    try:
        loaded = torchair()
        loaded.CompilerConfig  # noqa: B018  (accessing a proxy imports torchair, or raises)
    except (ImportError, AttributeError) as error:
        first = (str(error).splitlines() or [""])[0]
        yield Problem("AD248", "error", f"torchair cannot be used: {first}", "import torchair before the capture")
        return
    location = "target" if is_config(target) else "options"
    config = target if is_config(target) else config
    if config is None:
        return
    if not is_config(config):
        message = f"compiler_config is a {type(config).__name__}, not a CompilerConfig"
        yield Problem("AD248", "error", message, "give a torchair.CompilerConfig()", location)
    elif is_foreign(config):
        message = (
            f"this CompilerConfig belongs to {type(config).__module__}, a second copy of torchair in this process, and "
            "the backend ignores it"
        )
        yield Problem("AD248", "error", message, "`import torchair` and use torchair.CompilerConfig", location)


def _of_target(target: Any, config: Any) -> Iterator[Problem]:
    """Yield the problems of the target. config: the CompilerConfig in the options of the request, or None."""
    if is_config(target) and config is not None and config is not target:
        message = "options['compiler_config'] changes nothing: the config that is captured is the target"
        yield Problem("AD255", "silent", message, "leave it out", "options")
    if target is None or is_config(target):
        return
    compiled = find_compiled(target)
    if compiled is not None:
        message = f"{compiled} is compiled already, and its backend keeps the options with which it was built"
        hint = "capture the eager module, or the CompilerConfig of its backend before the first call"
        yield Problem("AD253", "error", message, hint, "target")
    elif not is_compilable(target):
        message = f"a {type(target).__name__} cannot be compiled in place"
        hint = "capture its CompilerConfig, and give the backend to torch.compile yourself"
        yield Problem("AD253", "error", message, hint, "target")


def _of_engine(road: str, *, reset: bool) -> Iterator[Problem]:
    """Yield the problems of GE, which reads options only once. reset: True if the capture closes GE first."""
    if road in ("options", "json") and _engine.recorded() is not None:
        if not reset:
            message = "GE is initialised already, by a graph that was built before: its options count for the process"
            hint = (
                "begin the capture before the first call of any compiled model, or close GE and compile every graph "
                "anew with options={'reset': True}"
            )
            yield Problem("AD240", "error", message, hint, "target")
        elif not _engine.can_close():
            message = "this torchair cannot close GE"
            hint = "begin the capture before the first call of any compiled model"
            yield Problem("AD240", "error", message, hint, "options")
    anew = _engine.was_closed() or _engine.recorded() is not None
    if road in ("options", "json") and anew and "torch_npu" in sys.modules:
        message = (
            "GE has been initialised in this process before. With torch_npu, closing it ends torchair's session but "
            "not GE itself; it was never tested whether a device then uses the new options"
        )
        yield Problem("AD240", "warning", message, "if the dump stays empty, use a process for each capture", "target")
    distributed = sys.modules.get("torch.distributed")
    grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if current_rank().world > 1 and not grouped:
        message = (
            "this is one of several ranks, but the process group is not initialised: torchair determines the rank's "
            "directory when the first graph is built, and uses worldsize1_global_rank0 without a process group"
        )
        hint = "call torch.distributed.init_process_group before the capture"
        yield Problem("AD241", "warning", message, hint, "ranks")


def _of_config(options: Mapping[str, Any], detours: list[str], road: str) -> Iterator[Problem]:
    """Yield the problems of options that the capture overrides, or that make graphs run eagerly."""
    file = options.get("dump_config.dump_config_path")
    enabled = options.get("dump_config.enable_dump") == "1"
    if file is not None and road == "options":
        message = f"the config's own dump_config_path={file!r} is put aside: it and dump options exclude each other"
        yield Problem("AD242", "warning", message, "unset it, or capture with options={'json': True}", "target")
    if enabled and road in ("json", "eager"):
        message = "the config's own enable_dump is put aside: it and a dump JSON exclude each other"
        yield Problem("AD242", "warning", message, "leave it off", "target")
    for option in detours:
        if road != "eager" or option == "debug.fx_summary.type":
            message = f"config.{option} is on, so torchair runs every graph eagerly, and none reaches the device"
            yield Problem("AD371", "silent", message, "switch it off while dumping", "target")


def _of_settings(settings: TorchairSettings, options: Mapping[str, Any], run: RunDirectory) -> Iterator[Problem]:
    """Yield the problems that CANN, or an aclgraph mode of torchair, has with the settings.

    options: the options of the config
    """
    # No problem with status_check: that is an option of atc for offline models, and this process converts no model.
    situation = Situation.here()._replace(
        exception_on="torch_npu" in sys.modules or None, status_check=True, planned=os.fspath(run.path)
    )
    if settings.file is not None:
        yield from problems_of_config(settings.file, run.path, situation)
    elif settings.road == "options":
        names = {"dump_step": "dumpStep", "dump_mode": "dumpMode", "dump_layer": "dumpLayer", "dump_data": "dumpData"}
        requested = {f"ge.exec.{ge}": settings.options.get(f"dump_config.{name}", "") for name, ge in names.items()}
        ge_options = {key: value for key, value in requested.items() if value != ""}
        ge_options.update({"ge.exec.enableDump": "1", "ge.exec.dumpPath": os.fspath(run.path)})
        yield from check_ge_options(ge_options, situation=situation)
        if _engine.generates_json():
            yield from (problem for problem in check_working_directory(os.getcwd()) if problem.severity == "error")
    elif settings.road == "aclgraph":
        stage = {**options, **settings.options}.get("dump_config.data_dump_stage")
        if options.get("experimental_config.aclgraph._super_kernel_optimize") == "1" and stage != "original":
            message = "torchair switches the dump of optimized graphs off if super_kernel_optimize is on"
            yield Problem("AD249", "silent", message, "switch it off, or use data_dump_stage='original'", "target")


def _of_model(target: Any, road: str) -> Iterator[Problem]:
    """Yield the features in the code of the model that prevent its dump."""
    if target is None or is_config(target):
        return
    if uses_cache(target):
        yield Problem("AD247", "silent", _CACHE, "capture without cache_compile, and clear its cache", "target")
    for method in find_scopes(target):
        if road != "options":
            message = f"{method} uses scope.data_dump(), which only the options of the mode max-autotune support"
            yield Problem("AD250", "silent", message, "use layers=, or the mode max-autotune", "target")
        elif not _engine.generates_json():
            message = f"{method} uses scope.data_dump(), which this torchair does not pass on"
            yield Problem("AD250", "silent", message, "use layers= with the names of the operators", "target")
        else:
            message = (
                f"{method} uses scope.data_dump(), and torchair lists the types of its operators where GE expects "
                "names: of each type only the first operator of the whole graph is dumped"
            )
            yield Problem("AD250", "silent", message, "use layers= with the names of the operators", "target")
