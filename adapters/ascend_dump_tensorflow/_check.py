"""Find settings that the bridge or GE refuses, that they accept and ignore, or that come too late."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ascend_dump import AscendDumpError
from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, size_is_unlimited, worst_first
from ascend_dump.native.cann.config import Situation
from ascend_dump.native.scenes import SCENES
from ascend_dump.native.tensorflow.config import check_parameters, parameters
from ascend_dump.native.tensorflow.options import OPTIONS, operators_of
from ascend_dump_tensorflow._bridge import (
    device,
    device_is_open,
    device_settings,
    holder_of,
    is_on_npu,
    kind_of,
    unknown_keys,
)
from ascend_dump_tensorflow._npu import settled_data
from ascend_dump_tensorflow._proto import conflict, effective, settings_of_entries

__all__ = ["check", "check_config"]

#: Keys of an NpuOptimizer entry that are read only if the dump is switched on in this entry or an earlier one.
_BESIDE_A_SWITCH = ("dump_step", "dump_mode", "dump_debug_mode")


def check(request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
    """Return all problems of a request, errors first."""
    if is_on_npu():
        problems = [*_too_late(target), *_of_request(request, run), *_of_target(request, target)]
    else:
        from ascend_dump_tensorflow._host_check import check as check_host

        problems = list(check_host(request, target))
    return worst_first(problems)


def check_config(config: Any) -> list[Problem]:
    """Return the problems of the dump settings in a ConfigProto. It is not changed."""
    problems = check_parameters(effective(config), all=True)
    each = settings_of_entries(config)
    if len(each) > 1:
        reported = {(problem.where, problem.message) for problem in problems}
        for number, settings in enumerate(each):
            later = set[str]().union(*each[number + 1 :])
            for problem in check_parameters(settings, all=True):
                # A key without effect in this entry may have an effect because of a switch in a later entry. A key of
                # _BESIDE_A_SWITCH has none then, unless a later entry contains the key too.
                ignored = problem.where in _BESIDE_A_SWITCH and problem.where not in later
                # AD291 (switches that exclude each other) is left out, because GE checks it for the merged entries.
                refused = problem.severity == "error" and problem.code != "AD291"
                if (refused or ignored) and (problem.where, problem.message) not in reported:
                    message = f"entry {number + 1} of NpuOptimizer: {problem.message}"
                    problems.append(problem._replace(message=message))
    return worst_first(problems)


def _too_late(target: Any) -> Iterator[Problem]:
    if kind_of(target) == "session":
        yield Problem(
            "AD290",
            "error",
            "the session exists already, and the bridge reads the settings when a session is created",
            "create the session inside the block, from the captured configuration or without a target",
            "target",
        )
    if target is None and device() is not None and device_is_open():
        yield Problem(
            "AD290",
            "error",
            "npu_device.open() was called already, and it reads the options of the process only once",
            "start the capture before npu.open(), or use ASCEND_DUMP",
            "target",
        )


def _of_request(request: DumpRequest, run: RunDirectory) -> Iterator[Problem]:
    if request.scene == "exception":
        yield Problem(
            "AD203",
            "error",
            "scene='exception' cannot be captured here: CANN writes that dump elsewhere, and decides once in a process",
            "set enable_exception_dump in the first session's configuration, and NPU_COLLECT_PATH",
            "scene",
        )
        return
    try:
        values = parameters(request.replace(path=run.path), names=operators_of(request), known_options=OPTIONS)
    except AscendDumpError as error:
        yield Problem(error.code, "error", error.message, error.hint)
        return
    yield from check_parameters(values, situation=Situation.here()._replace(planned=os.fspath(run.path)))
    for name in unknown_keys(values):
        yield Problem(
            "AD293",
            "error",
            f"this npu_bridge does not know {name}: it would be ignored",
            "use a newer npu_bridge, or leave " + ("layers= out" if name == "dump_layer" else "data='stats' out"),
            "layers" if name == "dump_layer" else "data",
        )
    yield from SCENES.problems(request)
    settled = settled_data()
    if request.scene is None and settled is not None and settled != request.data:
        yield Problem(
            "AD298",
            "silent",
            f"GE keeps dump_data of an earlier session of this process: {settled} is dumped, not {request.data}",
            f"use data={settled!r}, or a separate process",
            "data",
        )
    yield from size_is_unlimited(request)
    if request.scene is None and request.steps.all:
        yield Problem(
            "AD115",
            "warning",
            "each iteration of each graph adds data to the dump",
            "select a few with steps=",
            "steps",
        )


def _of_target(request: DumpRequest, target: Any) -> Iterator[Problem]:
    kind = kind_of(target)
    if kind == "process":
        yield from _of_switches(request, device_settings(), "the configuration of npu_device")
    config = target
    if kind in ("run_config", "npu_run_config"):
        config = target.session_config
    elif kind == "estimator":
        config = holder_of(target)._session_config
    elif kind != "config":
        return
    settings = {} if config is None else effective(config)
    # Settings of the user that remain in addition to ours.
    beside: dict[str, Any] = {
        name: settings[name] for name in ("use_off_line", "enable_exception_dump") if name in settings
    }
    if kind == "npu_run_config":
        # NPUEstimator appends an entry that always has both keys, so the user's use_off_line has no effect.
        beside.pop("use_off_line", None)
        if target.enable_exception_dump is not None:
            beside["enable_exception_dump"] = (
                target.enable_exception_dump
            )  # in the appended entry too, whose values win
    for problem in check_parameters({**beside, "enable_dump": True, "dump_path": os.getcwd()}):
        if problem.where in beside:
            yield problem
    if kind == "npu_run_config":
        if settings.get("enable_dump") is True or settings.get("enable_dump_debug") is True:
            yield Problem(
                "AD292",
                "warning",
                "session_config has dump settings too: NPUEstimator appends an entry of its own, whose values win",
                "leave dump settings to dump_config=",
                "session_config",
            )
        before = target._dump_config
        if before is not None and (before._enable_dump or before._enable_dump_debug):
            yield _replaced("dump_config=", before._dump_path)
        return
    yield from _of_switches(request, settings, "the configuration")


def _of_switches(request: DumpRequest, settings: Mapping[str, Any], whose: str) -> Iterator[Problem]:
    ours = {"enable_dump_debug": True} if request.scene == "overflow" else {"enable_dump": True}
    conflicting = conflict(settings, ours)
    if conflicting:
        yield Problem(
            "AD291",
            "error",
            f"{whose} sets {conflicting}, and enable_dump and enable_dump_debug exclude each other",
            f"take {conflicting} out, or capture in two runs",
            conflicting,
        )
    elif any(settings.get(name) is True for name in ours):
        yield _replaced(whose, settings.get("dump_path"))


def _replaced(whose: str, path: Any) -> Problem:
    return Problem(
        "AD294",
        "warning",
        f"{whose} has a dump of its own, into {path}: it is replaced for the block",
        "leave it out, or do not capture",
        "target",
    )
