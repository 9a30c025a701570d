"""Find updates of parameters that a program on one rank runs, and one of several ranks does not.

A rank needs no update of its own if it has not read the parameter, as a stage of a pipeline, or if it gets the updated
parameter from another rank, as with an optimizer whose states are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ascend_dump.analysis.explaining.drafts import Draft
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["MISSED", "MissedUpdates"]

#: The end of the sentence on updates that a rank does not run.
MISSED = "which the other side updates"


class MissedUpdates:
    """The parameters that a rank reads, and the updates of a step."""

    def __init__(self) -> None:
        self.begin_step(has_ranks=False)

    def begin_step(self, *, has_ranks: bool) -> None:
        """Begin a step. has_ranks: actual has several ranks, and the reference one; else nothing is noted"""
        self._has_ranks = has_ranks
        #: By name: the number of the storage, in actual, of a parameter that the forward or backward pass reads.
        self._read: dict[str, int] = {}
        self._last_backward = -1
        #: Writes of actual outside of both passes: position and storage.
        self._writes: list[tuple[int, int]] = []
        #: Types of operators that only actual runs outside of both passes.
        self._types: set[str] = set()
        self._updates: list[Pair] = []
        self._rank: Optional[int] = None

    def add_match(self, match: Match) -> None:
        """Note two paired operators."""
        if not self._has_ranks:
            return
        for a, b in match.inputs:
            memory = None if a is None else storage_of(a)
            if memory is not None and b is not None and b.parameter and b.phase != "other":
                self._read.setdefault(b.parameter, memory[0])
                self._rank = a.rank if a is not None else None
        self._add_writes(match.actual)

    def add_alone(self, operator: Operator, *, of_actual: bool) -> None:
        """Note an operator that only one side runs."""
        if not self._has_ranks:
            return
        if of_actual:
            self._add_writes(operator)
            if operator.phase == "other":
                self._types.add(operator_class(operator.op_type))
        elif operator.phase == "other" and writes(operator.op_type):
            for record in operator.outputs:
                name = record.parameter or ""
                if name and " of " not in name and not name.endswith(".grad"):
                    self._updates.append(_missed(record, operator))

    def drafts(self) -> Iterator[Draft]:
        """Yield an origin for each update of the step that the rank does not run, and nothing does in its place."""
        written = {storage for position, storage in self._writes if position > self._last_backward}
        missed = {pair.record.parameter: pair for pair in self._updates if self._is_missed(pair, written)}
        for name, pair in missed.items():
            more = f" and {counted(len(missed) - 1, 'other parameter')}" if len(missed) > 1 else ""
            evidence = [f"rank {self._rank} does not update {name}{more}, {MISSED}"]
            yield Draft("structure", pair, evidence, joined=("missed", pair.record.step))

    def _is_missed(self, pair: Pair, written: set[int]) -> bool:
        storage = self._read.get(pair.record.parameter or "")
        return (
            self._last_backward >= 0
            and storage is not None
            and storage not in written
            and operator_class(pair.record.op_type) not in self._types
        )

    def _add_writes(self, operator: Operator) -> None:
        position = max((record.attrs.get("seq", -1) for record in operator.records), default=-1)
        if operator.phase == "backward":
            self._last_backward = max(self._last_backward, position)
        elif operator.phase == "other":
            memories = (storage_of(record) for record in operator.outputs)
            self._writes += [(position, memory[0]) for memory in memories if memory is not None]


def _missed(record: Record, operator: Operator) -> Pair:
    return Pair(None, record, "", 0.0, "unmatched", f"{operator.op_type} runs in the reference only")
