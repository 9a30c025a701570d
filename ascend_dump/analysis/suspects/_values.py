"""Find suspects by the values of one operator.

The values are at the limit of their type, become zero in a narrower type, or are read from uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.operator_run import RunTensor
from ascend_dump.analysis.operators.properties import COPIES, VIEWS, operator_class
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import FEWEST, Finder, MeasuredRun, MeasuredTensor, SuspectRule
from ascend_dump.dump_format import UNINITIALISED
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["SATURATED", "UNDERFLOW", "UNINITIALISED_READ"]

#: The largest finite value of each type. Float8 is left out: tensors are scaled to reach its limits.
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
_NARROW = (*_LARGEST, "float8_e4m3fn", "float8_e5m2", "hifloat8")
#: Bits of each type that a value may be cast from.
_WIDTH = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


def _limit_reached(tensor: MeasuredTensor, share: float) -> bool:
    record, found = tensor
    largest = _LARGEST.get(record.dtype or "")
    if largest is None:
        return False
    least = share * largest
    return (found.max is not None and least <= abs(found.max) <= largest) or (
        found.min is not None and least <= abs(found.min) <= largest
    )


def _is_mask(tensor: MeasuredTensor) -> bool:
    """Return True if the tensor has the lowest finite value at masked elements, and 0 elsewhere."""
    return tensor.found.max == 0 and tensor.found.min == -_LARGEST[tensor.record.dtype or ""]


class _SaturatedFinder(Finder):
    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        for tensor in run.measured_outputs:
            if not _limit_reached(tensor, self.threshold) or _is_mask(tensor):
                continue
            if name_in_rules(run.first.op_type) in FILLING:
                return ()
            if any(_limit_reached(source, self.threshold) for source in run.measured_inputs):
                return ()
            record, statistics = tensor
            largest = _LARGEST[record.dtype or ""]
            reached = max((value for value in (statistics.max, statistics.min) if value is not None), key=abs)
            text = f"{record.label} reaches {reached:.5g}, the largest {record.dtype} is {largest:.5g}"
            return [(record, text)]
        return ()


SATURATED = SuspectRule(
    "saturated",
    0.99,
    "share of the largest finite value of the type",
    _SaturatedFinder,
    trips=(
        Row("aten::mm", "0/mm_0", "input", values(200), dtype="float16"),
        Row("aten::mm", "0/mm_0", "output", values(9000, peak=65504.0), dtype="float16"),
    ),
    passes=(
        Row("aten::mm", "0/mm_0", "input", values(200), dtype="float16"),
        Row("aten::mm", "0/mm_0", "output", values(9000, peak=60000.0), dtype="float16"),
        Row("aten::masked_fill", "0/masked_fill_0", "input", values(2), dtype="float16"),
        Row("aten::masked_fill", "0/masked_fill_0", "output", Statistics(9, 2.0, -65504.0), dtype="float16"),
        Row("aten::add", "0/add_0", "input", Statistics(9, 2.0, -65504.0), dtype="float16"),
        Row("aten::add", "0/add_0", "output", Statistics(9, 2.0, -65504.0), dtype="float16"),
    ),
)


class _UnderflowFinder(Finder):
    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        if operator_class(run.first.op_type) not in COPIES:
            return ()
        if len(run.measured_inputs) != 1 or len(run.measured_outputs) != 1:
            return ()
        (source, before), (record, after) = run.measured_inputs[0], run.measured_outputs[0]
        if record.dtype not in _NARROW or _WIDTH.get(source.dtype or "", 0) <= _WIDTH.get(record.dtype, 8):
            return ()
        if before.count != after.count or before.zero is None or after.zero is None:
            return ()
        filled = before.count - before.zero
        lost = after.zero - before.zero
        if filled < FEWEST or lost <= self.threshold * filled:
            return ()
        return [(record, f"{lost} of {filled} values that were not zero in {source.dtype} are zero in {record.dtype}")]


UNDERFLOW = SuspectRule(
    "underflow",
    0.05,
    "share of the values that were not zero",
    _UnderflowFinder,
    trips=(
        Row("aten::_to_copy", "0/_to_copy_0", "input", values(1e-8)),
        Row("aten::_to_copy", "0/_to_copy_0", "output", values(1e-8, zero=800), dtype="float16"),
    ),
    passes=(
        Row("aten::_to_copy", "0/_to_copy_0", "input", values(1e-3, zero=700)),
        Row("aten::_to_copy", "0/_to_copy_0", "output", values(1e-3, zero=705), dtype="float16"),
    ),
)


class _UninitialisedFinder(Finder):
    """A tracker of memory that was allocated but not written, by storage number, which is valid for one step."""

    #: Operators whose inputs include the memory that they write to.
    _WRITERS = ("c10d::", "_c10d_functional::", "fsdp::")

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._step: object = None
        self._unset: set[int] = set()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        first = run.first
        if run.step != self._step:
            self._step, self._unset = run.step, set()
        if run.is_skipped:
            fresh = {
                storage
                for record, storage, _ in run.outputs
                if storage >= 0 and record.attrs.get("skipped") == UNINITIALISED
            }
            if fresh:
                self._unset |= fresh
                return ()
        if not self._unset or operator_class(first.op_type) in VIEWS:
            return ()
        read = {storage for _, storage, _ in run.read_inputs}
        copies = first.op_type == "aten::copy_" or operator_class(first.op_type) in COPIES
        if copies and not self._unset.isdisjoint(read):
            # Copying such memory is no fault: C++ may have filled it without an operator. The copy is tracked instead.
            self._unset |= run.written
            return ()
        unset = None
        if not first.op_type.startswith(self._WRITERS):
            unset = next((tensor for tensor in run.read_inputs if self._is_unset(tensor)), None)
        self._unset -= run.written
        if unset is not None:
            self._unset.discard(unset.storage)
            text = f"{unset.record.label} is memory that was allocated in this step and never written"
            return [(unset.record, text)]
        return ()

    def _is_unset(self, tensor: RunTensor) -> bool:
        record, storage, _ = tensor
        return storage in self._unset and not record.attrs.get("skipped") and record.nbytes != 0


UNINITIALISED_READ = SuspectRule(
    "uninitialised",
    0,
    "no threshold: it was read or not",
    _UninitialisedFinder,
    trips=(
        Row("aten::empty", "empty_0", "output", None, storage=1, skipped="uninitialised memory"),
        Row("aten::mul", "0/mul_0", "input", values(1), storage=1),
        Row("aten::mul", "0/mul_0", "output", values(1), storage=2),
    ),
    passes=(
        Row("aten::empty", "empty_0", "output", None, storage=1, skipped="uninitialised memory"),
        Row("aten::normal_", "normal__0", "input", None, storage=1, skipped="uninitialised memory"),
        Row("aten::normal_", "normal__0", "output", values(1), storage=1),
        Row("aten::mul", "0/mul_0", "input", values(1), storage=1),
        Row("aten::mul", "0/mul_0", "output", values(1), storage=2),
    ),
)
