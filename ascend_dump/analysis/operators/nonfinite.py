"""Find the operators that produce NaN or Inf, and the first of these operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.operator import call_of
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import has_nan, is_additive_mask, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = [
    "CONSTANTS",
    "Measure",
    "NonFiniteOperator",
    "classify",
    "executions",
    "find_nonfinite",
    "first_nonfinite",
    "has_nan",
    "is_nonfinite",
]

#: Operators that return a constant of the program, such as `torch.tensor(inf)`. The constant is also their input.
CONSTANTS = frozenset(("liftfresh", "liftfreshcopy"))

Measure = Callable[[Record], Optional[Statistics]]


class NonFiniteOperator(NamedTuple):
    """One operator with NaN or Inf in an output, or in an input if it has no output.

    kind     "origin": the operator turned finite inputs into NaN or Inf
             "nan-made": it made NaN of inputs with Inf and without NaN, such as softmax of -Inf, 0*Inf or Inf-Inf
             "mask": the program filled in Inf, as for masks of attention
             "carried": an input already had NaN or Inf
             "unknown": not all of its inputs are recorded with their values
    record   the first output with NaN, else the first with Inf; for "origin" and "mask" the first with NaN or Inf. An
             input if the operator has no output
    inputs   the operator's input records

    `statistics` are those of `record`, `input_statistics` those of `inputs`: None for an input without known values.
    """

    kind: str
    record: Record
    statistics: Statistics
    inputs: list[Record]
    input_statistics: list[Optional[Statistics]]

    @property
    def origin(self) -> bool:
        """Return True if all inputs are recorded and finite, so that the operator itself produced NaN or Inf."""
        return self.kind == "origin"


def find_nonfinite(records: Iterable[Record], measure: Optional[Measure] = None) -> Iterator[NonFiniteOperator]:
    """Yield the operators of a dump with a non-finite output, in execution order.

    measure: returns the statistics of a record, None to skip it; by default records that have neither values nor
    statistics, or cannot be read, are skipped.
    """
    for members in executions(records):
        finding = classify(members, measure or _measure)
        if finding is not None:
            yield finding


def executions(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield all records of each run of an operator, in execution order.

    A collective continues after its call has returned. So its outputs are recorded when the collective is complete,
    later than its inputs. An API call on an NPU is left out if the outputs of its kernels are recorded: files of the
    kernels contain exactly the tensors of the call, but files of the call contain the whole storages of these tensors.
    """
    running: dict[tuple[Any, ...], list[Record]] = {}
    #: For each API call: True if outputs of all its kernels are recorded.
    kernels: dict[tuple[Any, ...], bool] = {}
    for key, group in groupby(records, key=attrgetter("execution")):
        members = list(group)
        if running:
            members = running.pop(key, []) + members
        if members[0].kernel is not None:
            call = call_of(members[0])
            has_outputs = any(record.io == "output" for record in members)
            kernels[call] = kernels.get(call, True) and has_outputs
        elif kernels and kernels.pop(call_of(members[0]), False):
            continue
        if "c10d" in (members[0].op_type or "") and all(record.io == "input" for record in members):
            running[key] = members
        else:
            yield members
    yield from running.values()


def first_nonfinite(records: Iterable[Record]) -> Optional[NonFiniteOperator]:
    """Return the first operator that turned finite inputs into NaN or Inf.

    If no operator has inputs that are all known and finite, return the first one with a non-finite output.
    """
    first = None
    for finding in find_nonfinite(records):
        if finding.origin:
            return finding
        first = first or finding
    return first


def classify(members: Sequence[Record], measure: Measure) -> Optional[NonFiniteOperator]:
    """Classify one run of an operator by all its records.

    Return None if no output is known to have NaN or Inf. An operator without outputs is judged by its inputs.
    """
    outputs = [record for record in members if record.io == "output"]
    wrong = _nonfinite(outputs, map(measure, outputs))
    if outputs and not wrong:
        return None
    inputs = [record for record in members if record.io == "input" and not is_no_value(record)]
    measured = [measure(record) for record in inputs]
    if not outputs:
        wrong = _nonfinite(inputs, measured)
        if not wrong:
            return None
    # NaN is stronger evidence of a fault than Inf.
    record, statistics = next((pair for pair in wrong if has_nan(pair[1])), wrong[0])
    kind = _kind(members[0], [statistics for _, statistics in wrong], inputs, measured) if outputs else "carried"
    if kind in ("origin", "mask"):
        record, statistics = wrong[0]
    return NonFiniteOperator(kind, record, statistics, inputs, measured)


def _nonfinite(records: Iterable[Record], measured: Iterable[Optional[Statistics]]) -> list[tuple[Record, Statistics]]:
    pairs = zip(records, measured)
    return [(record, statistics) for record, statistics in pairs if statistics is not None and is_nonfinite(statistics)]


def _kind(operator: Record, wrong: list[Statistics], inputs: list[Record], measured: list[Optional[Statistics]]) -> str:
    makes_nan = any(map(has_nan, wrong))
    if not makes_nan and name_in_rules(operator.op_type or operator.op_name) in CONSTANTS:
        return "mask"
    recorded = [statistics for statistics in measured if statistics is not None]
    if any(map(is_nonfinite, recorded)):
        if not makes_nan or any(map(has_nan, recorded)):
            return "carried"
        return "nan-made" if len(recorded) == len(measured) else "unknown"
    fills = name_in_rules(operator.op_type or operator.op_name) in FILLING
    if not makes_nan and (fills or all(map(is_additive_mask, wrong))):
        return "mask"
    return "origin" if recorded and len(recorded) == len(measured) else "unknown"


def _measure(record: Record) -> Optional[Statistics]:
    try:
        return record.statistics()
    except (NotSupported, ReadError):
        return None
