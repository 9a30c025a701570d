"""Remember parameters over the steps of one rank, because the updates between two steps may not be recorded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Optional

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, OriginNumber
from ascend_dump.reading import Record

__all__ = ["ParameterHistory"]

_Step = Optional[int]
#: Relative error of a gradient above which rounding decides on its elements.
_ROUNDING_ALONE = 0.1


class ParameterHistory:
    """The step in which each parameter agreed last, and the origins of the parameters that differ."""

    def __init__(self) -> None:
        self._agreed: dict[str, int] = {}
        #: The last step in which all records were equal.
        self._equal: _Step = None
        self._causes: dict[str, tuple[int, frozenset[OriginNumber]]] = {}
        #: By step: the origins of gradients that differ.
        self._gradients: dict[int, set[OriginNumber]] = {}
        #: By module and size: the steps in which a gradient was rounding alone.
        self._roundings: dict[tuple[str, int], set[int]] = {}

    def add_agreeing(self, name: str, step: _Step) -> None:
        if step is not None:
            self._agreed[name] = step

    def add_equal_step(self, step: _Step) -> None:
        self._equal = step

    def agreed_in(self, name: str, step: _Step) -> _Step:
        """Return the last step before `step` in which a parameter agreed; None if there is none."""
        steps = (self._agreed.get(name), self._equal)
        return max(
            (agreed for agreed in steps if agreed is not None and step is not None and agreed < step), default=None
        )

    def add_causes(self, name: str, step: _Step, causes: frozenset[OriginNumber]) -> None:
        if step is not None and name:
            self._causes.setdefault(name, (step, causes))

    def add_gradient(self, step: _Step, causes: Collection[OriginNumber]) -> None:
        """Note the origins of a gradient that differs."""
        if step is not None:
            self._gradients.setdefault(step, set()).update(causes)

    def add_roundings(self, outputs: Iterable[Pair]) -> None:
        """Note gradients of a module that are rounding alone, such as those of the bias of keys in an attention."""
        for pair in outputs:
            is_alone = pair.verdict == "noise" and pair.measure is not None and pair.measure.rel_l2 > _ROUNDING_ALONE
            for record in (pair.actual, pair.reference) if is_alone else ():
                if record is not None and record.phase == "backward" and record.step is not None:
                    self._roundings.setdefault(_place_of(record), set()).add(record.step)

    def is_enlarged_rounding(self, name: str, a: Record, b: Record) -> bool:
        """Return True if the gradients of a parameter were rounding alone since it agreed.

        Adam divides each gradient by its own size, and so makes a full-size update of it.
        """
        agreed = self.agreed_in(name, b.step)
        steps = set().union(*(self._roundings.get(_place_of(record), ()) for record in (a, b) if record.module))
        return agreed is not None and b.step is not None and any(agreed <= step < b.step for step in steps)

    def earlier_gradients(self, step: _Step, since: int = 0) -> frozenset[OriginNumber]:
        """Return the origins of gradients that differ in steps before `step`. since: the first step that counts."""
        if step is None:
            return NO_ORIGINS
        return NO_ORIGINS.union(*(causes for number, causes in self._gradients.items() if since <= number < step))

    def causes_of(self, name: str, step: _Step) -> frozenset[OriginNumber]:
        """Return the origins of a parameter that differs: those of an earlier step, else those of earlier gradients."""
        if step is None:
            return NO_ORIGINS
        since, causes = self._causes.get(name, (step, NO_ORIGINS))
        if since < step:
            return causes
        agreed = self.agreed_in(name, step)
        return NO_ORIGINS if agreed is None else self.earlier_gradients(step, agreed)


def _place_of(record: Record) -> tuple[str, int]:
    return record.module or "", math.prod(record.shape or ())
