"""Judge the norms of gradients and of changes of parameters, which dumps of `level="module"` contain.

They show what is outside of modules: gradients that are clipped, scaled or added to older ones, and the settings of the
optimizer. Norms that agree prove nothing, so they are evidence of differences only. Norms of the parameters themselves
are left out: the modules that read them show whether they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.explaining.drafts import Draft, explain
from ascend_dump.analysis.explaining.rank_state import FOLLOWS, RankState
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import type_of
from ascend_dump.analysis.operators.next_request import is_update
from ascend_dump.analysis.operators.operator import Operator, module_of
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["UpdateJudge", "is_of_update"]

#: The relative difference of two norms that is never evidence: of gradients, and of changes, which are estimated.
_LEAST, _LEAST_OF_CHANGE = 1e-4, 1e-3
#: The noise of a norm is at most this many times the largest noise of the tensors in modules.
_TIMES = 16.0
#: A gradient that is smaller than this share of the largest one may be rounding alone, as that of a bias before a norm.
_TINY = 1e-5
_GRADIENTS = (
    "gradients differ where the optimizer reads them, such as",
    "look for clipping, scaling or accumulated gradients (zero_grad) before the optimizer, or for the module that owns "
    "the parameter",
)
_CHANGES = (
    "parameters are updated differently, such as",
    "its gradient has the same norm: look at the settings and the state of the optimizer",
)


class _Norm(NamedTuple):
    """The L2 norm of a tensor, and its number of elements."""

    value: float
    elements: int

    @property
    def rms(self) -> float:
        return self.value / math.sqrt(self.elements) if self.elements else 0.0


class _Origin(NamedTuple):
    """An origin: its number, the text on its first parameter, and the number of its parameters."""

    number: OriginNumber
    first: str
    parameters: int = 1


class UpdateJudge:
    """Judges the optimizer steps of one step of a program."""

    def __init__(self, state: RankState, *sides: Sequence[Operator]) -> None:
        """sides: all operators of actual and of the reference"""
        self._state = state
        names = [{_name_of_update(operator) for operator in side if is_of_update(operator)} for side in sides]
        #: False if one side records no updates, or if both update parameters of names that the other side has not.
        self._have_names = len(names) == 2 and all(names) and not (names[0] - names[1] and names[1] - names[0])
        records = [record for side in sides for operator in side for record in operator.records]
        norms = (_norm(record) for record in records if is_update(record) and _is_gradient(record))
        #: The origins of this step by their titles.
        self._origins: dict[str, _Origin] = {}
        self._largest = max((norm.rms for norm in norms if norm and math.isfinite(norm.value)), default=0.0)

    def judge(self, match: Match) -> list[Pair]:
        """Return the pairs of an update, without norms that agree."""
        pairs = [self._state.compare(match, a, b)[1] for a, b in (*match.inputs, *match.outputs)]
        is_reliable = True
        for number, pair in enumerate(pairs):
            if pair.verdict != "different" or pair.actual is None or pair.reference is None:
                continue
            norms = _norm(pair.actual), _norm(pair.reference)
            verdict = "undecided"
            if _is_gradient(pair.reference):
                is_reliable = self._is_reliable(pair, *norms)
                verdict = "different" if is_reliable and self._differ(pair, _LEAST, *norms) else verdict
                is_reliable &= verdict != "different"
            elif pair.reference.io == "output" and is_reliable and self._differ(pair, _LEAST_OF_CHANGE, *norms):
                verdict = verdict if _is_rounding(match, pair, *norms) else "different"
            pairs[number] = self._explained(pair, *norms) if verdict == "different" else replace(pair, verdict=verdict)
        return [pair for pair in pairs if pair.verdict not in ("equal", "undecided")]

    def only(self, side: int, operator: Operator, pairs: Iterable[Pair]) -> None:
        """Note an update that only one program makes (0: actual): an origin if modules differ in the next step."""
        state = self._state
        pair = next(iter(pairs), None)
        if pair is None or not self._have_names:
            return
        name, where = _name_of(pair.record), "the reference" if side else "actual"
        title = f"parameters are updated in {where} only, or once more, such as"
        # A lost gradient changes the norm of all gradients, and so the other gradients if they are clipped.
        causes = state.modules.of_update(pair.record) - {origin.number for origin in self._origins.values()}
        if not causes:
            evidence = [f"{name} is updated in {where} only, or once more", "look at its gradient and at the optimizer"]
            causes = self._add(title, name, Draft("structure", pair, evidence, hidden=True))
        state.modules.add_update(causes)

    def _is_reliable(self, pair: Pair, a: Optional[_Norm], b: Optional[_Norm]) -> bool:
        """Return False for a gradient so small that it may be rounding alone. Adam makes full steps of it too."""
        if a is None or b is None:
            return False
        return max(a.rms, b.rms) > max(_TINY, self._noise(pair)) * self._largest

    def _differ(self, pair: Pair, least: float, a: Optional[_Norm], b: Optional[_Norm]) -> bool:
        if a is None or b is None:
            return False
        if not (math.isfinite(a.value) and math.isfinite(b.value)):
            return math.isfinite(a.value) != math.isfinite(b.value)
        return abs(a.value - b.value) > max(least, self._noise(pair)) * max(a.value, b.value)

    def _noise(self, pair: Pair) -> float:
        """Return the relative error of a norm that rounding may cause."""
        assert pair.actual is not None
        assert pair.reference is not None
        kind, largest = float_kind(type_of(pair.actual, pair.reference)), self._state.known.largest
        error = 0.0 if largest is None or not math.isfinite(largest.error) else _TIMES * largest.error
        return max(error, 0.0 if kind is None else kind.unit)

    def _explained(self, pair: Pair, a: Optional[_Norm], b: Optional[_Norm]) -> Pair:
        """Return the pair of norms that differ, and add an origin if no module differs before."""
        state = self._state
        title, hint = _GRADIENTS if _is_gradient(pair.record) else _CHANGES
        causes = state.modules.of_update(pair.record) - self._number_of(title)
        pair = replace(pair, verdict="different", reason=f"norm {_text(a)} instead of {_text(b)}")
        if causes:
            pair = replace(pair, explained=True, reason=FOLLOWS)
            explain(pair, state.drafts.of(causes))
        else:
            text = f"{_name_of(pair.record)}: {pair.reason}"
            causes = self._add(title, text, Draft("unknown", pair, [text, hint], first_seen=True))
        state.modules.add_update(causes)
        return pair

    def _number_of(self, title: str) -> frozenset[OriginNumber]:
        """Return the number of the origin of this step with a title, if there is one."""
        return frozenset({self._origins[title].number} if title in self._origins else ())

    def _add(self, title: str, text: str, draft: Draft) -> frozenset[OriginNumber]:
        """Add an origin, or one more parameter to the origin of this step with the same title. Return its number."""
        drafts = self._state.drafts
        if title not in self._origins:
            self._origins[title] = _Origin(drafts.add(draft), text)
        else:
            number, first, count = self._origins[title]
            self._origins[title] = _Origin(number, first, count + 1)
            drafts[number].evidence[0] = f"{count + 1} {title} {first}"
        return self._number_of(title)


def _is_rounding(match: Match, change: Pair, a: Optional[_Norm], b: Optional[_Norm]) -> bool:
    """Return True if norms of changes differ by no more than the rounding of the parameters before and after them.

    The weights of a norm are near 1, and a small step changes them by a few units only.
    """
    assert change.actual is not None
    assert change.reference is not None
    kind = float_kind(type_of(change.actual, change.reference))
    if a is None or b is None or kind is None:
        return False
    parameters = [_norm(record) for side in (match.actual, match.reference) for record in side.inputs[:1]]
    largest = max((norm.value for norm in parameters if norm is not None), default=0.0)
    return abs(a.value - b.value) <= kind.unit * largest


def is_of_update(operator: Operator) -> bool:
    """Return True for the update of a parameter in a dump of `level="module"`."""
    record = next(operator.records, None)
    return record is not None and is_update(record)


def _name_of_update(operator: Operator) -> str:
    names = (record.parameter for record in operator.records if record.parameter)
    return module_of(next(names, ""))


def _is_gradient(record: Record) -> bool:
    return record.io == "input" and (record.parameter or "").endswith(".grad")


def _name_of(record: Record) -> str:
    return record.parameter or record.label


def _norm(record: Record) -> Optional[_Norm]:
    try:
        value = record.statistics().l2norm  # a tensor with NaN or Inf is recorded itself
    except AscendDumpError:
        return None
    if value is None:
        return None
    return _Norm(value if math.isfinite(value) else math.inf, math.prod(record.shape or ()))


def _text(norm: Optional[_Norm]) -> str:
    return "?" if norm is None else f"{norm.value:.4g}"
