"""Replay operators whose outputs differ, to tell if the difference is rounding, and which side is right.

Each side is run on its own recorded inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.reading import Record

if TYPE_CHECKING:
    from ascend_dump.analysis.replay import NotRun, Replayed

__all__ = ["Rerun"]

_TYPE = "float64"
_RIGHT = ("equal", "noise")


class Rerun:
    """Replays operators, each at most once. Raises FrameworkMissing without PyTorch."""

    def __init__(self, rules: Rules) -> None:
        from ascend_dump.analysis.replay import Runner

        self._rules = rules
        self._runner: Any = Runner()
        self._results: dict[int, tuple[Operator, Union[NotRun, dict[int, Replayed]]]] = {}

    def settles(self, match: Match, a: Record, b: Record) -> Optional[str]:
        """Return a sentence if both outputs are right for their inputs, so that they differ by rounding; else None."""
        replayed = [self._of(operator, record) for operator, record in ((match.actual, a), (match.reference, b))]
        if any(isinstance(result, str) or result.verdict not in _RIGHT for result in replayed):
            return None
        if differing_arguments(match.actual, match.reference):
            return None  # each is right for its own arguments
        return f"both outputs are within rounding of the {_TYPE} results for their inputs"

    def evidence(self, match: Match, a: Optional[Record], b: Optional[Record]) -> list[str]:
        """Return a sentence for each side with the result of running its operator again."""
        lines = []
        for side, operator, record in (("actual", match.actual, a), ("the reference", match.reference, b)):
            result = "is not there" if record is None else self._of(operator, record)
            if isinstance(result, str):
                text = result
            elif result.verdict in _RIGHT:
                text = "is right for its inputs"
            elif result.verdict == "different":
                text = f"is wrong for its inputs: {result.reason}"
            else:
                text = f"is {result.verdict}: {result.reason}"
            lines.append(f"replay: the output of {side} {text}")
        return lines

    def _of(self, operator: Operator, record: Record) -> Union[str, Replayed]:
        from ascend_dump.analysis.replay import NotRun, replay_operator

        result = self._results.get(id(operator))
        if result is None:
            try:
                replayed = replay_operator(self._runner, operator, self._rules, _TYPE)
                result = (operator, {id(output.record): output for output in replayed})
            except NotRun as error:
                result = (operator, error)
            self._results[id(operator)] = result
        outputs = result[1]
        if isinstance(outputs, NotRun):
            return f"cannot be computed again: {outputs}"
        return outputs.get(id(record), "has no defined or no recorded values")
