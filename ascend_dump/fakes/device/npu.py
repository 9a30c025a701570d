"""One simulated device with CANN's dump service.

It takes the settings of the real service and the operators that ran, and writes what CANN writes, which is nothing
where CANN silently writes nothing. Sources beside the modules it is made of: GE davinci_model,
data_dumper and dump_op (models), adump operator_dumper (single kernels), aicpu_schedule dump_task (writer).

    npu = Npu()
    npu.arm_acl("acl.json")
    model = npu.load_model("net", ops=[NodeInfo("conv", "Conv2D", ("x:0",))])
    npu.begin_step(model, 0)
    npu.run_op("Conv2D", "conv", [x], [y], model_id=model)

Known differences from a device:

- Tensors have exactly the bytes of their shape, in the layout they are given in; none lives in L1 or UB, there are no
  workspaces, no FFTS+ threads, and addresses only tell tensors apart.
- Overflow is found by a fault set with `overflow`, or where finite floating inputs give a non-finite output.
  The payload's addresses and core numbers are 0, its file is named after task 0.
  (assumption cann.overflow_condition) (assumption cann.overflow_task)
- Kernels print nothing: `dump_kernel_data` has no effect. The scene `aic_err_detail_dump` fails as on a
  platform without it.
- Whether a configuration that asks for nothing takes back an earlier one is not known; here it stays. Steps, models
  and layers do not limit single operators. (assumption cann.nothing_asked) (assumption cann.single_operators)
- A file is one write; the memory limit of the host's queue is not simulated.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump import ConfigError
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

__all__ = ["Executed", "NodeInfo", "Npu", "OperatorFailed"]

#: Ids of 16 bits are what the files hold.
_ID_MASK = 0xFFFF

_Node = Union[NodeInfo, Node]


class Executed(NamedTuple):
    """One operator that ran. model_id and step are None for a single operator."""

    op_type: str
    name: str
    model_id: Optional[int]
    step: Optional[int]
    task: int
    stream: int


class OperatorFailed(RuntimeError):
    """An operator that `Npu.fail` named was executed."""


class _FromModel:
    """Stands for "as the model's step counter says"."""


_FROM_MODEL = _FromModel()


class Npu(Faults):
    """One simulated device.

    soc: as acl.get_soc_name returns it. clock: seconds since the epoch. disk: bytes free where a path is. environ,
    cwd: of the process that dumps. `executed` is what ran, `files` what was written, `errors` why the last
    arming was refused, `log` what only CANN's own log would tell.
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
        #: What acl remembers of the process: kept for the fakes that share this device, made by the first of them.
        self.process: Any = None
        self.executed: list[Executed] = []
        self._clock = clock or time.time
        super().__init__(DumpService(device_id, soc, self._clock, Disk(disk)))
        self._environ = environ
        self._cwd = cwd
        self._acl: Optional[Arming] = None
        #: By GE session, the latest last.
        self._ge: dict[int, Arming] = {}
        self._exception: Optional[ExceptionDump] = None
        self._looked = False
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
        """The host's disk, for what the host writes beside CANN."""
        return self._service.disk

    @property
    def dump_root(self) -> Optional[Path]:
        """The time directory of the dump that is on, which need not exist yet; None when none is."""
        arming = self._acl or next(reversed(list(self._ge.values())), None)
        return None if arming is None else Path(arming.root)

    @property
    def models(self) -> tuple[int, ...]:
        """The ids of the loaded models."""
        return tuple(self._models)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables of the process that dumps."""
        return self._env()

    def use_device(self, device_id: int) -> None:
        """Be the device of this number from here on; the dump's directories follow."""
        self.device_id = self._service.device_id = device_id

    @property
    def working_directory(self) -> str:
        return self._directory()

    @property
    def now(self) -> float:
        """What the clock shows, in seconds since the epoch."""
        return self._clock()

    @property
    def in_model(self) -> bool:
        """Whether a model is between `begin_step` and `end_step`: what runs then is part of it."""
        return bool(self._running)

    # Arming

    def arm_acl(self, config_path: Union[str, os.PathLike[str], None]) -> int:
        """Do what aclInit and aclmdlSetDump do with a dump JSON; models loaded afterwards follow it.

        Returns 0 or the acl error (100003 no such file, 100006 nested too deep, 100009 a refused configuration,
        500000). None configures nothing.

        (assumption cann.nothing_asked)
        (assumption cann.set_again)
        """
        self.errors = []
        if config_path is None:
            return int(AclError.SUCCESS)
        answer = read_acl(os.fspath(config_path), env=self._env(), cwd=self._directory(), time=self._time_directory())
        self._acl = answer.arming or self._acl
        return self._take(answer)

    def disarm_acl(self) -> None:
        """End the dump set through acl, as aclmdlFinalizeDump does; loaded models write nothing from here on.

        (assumption acl.loaded_models_stop)
        """
        self._acl = None

    def arm_ge(self, options: Mapping[str, str], *, session: int = 0) -> int:
        """Do what a GE session does with its options `ge.exec.*`: 0, or -1 when it refuses them.

        A dump set through acl outranks them. session: tells the sessions of a process apart, each has a time
        directory of its own.

        (assumption ge.time_of_session)
        """
        self.errors = []
        answer = read_options(
            options, env=self._env(), cwd=self._directory(), soc=self.soc, time=self._time_directory()
        )
        self._ge.pop(session, None)
        if answer.arming is not None:
            self._ge[session] = answer.arming
        return self._take(answer)

    def disarm_ge(self, *, session: int = 0) -> None:
        """End the session."""
        self._ge.pop(session, None)

    def _take(self, answer: Answer) -> int:
        # (assumption cann.exception_first)
        self.errors.extend(answer.errors)
        self.log.extend(answer.log)
        wanted = answer.exception
        if wanted is None:
            return int(answer.code)
        if self._exception_dump() is not None:
            self.log.append("an exception dump is on already, the new one is ignored")
        elif wanted.kind == "detail":
            self.errors.append(ArmingError("", f"{self.soc} (simulated) has no detailed exception dump"))
            return int(AclError.INTERNAL_ERROR)
        else:
            self._exception = wanted
        return int(answer.code)

    def _exception_dump(self) -> Optional[ExceptionDump]:
        """The one that is on: that of the environment as it is when this is asked first, or the first that is set."""
        if not self._looked:
            self._looked, self._exception = True, read_environment(self._env(), self._directory())
        return self._exception

    # Models

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
        """Load a model under the settings of this moment, and return its id.

        om_name: the name of its file without the suffix. ops: in execution order. status_check: it was built
        with `--status_check=1`, without which it reports no overflow. session: the GE session that loads it.

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
        """Forget a model. Raises ConfigError for an id that is not loaded."""
        self._model(model_id)
        del self._models[model_id]
        self._running.discard(model_id)

    def begin_step(self, model_id: int, step: Optional[int]) -> None:
        """Set the model's step counter; None is a model without one, where a dump with steps drops everything."""
        self._model(model_id).step = step if self._counts_steps else None
        self._running.add(model_id)

    def end_step(self, model_id: int) -> None:
        """Leave the step; the counter keeps its value until the next one begins."""
        self._model(model_id).memory.clear()
        self._running.discard(model_id)

    # Execution

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
        kernel: bool = True,
        captured: str = "",
        fails: str = "",
    ) -> None:
        """Tell the device of one executed operator: of a model, or a single one where model_id is None.

        step: by default what the model's counter says. task: by default the operator's place in its model.
        formats, original_shapes: by position ("input0", "output1"); else ND and the shape itself. attrs: `_no_task`
        counts, `_sgt_json_info` is written. producers: the operators behind the inputs, by default those
        of the model. kernel: a single operator is a kernel of its own (aclnn), not a single-operator model.
        captured: the graph (aclgraph) in whose stream a single operator was captured; without `capture_op` its first
        execution counts as the capture. fails: why it fails. Raises OperatorFailed for it, and for one named to `fail`.
        """
        model = None if model_id is None else self._model(model_id)
        if model is None:
            node = Node(name, op_type, (), "", original_names=tuple(original_names))
            number = next(self._tasks) if task is None else task
        else:
            node = model.find_node(op_type, name, original_names, no_task=bool(attrs.get("_no_task")))
            number = model.places[name] if task is None else task
        now = (None if model is None else model.step) if isinstance(step, _FromModel) else step
        now = now if self._counts_steps else None
        number, stream = number & _ID_MASK, stream & _ID_MASK
        call = KernelCall(
            node, tuple(inputs), tuple(outputs), number, stream, model_id, formats, original_shapes, attrs
        )
        self.executed.append(Executed(op_type, name, model_id, now, number, stream))
        if name in self._failing or fails:
            self._service.report_failure(call, self._exception_dump())
            raise OperatorFailed(f"{op_type} {name!r} failed on the simulated device{fails and f': {fails}'}")
        if model is None and captured:
            self._service.run_captured(call, self._acl, captured)
        elif model is None:
            self._service.run_single(call, self._acl, kernel=kernel)
        else:
            by_options = model.arming is not None and model.arming.by_options
            # Settings stay with the model, but the dump server stops when the dump is ended.
            on = (self._ge.get(model.session) if by_options else self._acl) is not None
            self._service.run_in_model(call, model, now, producers, on=on)

    def capture_op(self, op_type: str, name: str, *, captured: str, stream: int = 0) -> int:
        """Take a single operator into a graph (aclgraph), and return its task. It runs when `run_op` tells of it, with
        the same `captured` and that task; what it writes then is settled now.
        """
        task = next(self._tasks) & _ID_MASK
        self._service.capture(Node(name, op_type, (), ""), task, stream & _ID_MASK, self._acl, captured)
        return task

    def execute_graph(
        self, graph: OfflineModel, feeds: Mapping[str, _Array], *, model_id: Optional[int] = None, step: int = 0
    ) -> dict[str, _Array]:
        """Compute an offline model and tell the device of every operator; returns the outputs by name.

        Without model_id the graph is loaded for this one step. Raises NotSupported for an operator that
        `_npu_ops` lacks, ConfigError for feeds that do not fit.
        """
        from ascend_dump.fakes.device.graph import run_graph

        used = model_id
        if used is None:
            used = self.load_model(graph.model, ops=graph.node_infos(), status_check=graph.status_check)
        self.begin_step(used, step)
        try:
            return run_graph(self, graph, feeds, used)
        finally:
            self.end_step(used)
            if model_id is None:
                self.unload_model(used)

    def device_memory(self, model_id: int) -> dict[str, tuple[_Array, ...]]:
        """By operator, the outputs in this step that are watched or trampled over, as they are on the device now."""
        return {name: call.outputs for name, call in self._model(model_id).memory.items()}

    def _model(self, model_id: int) -> LoadedModel:
        if model_id not in self._models:
            raise ConfigError(f"no model {model_id} is loaded", hint=f"loaded: {list(self._models)}")
        return self._models[model_id]

    def _time_directory(self) -> str:
        # (assumption cann.time_directory)
        return time.strftime("%Y%m%d%H%M%S", time.localtime(self._clock()))

    def _env(self) -> Mapping[str, str]:
        return dict(os.environ) if self._environ is None else self._environ

    def _directory(self) -> str:
        return os.getcwd() if self._cwd is None else os.fspath(self._cwd)
