"""Find settings of a request for eager kernels that torch_npu or CANN refuses, or accepts and ignores."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from ascend_dump import AscendDumpError
from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, size_is_unlimited, worst_first
from ascend_dump.adapter.pytorch.calls import is_compiled
from ascend_dump.native.cann.config import Situation
from ascend_dump.native.cann.config.of_request import problems_of_config
from ascend_dump.native.scenes import SCENES
from ascend_dump_torch_npu._interface import DumpInterface
from ascend_dump_torch_npu._settings import INIT_CONFIG, build, look_around, selects_in_models, torchair_dump

__all__ = ["check"]

_ACL_DUMP_DATA = "ACL_DUMP_DATA"
_SWITCH = "dump.dump_op_switch"
#: Environment variables, and the values with which torch_npu uses the saturation mode.
_SATURATION = (("INF_NAN_MODE_FORCE_DISABLE", "1"), ("INF_NAN_MODE_ENABLE", "0"))
_INF_NAN = "in INF_NAN mode each kernel with Inf or NaN in an output is written, even if it only passes them on"
_SATURATES = "in saturation mode each kernel that overflowed is written, with the largest number instead of Inf"
_MODES = {True: _INF_NAN, False: _SATURATES, None: f"{_INF_NAN}, and {_SATURATES}"}


def check(request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
    """Return all problems of a request, errors first."""
    situation = look_around()
    problems = [
        *_of_interface(situation),
        *_of_scene(request, situation),
        *_of_target(request, target),
        *_of_eager(request),
    ]
    if request.scene != "watch":
        problems += [*SCENES.problems(request), *_of_configuration(request, run, situation)]
    return worst_first(dict.fromkeys(problems))


def _of_interface(situation: Situation) -> Iterator[Problem]:
    """Yield a problem if something else uses acl's dump interface, of which a process has only one."""
    level = re.match(r"\s*[+-]?(\d+)", situation.env.get(_ACL_DUMP_DATA, ""))
    if level and int(level[1]):
        yield Problem(
            "AD260",
            "error",
            f"{_ACL_DUMP_DATA}={situation.env[_ACL_DUMP_DATA]} is set: torch_npu has begun a dump of its own, with the "
            "acl.json of the working directory",
            f"unset {_ACL_DUMP_DATA}, which is deprecated",
            _ACL_DUMP_DATA,
        )
    reason = torchair_dump()
    if reason is not None:
        yield Problem(
            "AD261",
            "error",
            f"torchair uses acl's dump interface: {reason}; a second aclmdlInitDump would be refused",
            "capture with framework='torchair', or leave the dump options out of its CompilerConfig",
            "torchair",
        )


def _of_scene(request: DumpRequest, situation: Situation) -> Iterator[Problem]:
    if request.scene == "watch":
        yield Problem(
            "AD203",
            "error",
            "scene='watch' needs a graph: CANN watches operators of models, and eager kernels belong to no model",
            "compile the model and capture it with framework='torchair'",
            "scene",
        )
    if request.scene == "overflow":
        yield from _of_overflow(situation)
    if request.scene != "exception":
        return
    if situation.exception_on:
        yield Problem(
            "AD262",
            "silent",
            "torch_npu switched the exception dump lite_exception on when it initialised the NPU, and CANN keeps the "
            "first exception dump: this scene changes nothing",
            "start the capture before anything uses the NPU; operators that fail now are dumped to "
            "$ASCEND_WORK_PATH/extra-info, else to ./extra-info",
            "scene",
        )
    else:
        yield Problem(
            "AD263",
            "warning",
            f"the scene is set through {INIT_CONFIG} when the NPU is initialised inside the block, and stays on until "
            "the process ends",
            "torch_npu 2.13 reads that variable; with a version that does not, lite_exception stays on",
            "scene",
        )


def _of_overflow(situation: Situation) -> Iterator[Problem]:
    interface = DumpInterface()
    mode = interface.supports_inf_nan
    if interface.initialised and not mode:
        yield Problem(
            "AD257",
            "warning",
            "the NPU is initialised, and CANN reads the switch of overflow detection at the first operator only: if "
            "one has run, nothing is recorded",
            "start the capture before anything uses the NPU, or run `ascend-dump run --scene overflow -- ...`",
            "scene",
        )
    if mode is None and any(situation.env.get(name) == value for name, value in _SATURATION):
        mode = False
    yield Problem(
        "AD258",
        "warning",
        "from now on every kernel of this process waits for its stream, also outside of selected steps and after the "
        f"block, and {_MODES[mode]}",
        "use it in a short run of its own",
        "scene",
    )


def _of_target(request: DumpRequest, target: Any) -> Iterator[Problem]:
    if target is None or request.scene == "exception":
        return
    if is_compiled(target):
        yield Problem(
            "AD264",
            "warning",
            "the model is compiled: operators inside its graphs are not dumped as eager kernels, and graphs that are "
            "loaded already are not dumped at all",
            "capture the model before torch.compile, or with framework='torchair'",
            "target",
        )
    parameters = list(target.parameters())
    if parameters and not any(getattr(parameter, "is_npu", False) for parameter in parameters):
        yield Problem(
            "AD266",
            "silent",
            f"no parameter of the {type(target).__name__} is on an NPU, and only operators that run there are dumped",
            "move it with .npu() before the capture, or capture the host with framework='torch'",
            "target",
        )


def _of_eager(request: DumpRequest) -> Iterator[Problem]:
    # (assumption cann.kernel_level)
    if request.scene is None and selects_in_models(request) and "op_switch" not in request.options:
        yield Problem(
            "AD265",
            "silent",
            "layers=, models= and blacklists select among operators of models; every eager operator is dumped",
            "select when reading (dump.select(op=...)), or capture a compiled model with framework='torchair'",
            "layers",
        )
    if request.scene is None and request.level == "op":
        yield Problem(
            "AD268",
            "silent",
            "level='op' leaves out the API calls of aclnn and their kernels, so no eager operator is dumped",
            "leave level= out, or use 'kernel'",
            "level",
        )
    yield from size_is_unlimited(request)
    if not DumpInterface().checked:
        yield Problem(
            "AD267",
            "warning",
            "this torch_npu has only the dump interface that drops acl's return codes: a refusal would not be seen",
            "look at the log of CANN in ~/ascend/log if nothing is written",
            "torch_npu",
        )


def _of_configuration(request: DumpRequest, run: RunDirectory, situation: Situation) -> list[Problem]:
    planned = run.path / "0"
    try:
        problems = problems_of_config(build(request, planned), planned, situation)
    except AscendDumpError as error:
        return [Problem(error.code, "error", error.message, error.hint)]
    # The warning that dump_op_switch dumps models too is dropped if the process has no models.
    models = "torchair" in sys.modules
    return [problem for problem in problems if models or (problem.where, problem.severity) != (_SWITCH, "warning")]
