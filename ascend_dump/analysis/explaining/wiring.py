"""Inputs that read another tensor than in the reference, by the operators that made them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, Flows, InputSource
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.reading import Record

__all__ = ["NOT_WRITTEN", "Wiring"]

NOT_WRITTEN = "no recorded operator wrote it before"


class Wiring:
    """The sources of the inputs of both programs in one step."""

    def __init__(self, actual: Sequence[Operator], reference: Sequence[Operator], matches: Sequence[Match]) -> None:
        self._operators = actual, reference
        #: For each side, by the position of a paired operator: that in the reference.
        self.partners = (
            {match.actual.position: match.reference.position for match in matches},
            {match.reference.position: match.reference.position for match in matches},
        )

    @cached_property
    def flows(self) -> Flows:
        """The data flow of both programs."""
        return DataFlow(self._operators[0]), DataFlow(self._operators[1])

    @cached_property
    def _names(self) -> tuple[dict[int, str], dict[int, str]]:
        """By the storage of each side: the name of its parameter."""
        return self._named(0), self._named(1)

    def _named(self, side: int) -> dict[int, str]:
        records = (record for operator in self._operators[side] for record in operator.records if record.parameter)
        return {storage[0]: record.parameter or "" for record in records if (storage := storage_of(record)) is not None}

    def parameter(self, record: Record) -> str:
        """Return the name of a parameter that an operator of actual reads; "" if it is unknown."""
        storage = storage_of(record)
        return record.parameter or ("" if storage is None else self._names[0].get(storage[0], ""))

    def explain(self, match: Match, a: Record, b: Record) -> tuple[bool, list[str]]:
        """Return whether an input reads another tensor than in the reference, and the evidence that there is."""
        sources = self._source(0, match.actual, a), self._source(1, match.reference, b)
        roots = [None if source is None else source.root for source in sources]
        if roots[0] is None or roots[1] is None:
            return False, []
        if roots[0].position == roots[1].position == OUTSIDE:
            return False, [NOT_WRITTEN]
        names = [self._name(side, source) for side, source in enumerate(sources) if source is not None]
        if self.partners[0].get(roots[0].position) == roots[1].position and roots[0].output == roots[1].output:
            return False, [f"made by {names[0]}, and changed since by something that is not recorded"]
        return True, [f"reads {names[0]} here, {names[1]} in the reference"]

    def _source(self, side: int, operator: Operator, record: Record) -> Optional[InputSource]:
        sources = self.flows[side].sources[operator.position]
        return next((source for source in sources if source.record is record), None)

    def _name(self, side: int, source: InputSource) -> str:
        root = source.root
        if root is None or root.position == OUTSIDE:
            storage = storage_of(source.record)
            name = "" if storage is None else self._names[side].get(storage[0], "")
            return name or "a tensor from outside"
        label = self._operators[side][root.position].label
        return label if root.output == 0 else f"output {root.output} of {label}"
