"""Rules that name suspects: each has a threshold, a small program with a suspect, and one without."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.suspects._case import Row
from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding, rank_text
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import is_nonfinite

__all__ = ["Finder", "MeasuredTensor", "OperatorRun", "Suspect", "SuspectRule", "rms_of", "storage_number"]


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


class OperatorRun:
    """One run of an operator: all its records with their memory, and the measured inputs and outputs.

    storages       `storage_number` of each record
    read, written  the numbers of the memory of its inputs and outputs, as far as they are recorded
    step           a key of the step on its device
    place          a key of the operator that is the same in every step
    is_nonfinite   True if an input or output has NaN or Inf
    """

    __slots__ = (
        "first",
        "inputs",
        "is_nonfinite",
        "outputs",
        "place",
        "read",
        "records",
        "step",
        "storages",
        "written",
    )

    def __init__(self, records: Sequence[Record], measure: Callable[[Record], Optional[Statistics]]) -> None:
        self.records = records
        self.first = first = records[0]
        self.storages = [storage_number(record) for record in records]
        device = (first.run, first.rank, first.device, first.model)
        self.step: tuple[Any, ...] = (*device, first.step)
        self.place: tuple[Any, ...] = (*device, first.op_name or first.op_type)
        self.is_nonfinite = False
        self.read: set[int] = set()
        self.written: set[int] = set()
        self.inputs: list[MeasuredTensor] = []
        self.outputs: list[MeasuredTensor] = []
        for record, storage in zip(records, self.storages):
            if storage is not None and record.io in ("input", "output"):
                (self.read if record.io == "input" else self.written).add(storage)
            statistics = measure(record)
            if statistics is not None:
                self.is_nonfinite = self.is_nonfinite or is_nonfinite(statistics)
                (self.inputs if record.io == "input" else self.outputs).append(MeasuredTensor(record, statistics))


class Finder(ABC):
    """A search for suspects of one rule, operator by operator in execution order."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @abstractmethod
    def look_at(self, run: OperatorRun) -> Iterable[tuple[Record, str]]:
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
