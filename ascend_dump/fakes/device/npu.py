"""The simulated device with CANN's dump service.

The fakes configure its dump service as programs configure the real one, and report the operators that they executed.
The device writes the files that CANN would write. Where CANN silently writes nothing, the device writes nothing either.
Sources, in addition to those of the other modules: GE davinci_model, data_dumper and dump_op (models), adump
operator_dumper (single kernels), aicpu_schedule dump_task (writer).

    npu = Npu()
    npu.arm_acl("acl.json")
    model = npu.load_model("net", ops=[NodeInfo("conv", "Conv2D", ("x:0",))])
    npu.begin_step(model, 0)
    npu.run_op("Conv2D", "conv", [x], [y], model_id=model)

Differences from a device:

- Tensors have exactly the bytes of their shape, in the caller's layout. No tensor is in L1 or UB, and there are no
  workspaces and no FFTS+ threads. Addresses only serve to distinguish tensors.
- An operator overflows if `overflow` is set for it, or if all its inputs are finite and an output is not. In the
  overflow record, addresses and numbers of cores are 0, and the file name has task 0.
  (assumption cann.overflow_condition) (assumption cann.overflow_task)
- Eager operators are reported by `run_api` (see `_api_calls`), other operators by `run_op`. A captured API call neither
  reports overflow nor writes an exception dump. A dump and overflow detection exclude each other. The detection writes
  tensors, even after a dump of statistics in the same process.
- Kernels print nothing, so `dump_kernel_data` has no effect. The scene `aic_err_detail_dump` fails, as on a chip that
  lacks it.
- After an empty configuration, an earlier one stays in force; what a device does is unknown. Steps, models and layers
  do not limit dumps of single operators. (assumption cann.nothing_asked) (assumption cann.single_operators)
- A file is written at once. The memory limit of the host's queue is not simulated.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump import ConfigError
from ascend_dump.fakes.device._api_calls import ApiCall, ApiReports, CapturedReports, Kernel
from ascend_dump.fakes.device._arming import (
    Answer,
    Arming,
    ArmingError,
    ExceptionDump,
    read_acl,
    read_environment,
    read_options,
)
from ascend_dump.fakes.device._faults import Faults
from ascend_dump.fakes.device._files import KernelCall
from ascend_dump.fakes.device._model import LoadedModel
from ascend_dump.fakes.device._service import DumpService, Producers
from ascend_dump.fakes.device.disk import Disk
from ascend_dump.fakes.device.select import NodeInfo
from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.graph import Node

if TYPE_CHECKING:
    from ascend_dump.fakes.device.offline_model import OfflineModel

    _Array = np.ndarray[Any, Any]

__all__ = ["ApiCall", "CapturedReports", "Executed", "Kernel", "NodeInfo", "Npu", "OperatorFailed"]

#: Task and stream ids in files have 16 bits.
_ID_MASK = 0xFFFF

_Node = Union[NodeInfo, Node]


class Executed(NamedTuple):
    """An operator that ran, or a kernel of an API call.

    op_type         its type; for a kernel the API
    model_id, step  None outside of models
    """

    op_type: str
    name: str
    model_id: Optional[int]
    step: Optional[int]
    task: int
    stream: int


class OperatorFailed(RuntimeError):
    """Raised when an operator fails: `Npu.fail` is set for it, or the caller reported a failure."""


class _FromModel:
    """The type of the default of `step`, which stands for the model's step counter."""


_FROM_MODEL = _FromModel()


class Npu(Faults):
    """The simulated device.

    device_id  its number
    soc        the name of its chip, as acl.get_soc_name returns it
    clock      returns the time in seconds since the epoch
    disk       returns the number of free bytes at a path
    environ    environment variables of the dumping process; by default those of this process
    cwd        working directory of the dumping process; by default that of this process
    executed   the operators that ran
    files      the written files
    errors     errors of the last configuration
    log        lines for CANN's own log
    """

    def __init__(
        self,
        *,
        device_id: int = 0,
        soc: str = "Ascend910B",
        clock: Optional[Callable[[], float]] = None,
        disk: Optional[Callable[[Path], int]] = None,
        environ: Optional[Mapping[str, str]] = None,
        cwd: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        self.device_id = device_id
        self.soc = soc
        self.errors: list[ArmingError] = []
        #: acl's state in the process. The first fake that needs it creates it, and the others share it.
        self.process: Any = None
        self.executed: list[Executed] = []
        #: True in saturation mode: results out of range are the largest finite number. The fake torch_npu sets it.
        self.saturates = False
        self._clock = clock or time.time
        super().__init__(DumpService(device_id, soc, self._clock, Disk(disk)))
        self._reports = ApiReports(self._service)
        self._environ = environ
        self._cwd = cwd
        self._acl: Optional[Arming] = None
        #: The settings of each GE session by its number, the latest last.
        self._ge: dict[int, Arming] = {}
        self._exception: Optional[ExceptionDump] = None
        self._environment_read = False
        self._models: dict[int, LoadedModel] = {}
        self._running: set[int] = set()
        self._ids = itertools.count(1)
        self._tasks = itertools.count()

    @property
    def files(self) -> list[Path]:
        return self._service.disk.files

    @property
    def log(self) -> list[str]:
        return self._service.disk.log

    @property
    def disk(self) -> Disk:
        """The host's disk, for files that a framework writes in addition to CANN's."""
        return self._service.disk

    @property
    def dump_root(self) -> Optional[Path]:
        """The time directory of the current dump, even if it does not exist yet; None if no dump is on."""
        arming = self._acl or next(reversed(list(self._ge.values())), None)
        return None if arming is None else Path(arming.root)

    @property
    def models(self) -> tuple[int, ...]:
        """The ids of the loaded models."""
        return tuple(self._models)

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables of the dumping process."""
        return dict(os.environ) if self._environ is None else self._environ

    def use_device(self, device_id: int) -> None:
        """Change the number of the device. Later files are in the directory with the new number."""
        self.device_id = self._service.device_id = device_id

    @property
    def working_directory(self) -> str:
        return os.getcwd() if self._cwd is None else os.fspath(self._cwd)

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    @property
    def in_model(self) -> bool:
        """True while a model is between `begin_step` and `end_step`. Operators that run then are parts of it."""
        return bool(self._running)

    # Configuring a dump ("arming").

    def arm_acl(self, config_path: Union[str, os.PathLike[str], None]) -> int:
        """Configure a dump by a dump JSON, as aclInit and aclmdlSetDump do. It applies to models loaded afterwards.

        Returns 0 or acl's code: 100003 for a missing file, 100006 for too deep nesting, 100009 for a configuration that
        is refused, 500000 for an internal error. None as path changes nothing.

        (assumption cann.nothing_asked)
        (assumption cann.set_again)
        """
        self.errors = []
        if config_path is None:
            return int(AclError.SUCCESS)
        answer = read_acl(
            os.fspath(config_path), env=self.environ, cwd=self.working_directory, time=self._time_directory()
        )
        self._acl = answer.arming or self._acl
        return self._take(answer)

    def disarm_acl(self) -> None:
        """End the dump of `arm_acl`, as aclmdlFinalizeDump does. Models that are loaded write nothing afterwards.

        (assumption acl.loaded_models_stop)
        """
        self._acl = None

    def arm_ge(self, options: Mapping[str, str], *, session: int = 0) -> int:
        """Configure a dump by the options `ge.exec.*` of a GE session. Returns 0, or -1 if an option is refused.

        A dump of `arm_acl` takes precedence. session: number of the session in the process; each session has a time
        directory of its own.

        (assumption ge.time_of_session)
        """
        self.errors = []
        answer = read_options(
            options, env=self.environ, cwd=self.working_directory, soc=self.soc, time=self._time_directory()
        )
        self._ge.pop(session, None)
        if answer.arming is not None:
            self._ge[session] = answer.arming
        return self._take(answer)

    def disarm_ge(self, *, session: int = 0) -> None:
        """End the dump of a GE session."""
        self._ge.pop(session, None)

    def _take(self, answer: Answer) -> int:
        """Store errors, log and exception dump of a configuration, and return its code."""
        # (assumption cann.exception_first)
        self.errors.extend(answer.errors)
        self.log.extend(answer.log)
        exception = answer.exception
        if exception is None:
            return int(answer.code)
        if self._exception_dump() is not None:
            self.log.append("an exception dump is on already, the new one is ignored")
        elif exception.kind == "detail":
            self.errors.append(ArmingError("", f"{self.soc} (simulated) has no detailed exception dump"))
            return int(AclError.INTERNAL_ERROR)
        else:
            self._exception = exception
        return int(answer.code)

    def _exception_dump(self) -> Optional[ExceptionDump]:
        """Return the exception dump that is set: by the environment, which is read once, or else by a configuration."""
        if not self._environment_read:
            self._environment_read = True
            self._exception = read_environment(self.environ, self.working_directory)
        return self._exception

    # Models.

    def load_model(
        self,
        name: str,
        *,
        om_name: Optional[str] = None,
        model_id: Optional[int] = None,
        ops: Sequence[_Node] = (),
        status_check: bool = True,
        static_shape: bool = True,
        session: int = 0,
    ) -> int:
        """Load a model with the current dump settings, and return its id.

        om_name: the name of its file without suffix. model_id: the id to use; by default a new one. ops: its operators
        in execution order. status_check: True if it was built with `--status_check=1`, without which it reports no
        overflow. static_shape: False if its shapes are dynamic. session: the GE session that loads it.

        (assumption acl.set_before_load)
        (assumption ge.acl_outranks_options)
        """
        arming = self._acl if self._acl is not None and self._acl.models else self._ge.get(session)
        used = next(self._ids) if model_id is None else model_id
        nodes = [op.node() if isinstance(op, NodeInfo) else op for op in ops]
        model = LoadedModel(
            used,
            name,
            om_name or "",
            nodes,
            arming,
            status_check=status_check,
            static_shape=static_shape,
            session=session,
        )
        self.log.extend(model.log)
        self._models[used] = model
        return used

    def unload_model(self, model_id: int) -> None:
        """Remove a model. Raises ConfigError for an id that is not loaded."""
        self._model(model_id)
        del self._models[model_id]
        self._running.discard(model_id)

    def begin_step(self, model_id: int, step: Optional[int]) -> None:
        """Begin a step of a model: set its step counter.

        step: None if the model has no step counter; then a dump with steps writes nothing for it.
        """
        self._model(model_id).step = step if self._counts_steps else None
        self._running.add(model_id)

    def end_step(self, model_id: int) -> None:
        """End the step of a model. The step counter keeps its value until the next step."""
        self._model(model_id).memory.clear()
        self._running.discard(model_id)

    # Execution.

    def run_op(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[_Array],
        outputs: Sequence[_Array],
        *,
        model_id: Optional[int] = None,
        step: Union[int, _FromModel, None] = _FROM_MODEL,
        stream: int = 0,
        task: Optional[int] = None,
        formats: Mapping[str, str] = {},
        original_shapes: Mapping[str, Sequence[int]] = {},
        original_names: Sequence[str] = (),
        attrs: Mapping[str, Any] = {},
        producers: Producers = None,
        fails: str = "",
    ) -> None:
        """Report an operator that ran. model_id: the model of which it is a part; None for a single operator.

        step: by default the model's step counter. task: by default the operator's index in its model.
        formats, original_shapes: by position ("input0", "output1"); by default ND and the shape of the array.
        attrs: attributes; `_no_task` is read, `_sgt_json_info` is written to the header. producers: the operators that
        produced the inputs; by default those in the model. fails: if not "", the operator fails for this reason. Raises
        OperatorFailed if it fails.
        """
        model = None if model_id is None else self._model(model_id)
        if model is None:
            node = Node(name, op_type, (), "", original_names=tuple(original_names))
            number = next(self._tasks) if task is None else task
        else:
            node = model.find_node(op_type, name, original_names, no_task=bool(attrs.get("_no_task")))
            number = model.tasks[name] if task is None else task
        current_step = (None if model is None else model.step) if isinstance(step, _FromModel) else step
        current_step = current_step if self._counts_steps else None
        number, stream = number & _ID_MASK, stream & _ID_MASK
        call = KernelCall(
            node, tuple(inputs), tuple(outputs), number, stream, model_id, formats, original_shapes, attrs
        )
        self.executed.append(Executed(op_type, name, model_id, current_step, number, stream))
        if name in self._failing or fails:
            self._service.report_failure(call, self._exception_dump())
            raise OperatorFailed(f"{op_type} {name!r} failed on the simulated device{fails and f': {fails}'}")
        if model is None:
            self._service.run_single(call, self._acl)
        else:
            by_options = model.arming is not None and model.arming.by_options
            # A model keeps its settings, but nothing is written after the dump was ended.
            on = (self._ge.get(model.session) if by_options else self._acl) is not None
            self._service.run_in_model(call, model, current_step, producers, on=on)

    def run_api(self, call: ApiCall, *, stream: int = 0, fails: str = "") -> None:
        """Report a call of an API of aclnn, as an eager operator of PyTorch makes it.

        fails: if not "", its last kernel fails for this reason. Raises OperatorFailed if a kernel fails.
        """
        stream &= _ID_MASK
        last = call.kernels[-1].name if call.kernels else ""
        kernels = self._reports.run(
            call,
            self._acl,
            self._exception_dump(),
            stream=stream,
            saturates=self.saturates,
            fails=lambda name: bool({name, call.api} & self._failing) or bool(fails and name == last),
        )
        for name, task, failed in kernels:
            self.executed.append(Executed(call.api, name, None, None, task, stream))
            if failed:
                reason = fails and f": {fails}"
                raise OperatorFailed(f"{call.api} ({name}) failed on the simulated device{reason}")

    def capture_api(self, call: ApiCall, *, stream: int = 0) -> CapturedReports:
        """Report that a graph (aclgraph) captured an API call. The current settings apply to its replays."""
        return self._reports.capture(call, self._acl, stream=stream & _ID_MASK)

    def replay_api(self, captured: CapturedReports, call: ApiCall, *, stream: int = 0) -> None:
        """Report a replay of a captured API call, with the tensors of this replay."""
        for kernel, task in zip(call.kernels, captured.tasks):
            self.executed.append(Executed(call.api, kernel.name, None, None, task, stream & _ID_MASK))
            if {kernel.name, call.api} & self._failing:
                raise OperatorFailed(f"{call.api} ({kernel.name}) failed on the simulated device")
        self._reports.replay(captured, call, self._acl)

    def execute_graph(
        self, graph: OfflineModel, feeds: Mapping[str, _Array], *, model_id: Optional[int] = None, step: int = 0
    ) -> dict[str, _Array]:
        """Compute one step of an offline model, report its operators, and return its outputs by `name:output`.

        feeds: the inputs by name. model_id: None to load the model for this step only. Raises NotSupported for an
        operator that `npu_ops` lacks, and ConfigError for wrong feeds.
        """
        from ascend_dump.fakes.device.graph import run_graph

        used = model_id
        if used is None:
            used = self.load_model(graph.model, ops=graph.node_infos(), status_check=graph.status_check)
        self.begin_step(used, step)
        try:
            run_op = functools.partial(self.run_op, model_id=used)
            return run_graph(graph, feeds, run_op, functools.partial(self.device_memory, used))
        finally:
            self.end_step(used)
            if model_id is None:
                self.unload_model(used)

    def device_memory(self, model_id: int) -> dict[str, tuple[_Array, ...]]:
        """Return the current outputs of the watched and trampled operators in this step, by the operator's name."""
        return {name: call.outputs for name, call in self._model(model_id).memory.items()}

    def _model(self, model_id: int) -> LoadedModel:
        if model_id not in self._models:
            raise ConfigError(f"no model {model_id} is loaded", hint=f"loaded: {list(self._models)}")
        return self._models[model_id]

    def _time_directory(self) -> str:
        # (assumption cann.time_directory)
        return time.strftime("%Y%m%d%H%M%S", time.localtime(self._clock()))
