"""Eager operators on the simulated device: API calls (L2) around kernels (L0), as opbase reports them to adump.

Each report is a file: the inputs of the call, the inputs and the outputs of each kernel, the outputs of the call.
Sources in hicann/opbase aa3cd74: op_executor.cpp:987 (calls), common/inc/kernel_launcher.h:168-195 (kernels, overflow),
op_dfx.cpp:148, 817, 1132, 1211 (counter, names, overflow), common/utils/bridge_dfx.cpp:21-44 and op_cache.cpp:1470
(switches), individual_op/executor/indv_dump.cpp:130-175, 343 (generated APIs). In hicann/runtime 681ef761, adump:
dump_manager.cpp:519-595 (which reports become files), dump_stream_info.cpp:200, 385 (files of captured calls).

Differences from these sources:

- All replays of a captured graph append to the files of the first. By dump_stream_info.cpp:513-529 the record of a file
  is freed after the first replay, so that a device may do anything at the second. (assumption cann.captured_name)
- Which kernels an API launches besides depends on types, shapes and the device: here it is one, with those around it
  that bring operands in order and write to views. Types with kernels on AI Core are all but float64 and complex128.
- nn.LSTM and nn.GRU call the APIs of their parts, and not aclnnLSTM and aclnnGRU; aclnnInplaceMish, aclnnInplaceLog10
  and aclnnSearchSorteds take one number, and not two.
- A reused executor is found by the API and by shapes and types of its tensors, without scalars.
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
#: The types that the check for Inf and NaN reads.
_CHECKED_TYPES = ("float32", "float16", "bfloat16")


class Kernel(NamedTuple):
    """One kernel of an API call, and its tensors. is_reported: it runs on AI Core; others are not dumped."""

    name: str
    inputs: Sequence[_Array]
    outputs: Sequence[_Array]
    is_reported: bool = True


class ApiCall(NamedTuple):
    """One call of an API such as aclnnAdd. inputs, outputs: whole storages, see `_views.DeviceTensor`.

    generated: the API is generated from the description of its only kernel, and reports that kernel only.
    overflowed: in saturation mode, the device has set its overflow status.
    """

    api: str
    inputs: Sequence[_Array]
    outputs: Sequence[_Array]
    kernels: Sequence[Kernel]
    generated: bool = False
    overflowed: bool = False

    @property
    def executor(self) -> Hashable:
        """The key of its executor: equal calls have the same one."""
        return self.api, *((array.shape, array.dtype) for array in (*self.inputs, *self.outputs))

    def reports(self) -> Iterator[_Report]:
        """Yield the files in the order in which they are written, without those that have no tensor."""
        if not self.generated:
            yield _Report(None, "input")
        for position, kernel in enumerate(self.kernels):
            yield _Report(position, "input", kernel.is_reported)
            yield _Report(position, "output", kernel.is_reported)
        if not self.generated:
            yield _Report(None, "output")


class _Report(NamedTuple):
    """One file, if it is written. kernel: its position in the API call; None for the call itself."""

    kernel: Optional[int]
    io: str
    is_written: bool = True

    def is_launched(self) -> bool:
        return self.kernel is not None and self.io == "output"


class _CapturedFile(NamedTuple):
    report: _Report
    folder: str
    name: DumpName
    mode: str


class CapturedReports(NamedTuple):
    """An API call in a graph. Its replays append to the files that were named at the capture."""

    files: Sequence[_CapturedFile]
    tasks: Sequence[int]


class ApiReports:
    """The API calls of one process.

    The switches for overflow and exceptions are read at the first call, and stay.
    (assumption torch_npu.overflow_switch)
    (assumption torch_npu.exception_switch)
    """

    def __init__(self, service: DumpService) -> None:
        self._service = service
        self._numbers = itertools.count()
        #: The executors of calls that may be found again.
        self._executors: set[Hashable] = set()
        self._dump_numbers = itertools.count()
        #: The last task that was launched.
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
        """Run a call and write its files. Yields name, task and failure of each kernel; the call ends with a failure.

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
        """Name the files of the replays of a call, by the current settings. Statistics and overflow are skipped.

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
        """Append the tensors of one replay. The host also writes headers without tensors."""
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
        """Return the number of a call. A generated API has none of its own while it is dumped: each file has one.

        Unless something is dumped or watched, op-plugin asks for the executor of an equal call before, and takes a
        number for that (op_dfx.cpp:1240, op_cache.cpp:1470). A call whose executor is found takes no other one.
        """
        if dumps or self._checks_overflow or self._registers_exceptions:
            return -1 if call.generated and dumps else next(self._numbers)
        number = next(self._numbers)
        if call.generated or call.executor in self._executors:
            return number
        self._executors.add(call.executor)
        return next(self._numbers)

    def _launch(self) -> int:
        """Return the task of a kernel; a dump is a kernel, too."""
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
        """Write a file, unless adump has no dump on. Empty tensors are left out.

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
        """Return True to report a kernel as an overflow: by the device's status in saturation mode, or by its outputs.

        Generated APIs ask for the switch at each call. (assumption torch_npu.overflow_values)
        """
        if not (arming is not None and arming.overflow if call.generated else self._checks_overflow):
            return False
        if {kernel.name, call.api} & set(self._service.overflows):
            return True
        return call.overflowed if saturates else not all(map(_is_finite, kernel.outputs))

    def _write_overflow(
        self, call: ApiCall, report: _Report, number: int, stream: int, arming: Optional[Arming]
    ) -> None:
        """Write the tensors of a kernel that overflowed: one file, but two for a generated API. There is no record.

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
        # Files of one kernel are never written within a microsecond; a clock that stands still must not join them.
        self._stamp = max(self._stamp + 1, self._service.now())
        return self._stamp


def _is_finite(array: _Array) -> bool:
    return array.dtype.name not in _CHECKED_TYPES or bool(np.isfinite(array).all())
