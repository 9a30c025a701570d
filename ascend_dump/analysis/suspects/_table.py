"""Rules that name suspects: each has a threshold, and two small programs of which it names one and passes the other."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.suspects._case import Row
from ascend_dump.reading import Record
from ascend_dump.report.findings import Finding, rank_text
from ascend_dump.statistics import Statistics

__all__ = ["Finder", "MeasuredTensor", "OperatorRun", "Suspect", "SuspectRule", "rms_of", "storage_number"]


class Suspect(NamedTuple):
    """A record that looks wrong without a reference.

    rule     the name of the rule that names it
    record   where it was seen first
    reason   what was seen, in numbers
    again    how many later runs of the same operator show the same
    producers  names of the operators that made its inputs in this step, as far as the dump tells
    order    of several ranks: which of the others came before it, as far as collectives tell
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
        """Return the suspect as a finding for the report. several_ranks: whether the dump has several ranks."""
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
    """A record that holds values, and what is known of them."""

    record: Record
    found: Statistics


class OperatorRun:
    """One run of an operator: its records, and those of them that could be measured."""

    __slots__ = ("first", "inputs", "outputs", "records")

    def __init__(self, records: Sequence[Record], measure: Callable[[Record], Optional[Statistics]]) -> None:
        self.records = records
        self.first = records[0]
        self.inputs: list[MeasuredTensor] = []
        self.outputs: list[MeasuredTensor] = []
        for record in records:
            found = measure(record)
            if found is not None:
                (self.inputs if record.io == "input" else self.outputs).append(MeasuredTensor(record, found))

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells this operator from others in every step."""
        first = self.first
        return (first.run, first.rank, first.device, first.model, first.op_name or first.op_type)


class Finder(ABC):
    """Looks for suspects of one rule, operator by operator in the order they ran."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @abstractmethod
    def look_at(self, run: OperatorRun) -> Iterable[tuple[Record, str]]:
        """What is suspicious about the run: records, each with the reason."""

    def end(self) -> Iterable[tuple[Record, str]]:
        """What is known to be suspicious once all operators were seen."""
        return ()


class SuspectRule(NamedTuple):
    """One thing that makes a record suspicious.

    threshold  what it is held against, and what that counts
    trips      a program with a suspect; passes: nearly the same one without
    """

    name: str
    threshold: float
    counts: str
    finder: Optional[type[Finder]]
    trips: tuple[Row, ...]
    passes: tuple[Row, ...]


def rms_of(found: Statistics) -> Optional[float]:
    """The root mean square; None where it is not known or not finite."""
    if not found.count or found.l2norm is None or not found.l2norm < float("inf"):
        return None
    return float(found.l2norm / math.sqrt(found.count))


def storage_number(record: Record) -> Optional[int]:
    """The number that the memory of a tensor has within its step; None where the dump does not tell."""
    found = record.attrs.get("storage")
    return None if found is None or found < 0 else int(found)
