"""Operators whose outputs differ, run again from their own inputs: is it rounding, and which side is right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.reading import Record

if TYPE_CHECKING:
    from ascend_dump.analysis.replay import NotRun, Replayed

__all__ = ["Rerun"]

_TYPE = "float64"
_RIGHT = ("equal", "noise")


class Rerun:
    """Each operator is run once. Raises FrameworkMissing without PyTorch."""

    def __init__(self, rules: Rules) -> None:
        from ascend_dump.analysis.replay import Runner

        self._rules = rules
        self._runner: Any = Runner()
        self._known: dict[int, tuple[Operator, Union[NotRun, dict[int, Replayed]]]] = {}

    def settles(self, match: Match, a: Record, b: Record) -> Optional[str]:
        """The reason why a difference is rounding: both outputs are right for their inputs; None where they are not."""
        found = [self._of(operator, record) for operator, record in ((match.actual, a), (match.reference, b))]
        if any(isinstance(one, str) or one.verdict not in _RIGHT for one in found):
            return None
        if differing_arguments(match.actual, match.reference):
            return None  # each is right for what it was asked
        return f"both outputs are within rounding of what {_TYPE} gives for their inputs"

    def evidence(self, match: Match, a: Optional[Record], b: Optional[Record]) -> list[str]:
        """What running it again says of each side."""
        lines = []
        for side, operator, record in (("actual", match.actual, a), ("the reference", match.reference, b)):
            found = "is not there" if record is None else self._of(operator, record)
            if isinstance(found, str):
                text = found
            elif found.verdict in _RIGHT:
                text = "is right for its inputs"
            elif found.verdict == "different":
                text = f"is wrong for its inputs: {found.reason}"
            else:
                text = f"is {found.verdict}: {found.reason}"
            lines.append(f"run again, the output of {side} {text}")
        return lines

    def _of(self, operator: Operator, record: Record) -> Union[str, Replayed]:
        from ascend_dump.analysis.replay import NotRun, replay_operator

        known = self._known.get(id(operator))
        if known is None:
            try:
                every = replay_operator(self._runner, operator, self._rules, _TYPE)
                known = (operator, {id(one.record): one for one in every})
            except NotRun as error:
                known = (operator, error)
            self._known[id(operator)] = known
        outputs = known[1]
        if isinstance(outputs, NotRun):
            return f"cannot be made: {outputs}"
        return outputs.get(id(record), "carries no defined value")
