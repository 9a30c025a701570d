"""Remember parameters over the steps of one rank, because the updates between two steps may not be recorded."""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, OriginNumber

__all__ = ["ParameterHistory"]

_Step = Optional[int]


class ParameterHistory:
    """The step in which each parameter agreed last, and the origins of the parameters that differ."""

    def __init__(self) -> None:
        self._agreed: dict[str, int] = {}
        #: The last step in which all records were equal.
        self._equal: _Step = None
        self._causes: dict[str, tuple[int, frozenset[OriginNumber]]] = {}
        #: By step: the origins of gradients that differ.
        self._gradients: dict[int, set[OriginNumber]] = {}

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
