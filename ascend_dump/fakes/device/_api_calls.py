"""Dump files of eager operators: API calls (L2) and the kernels (L0) that they launch, as opbase reports them to adump.

A *report* is one side, inputs or outputs, of a call or of a kernel. A call reports its inputs, then the inputs and the
outputs of each kernel, and last its outputs. Each report is a file of its own. Only the file of an overflow contains
two reports.

Sources in hicann/opbase aa3cd74: op_executor.cpp:987 (calls), common/inc/kernel_launcher.h:168-195 (kernels, overflow),
op_dfx.cpp:148, 817, 1132, 1211 (counter, names, overflow), common/utils/bridge_dfx.cpp:21-44 and op_cache.cpp:1470
(switches), individual_op/executor/indv_dump.cpp:130-175, 343 (generated APIs). In hicann/runtime 681ef761, adump:
dump_manager.cpp:519-595 (which reports become files), dump_stream_info.cpp:200, 385 (files of captured calls).

Differences from these sources:

- All replays of a captured graph append to the files of the first replay. In the real library, the record of a file is
  freed after the first replay (dump_stream_info.cpp:513-529), so the behaviour at the second one is undefined.
  (assumption cann.captured_name)
- On a device, the kernels that an API launches depend on types, shapes and the device. Here an API launches one main
  kernel, and kernels that put operands in order and write results to views. AI Core has kernels for all types but
  float64 and complex128.
- nn.LSTM and nn.GRU call the APIs of their parts, instead of aclnnLSTM and aclnnGRU. aclnnInplaceMish,
  aclnnInplaceLog10 and aclnnSearchSorteds advance the counter of calls by one, instead of two.
- An executor is reused if the API, and the shapes and types of its tensors, are the same. Scalars are not compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import numpy as np

from ascend_dump.fakes.device._files import KernelCall, operator_file, tensors_of
from ascend_dump.native.cann.graph import Node
from ascend_dump.native.cann.names import DumpName, build_name

if TYPE_CHECKING:
    from ascend_dump.fakes.device._arming import Arming, ExceptionDump
    from ascend_dump.fakes.device._service import DumpService

    _Array = np.ndarray[Any, Any]

__all__ = ["ApiCall", "ApiReports", "CapturedReports", "Kernel"]

_ID_MASK = 0xFFFF
#: The types of tensors that are checked for Inf and NaN.
_CHECKED_TYPES = ("float32", "float16", "bfloat16")


class Kernel(NamedTuple):
    """A kernel of an API call, with its tensors. is_reported: True if it runs on AI Core; others are not dumped."""

    name: str
    inputs: Sequence[_Array]
    outputs: Sequence[_Array]
    is_reported: bool = True


class ApiCall(NamedTuple):
    """A call of an API such as aclnnAdd.

    inputs, outputs  whole storages of its tensors (see `torch_npu._views.DeviceTensor`)
    generated        True if CANN's build generates the API from the description of its kernel; then only the kernel is
                     reported
    overflowed       True if, in saturation mode, the device set its overflow status
    """

    api: str
    inputs: Sequence[_Array]
    outputs: Sequence[_Array]
    kernels: Sequence[Kernel]
    generated: bool = False
    overflowed: bool = False

    @property
    def executor(self) -> Hashable:
        """The key of the call's executor, the object that opbase reuses for equal calls."""
        return self.api, *((array.shape, array.dtype) for array in (*self.inputs, *self.outputs))

    def reports(self) -> Iterator[_Report]:
        """Yield the reports of the call in the order in which their files are written."""
        if not self.generated:
            yield _Report(None, "input")
        for position, kernel in enumerate(self.kernels):
            yield _Report(position, "input", kernel.is_reported)
            yield _Report(position, "output", kernel.is_reported)
        if not self.generated:
            yield _Report(None, "output")


class _Report(NamedTuple):
    """One side ("input" or "output") of a kernel, or of the call itself. A file contains one report, or two (overflow).

    kernel: index of the kernel in the call; None for the call itself. is_written: False if no file is written.
    """

    kernel: Optional[int]
    io: str
    is_written: bool = True

    def is_launched(self) -> bool:
        """Return True if a kernel is launched between the previous report and this one."""
        return self.kernel is not None and self.io == "output"


class _CapturedFile(NamedTuple):
    report: _Report
    folder: str
    name: DumpName
    mode: str


class CapturedReports(NamedTuple):
    """An API call that a graph captured. Replays append to `files`, whose names the capture determined.

    tasks: the task ids of its kernels.
    """

    files: Sequence[_CapturedFile]
    tasks: Sequence[int]


class ApiReports:
    """The reports of all API calls of one process.

    The switches of overflow detection and of exception dumps are read at the first call. Later changes have no effect.
    (assumption torch_npu.overflow_switch)
    (assumption torch_npu.exception_switch)
    """

    def __init__(self, service: DumpService) -> None:
        self._service = service
        self._numbers = itertools.count()
        #: The keys of executors that can be reused.
        self._executors: set[Hashable] = set()
        self._dump_numbers = itertools.count()
        #: The id of the last task that was launched.
        self._task = 0
        self._stamp = 0
        self._checks_overflow: Optional[bool] = None
        self._registers_exceptions = False

    def run(
        self,
        call: ApiCall,
        arming: Optional[Arming],
        exception: Optional[ExceptionDump],
        *,
        stream: int,
        saturates: bool,
        fails: Callable[[str], bool],
    ) -> Iterator[tuple[str, int, bool]]:
        """Run a call, write its files, and yield for each kernel its name, its task, and True if it fails.

        After a kernel failed, no other one runs. saturates: the process is in saturation mode. fails: returns True for
        the name of a kernel that fails.

        (assumption torch_npu.split_files)
        (assumption torch_npu.call_counter)
        """
        self._read_switches(arming, exception)
        dumps = arming is not None and arming.kernels
        number = self._begin(call, dumps)
        for report in call.reports():
            if report.is_launched():
                kernel = call.kernels[report.kernel or 0]
                task = self._launch()
                failed = fails(kernel.name)
                if failed:
                    self._report_failure(call, kernel, number, task, stream, exception)
                yield kernel.name, task, failed
                if failed:
                    return
            if dumps and report.is_written:
                self._write(call, [report], number, stream, arming)
            if (
                report.is_launched()
                and report.is_written
                and self._overflows(call, call.kernels[report.kernel or 0], arming, saturates)
            ):
                self._write_overflow(call, report, number, stream, arming)

    def capture(self, call: ApiCall, arming: Optional[Arming], *, stream: int) -> CapturedReports:
        """Capture a call: determine the files to which its replays append, by the current settings.

        There are none for a dump of statistics, and for overflow detection.

        (assumption cann.captured_name)
        (assumption cann.captured_characters)
        (assumption cann.captured_scenes)
        (assumption torch_npu.captured_files)
        """
        self._read_switches(arming, None)
        dumps = arming is not None and arming.kernels and arming.data != "stats"
        number = self._begin(call, dumps)
        files, tasks = [], []
        for report in call.reports():
            if report.is_launched():
                tasks.append(self._launch())
            if arming is not None and dumps and report.is_written:
                op_type, op_name = self._names(call, report.kernel, number)
                name = DumpName("aclgraph", op_type, op_name, self._now(), self._task & _ID_MASK, stream)
                folder = self._service.base(arming).rstrip("/")
                name = name._replace(dump_number=next(self._dump_numbers))
                files.append(_CapturedFile(report, folder, name, arming.mode))
                self._launch()
        return CapturedReports(files, tasks)

    def replay(self, captured: CapturedReports, call: ApiCall, arming: Optional[Arming]) -> None:
        """Append the tensors of one replay to the files. A header is written even if there are no tensors.

        Nothing is written if no dump is on.
        """
        for file in captured.files if arming is not None else ():
            tensors = self._tensors(call, [file.report], file.mode, file.name.op_name)
            self._service.disk.write_dump(
                f"{file.folder}/{build_name(file.name)}",
                tensors,
                op_name=file.name.op_name,
                dump_time=file.name.timestamp,
            )

    def _read_switches(self, arming: Optional[Arming], exception: Optional[ExceptionDump]) -> None:
        if self._checks_overflow is None:
            self._checks_overflow = arming is not None and arming.overflow
            self._registers_exceptions = exception is not None and exception.kind == "norm"

    def _begin(self, call: ApiCall, dumps: bool) -> int:
        """Advance the counter of calls, and return the number of a call.

        While something is dumped, the number of a call of a generated API is -1, because each of its files takes a
        number. If nothing is dumped, and neither overflow nor exceptions are checked, op-plugin first looks for the
        executor of an equal call, and takes a number for that (op_dfx.cpp:1240, op_cache.cpp:1470). Only if there is
        none, the call takes another number.
        """
        if dumps or self._checks_overflow or self._registers_exceptions:
            return -1 if call.generated and dumps else next(self._numbers)
        number = next(self._numbers)
        if call.generated or call.executor in self._executors:
            return number
        self._executors.add(call.executor)
        return next(self._numbers)

    def _launch(self) -> int:
        """Return the id of the next task. Kernels are tasks, and writing a file is one, too."""
        self._task += 1
        return self._task & _ID_MASK

    def _names(self, call: ApiCall, kernel: Optional[int], number: int) -> tuple[str, str]:
        """Return op type and op name of a file. (assumption torch_npu.generated_names)"""
        if kernel is None:
            return f"{call.api}_{number}_L2", call.api
        name = call.kernels[kernel].name
        if call.generated:
            return f"L2DfxAbscent_{next(self._numbers)}", f"_L0{name}"
        return f"{call.api}_{number}_L0", name

    def _write(
        self, call: ApiCall, reports: Sequence[_Report], number: int, stream: int, arming: Optional[Arming]
    ) -> None:
        """Write the file of these reports if a dump of kernels or overflow detection is on. Empty tensors are left out.

        (assumption torch_npu.no_model_levels)
        (assumption torch_npu.left_out_side)
        (assumption torch_npu.statistics_ids)
        """
        if arming is None or not (arming.kernels or arming.overflow):
            return
        op_type, op_name = self._names(call, reports[0].kernel, number)
        task = self._task & _ID_MASK
        self._launch()
        name = DumpName("device", op_type, op_name, self._now(), task, stream)
        tensors = self._tensors(call, reports, arming.mode, op_name)
        folder = self._service.base(arming)
        operator_file(self._service.disk, folder, name, op_name, tensors, data=arming.data, stats=arming.stats)

    def _tensors(self, call: ApiCall, reports: Sequence[_Report], mode: str, op_name: str) -> list[tuple[Any, Any]]:
        tensors: list[tuple[Any, Any]] = []
        for report in reports:
            if mode not in ("all", report.io):
                continue
            owner: Any = call if report.kernel is None else call.kernels[report.kernel]
            sides = {"input": (), "output": (), report.io: owner.inputs if report.io == "input" else owner.outputs}
            arrays = {side: tuple(array for array in of_side if array.nbytes) for side, of_side in sides.items()}
            node = Node(op_name, call.api, (), "")
            described = KernelCall(node, arrays["input"], arrays["output"], 0, 0)
            tensors += tensors_of(described, report.io, self._service.addresses)
        return tensors

    def _overflows(self, call: ApiCall, kernel: Kernel, arming: Optional[Arming], saturates: bool) -> bool:
        """Return True if overflow detection is on, and a kernel overflowed.

        In saturation mode this is read from the device's status, else from the kernel's outputs. Generated APIs read
        the switch of the detection at each call, other APIs only once. (assumption torch_npu.overflow_values)
        """
        if not (arming is not None and arming.overflow if call.generated else self._checks_overflow):
            return False
        if {kernel.name, call.api} & set(self._service.overflows):
            return True
        return call.overflowed if saturates else not all(map(_is_finite, kernel.outputs))

    def _write_overflow(
        self, call: ApiCall, report: _Report, number: int, stream: int, arming: Optional[Arming]
    ) -> None:
        """Write the inputs and outputs of a kernel that overflowed: to one file, for a generated API to two files.

        No overflow record is written.

        (assumption torch_npu.overflow_file)
        """
        sides = [report._replace(io="input"), report]
        for reports in [[side] for side in sides] if call.generated else [sides]:
            self._write(call, reports, number, stream, arming)

    def _report_failure(
        self, call: ApiCall, kernel: Kernel, number: int, task: int, stream: int, exception: Optional[ExceptionDump]
    ) -> None:
        if exception is not None and exception.kind == "norm" and not self._registers_exceptions:
            return
        op_type = kernel.name if call.generated else f"{call.api}_{number}_L0"
        node = Node(kernel.name, op_type, (), "")
        failed = KernelCall(node, tuple(kernel.inputs), tuple(kernel.outputs), task, stream)
        self._service.report_failure(failed, exception)

    def _now(self) -> int:
        # The time is in the names of files. It has to differ even if a test's clock stands still.
        self._stamp = max(self._stamp + 1, self._service.now())
        return self._stamp


def _is_finite(array: _Array) -> bool:
    return array.dtype.name not in _CHECKED_TYPES or bool(np.isfinite(array).all())
