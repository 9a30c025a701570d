"""Rules that name suspects: each has a threshold, a small program with a suspect, and one without."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.suspects._case import Row
from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding, rank_text
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import is_nonfinite

__all__ = ["FEWEST", "Finder", "MeasuredRun", "MeasuredTensor", "Suspect", "SuspectRule", "rms_of", "storage_number"]


#: Minimum number of elements of a tensor that is checked. Smaller tensors may be constant or large by chance.
FEWEST = 64
_FLOATS = ("float", "bfloat", "hifloat")


class Suspect(NamedTuple):
    """A record that looks wrong without a reference.

    rule     the name of the rule that names it
    record   the first record that shows it
    reason   the observation, in numbers
    again    number of later runs of the same operator that show the same
    producers  names of the operators that made its inputs in this step, as far as they are recorded
    order    for several ranks: a sentence about the suspects that come before it by the order of collectives
    """

    rule: str
    record: Record
    reason: str
    again: int = 0
    producers: tuple[str, ...] = ()
    order: str = ""

    @property
    def op_name(self) -> str:
        return self.record.op_name

    @property
    def op_type(self) -> str:
        return self.record.op_type

    @property
    def module(self) -> Optional[str]:
        return self.record.module

    @property
    def source(self) -> Optional[str]:
        return self.record.source

    @property
    def step(self) -> Optional[int]:
        return self.record.step

    @property
    def rank(self) -> Optional[int]:
        return self.record.rank

    def finding(self, *, several_ranks: bool) -> Finding:
        """Return the suspect as a finding for the report. several_ranks: the dump has several ranks."""
        record = self.record
        return Finding(
            "suspect",
            record.op_name,
            record.op_type,
            record.step,
            rank_text(record.rank, several_ranks),
            tensor=record.label,
            rule=self.rule,
            module=record.module,
            source=record.source,
            parameter=record.parameter,
            evidence=(self.reason,),
            order=self.order,
            producers=self.producers,
            again=self.again,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the suspect as plain values, for JSON."""
        record = self.record
        return {
            "rule": self.rule,
            "op_name": record.op_name,
            "op_type": record.op_type,
            "io": record.io,
            "index": record.index,
            "module": record.module,
            "source": record.source,
            "phase": record.phase,
            "step": record.step,
            "rank": record.rank,
            "reason": self.reason,
            "again": self.again,
            "producers": list(self.producers),
            "order": self.order,
        }


class MeasuredTensor(NamedTuple):
    """A record with values, and their statistics."""

    record: Record
    found: Statistics


class MeasuredRun(OperatorRun):
    """One run of an operator with the statistics of its tensors.

    measured_inputs, measured_outputs  the tensors with values, by their `io`
    float_inputs, float_outputs        those of them that are floats, with at least `FEWEST` elements
    step           a key of the step on its device
    place          a key of the operator that is the same in every step
    is_nonfinite   True if an input or output has NaN or Inf
    """

    __slots__ = (
        "float_inputs",
        "float_outputs",
        "is_nonfinite",
        "measured_inputs",
        "measured_outputs",
        "place",
        "step",
    )

    def __init__(self, records: Sequence[Record], measure: Callable[[Record], Optional[Statistics]]) -> None:
        super().__init__(records)
        first = self.first
        device = (first.run, first.rank, first.device, first.model)
        self.step: tuple[Any, ...] = (*device, first.step)
        self.place: tuple[Any, ...] = (*device, first.op_name or first.op_type)
        self.is_nonfinite = False
        self.measured_inputs: list[MeasuredTensor] = []
        self.measured_outputs: list[MeasuredTensor] = []
        self.float_inputs: list[MeasuredTensor] = []
        self.float_outputs: list[MeasuredTensor] = []
        for record in records:
            statistics = measure(record)
            if statistics is None:
                continue
            tensor = MeasuredTensor(record, statistics)
            is_input = record.io == "input"
            (self.measured_inputs if is_input else self.measured_outputs).append(tensor)
            if statistics.count >= FEWEST and _is_float(record.dtype):
                (self.float_inputs if is_input else self.float_outputs).append(tensor)
            if is_nonfinite(statistics):
                self.is_nonfinite = True


@functools.lru_cache(maxsize=64)
def _is_float(dtype: Optional[str]) -> bool:
    return (dtype or "").startswith(_FLOATS)


class Finder(ABC):
    """A search for suspects of one rule, operator by operator in execution order."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @abstractmethod
    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        """Return the suspicious records of the run, each with the reason."""

    def end(self) -> Iterable[tuple[Record, str]]:
        """Return the suspicious records that are only known after all operators."""
        return ()


class SuspectRule(NamedTuple):
    """A rule that names suspects; its meaning is in `ascend_dump.report.findings.RULES`.

    threshold  the limit
    counts     the unit of the limit
    trips      a program with a suspect
    passes     nearly the same program without a suspect
    """

    name: str
    threshold: float
    counts: str
    finder: Optional[type[Finder]]
    trips: tuple[Row, ...]
    passes: tuple[Row, ...]


def rms_of(statistics: Statistics) -> Optional[float]:
    """Return the root mean square; None if it is unknown or not finite."""
    if not statistics.count or statistics.l2norm is None or not statistics.l2norm < float("inf"):
        return None
    return float(statistics.l2norm / math.sqrt(statistics.count))


def storage_number(record: Record) -> Optional[int]:
    """Return the number of the memory of a tensor within its step; None if it is not recorded."""
    number = record.attrs.get("storage")
    return None if number is None or number < 0 else int(number)
