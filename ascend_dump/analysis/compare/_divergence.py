"""Walk the paired operators of one step in execution order, judge each tensor, and find the differences that nothing
before explains.

A difference is known by its contents: the pair (content of actual, content of reference). A tensor whose pair of
contents was seen before carries an old difference on. One with a new pair has its cause here, if the inputs of its
operator do not differ, or in something that was not recorded, if it is an input.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from ascend_dump._errors import AscendDumpError
from ascend_dump.analysis.compare._match import Match
from ascend_dump.analysis.compare._measure import Measure, float_kind, measure
from ascend_dump.analysis.compare._operators import Operator, storage_of
from ascend_dump.analysis.compare._result import Origin, Pair
from ascend_dump.analysis.compare._types import (
    RANDOM,
    UNINITIALISED,
    input_scale_matters,
    operator_class,
    reduction_length,
    sums_in_own_type,
)
from ascend_dump.analysis.compare._verdict import Rules, judge
from ascend_dump.reading import Record

__all__ = ["Divergence"]

#: Identifies an origin while its step is walked.
_Cause = int
_NONE: frozenset[_Cause] = frozenset()
#: The reason of a difference that an origin explains.
_CARRIED = "carried on from an earlier difference"
#: An output so many times further off than its inputs was computed wrongly, however much the operator enlarges errors.
_COMPUTE = 1e3
_COLLECTIVE = ("c10d::", "_c10d_functional::", "c10d_functional::", "Hcom", "hccl")


class _Noise(NamedTuple):
    """A difference within rounding, and the origins whose consequence it may be."""

    measure: Measure
    causes: frozenset[_Cause]


class _Draft:
    """An origin being found, with what it explains."""

    def __init__(self, kind: str, pair: Pair, evidence: list[str], *, hidden: bool = False) -> None:
        self.kind = kind
        self.pair = pair
        self.evidence = evidence
        self.explains = 0
        #: Uninitialised memory differs all the time; it is an origin only once something was made of it.
        self.hidden = hidden


class Divergence:
    """The state of the walk over the steps of one rank: what differences are known, and where they came from."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._causes: dict[Any, frozenset[_Cause]] = {}
        #: Differences within rounding, with the origins that they may be a small consequence of.
        self._noise: dict[Any, _Noise] = {}
        self._measured: dict[Any, Measure] = {}
        self._written: dict[Any, frozenset[_Cause]] = {}
        #: By contents of one side: what an operator without a partner made, and what differs there.
        self._of_side: tuple[dict[Any, frozenset[_Cause]], dict[Any, frozenset[_Cause]]] = ({}, {})
        self._drafts: list[_Draft] = []
        self._seen_operator = False

    def begin_step(self) -> None:
        """Numbers of storages begin anew with each step."""
        self._written.clear()
        self._seen_operator = False

    def walk(self, match: Match) -> list[Pair]:
        """Judge the tensors of two paired operators."""
        actual, reference = match.actual, match.reference
        changed = operator_class(actual.op_type) != operator_class(reference.op_type)
        pairs: list[Pair] = []
        causes: set[_Cause] = set()
        input_noise: list[_Noise] = []
        unreadable = False
        for a, b in _sides(actual.inputs, reference.inputs):
            pair, noise, why = self._input(match, a, b)
            pairs.append(pair)
            causes |= why
            unreadable = unreadable or pair.verdict == "unreadable"
            if noise is not None:
                input_noise.append(noise)
        clean = not causes
        made: Optional[_Cause] = None
        for a, b in _sides(actual.outputs, reference.outputs):
            pair = self._output(match, a, b, causes, input_noise, changed)
            if pair.verdict in ("different", "structure") and not pair.explained:
                if made is None:
                    made = self._origin_of(match, pair, clean and not unreadable, input_noise, changed)
                self._remember(pair, frozenset({made}))
            pairs.append(pair)
        for record in actual.broken:
            pairs.append(Pair(record, None, match.how, match.confidence, "unreadable", str(record.error)))
        for record in reference.broken:
            pairs.append(Pair(None, record, match.how, match.confidence, "unreadable", str(record.error)))
        self._seen_operator = True
        return pairs

    def only(self, operator: Operator, *, of_actual: bool) -> list[Pair]:
        """The records of an operator that only one side has."""
        side = "actual" if of_actual else "the reference"
        found: list[Pair] = []
        for record in operator.records:
            verdict, reason = "unmatched", f"{operator.op_type} runs in {side} only"
            if record.error is not None:
                verdict, reason = "unreadable", str(record.error)
            found.append(Pair(record if of_actual else None, None if of_actual else record, "", 0.0, verdict, reason))
        outputs = [pair for pair in found if pair.record.io != "input" and pair.verdict == "unmatched"]
        if outputs:
            known = self._of_side[0 if of_actual else 1]
            # An origin only if something differs that was made of it.
            draft = _Draft("structure", outputs[0], [f"{operator.op_type} runs in {side} only"], hidden=True)
            causes = frozenset({self._add(draft)}).union(*(known.get(_identity(one), _NONE) for one in operator.inputs))
            for pair in outputs:
                known[_identity(pair.record)] = causes
            known.pop(None, None)
        return found

    def origins(self) -> list[Origin]:
        """What was found, in the order it was found; amplifications after all others."""
        shown = [draft for draft in self._drafts if not draft.hidden or draft.explains]
        shown.sort(key=lambda draft: draft.kind in ("amplification", "uninitialised"))
        return [
            Origin(
                draft.kind,
                draft.pair,
                tuple(draft.evidence),
                draft.explains,
                draft.kind in ("input", "parameter"),
                _next_request(draft),
            )
            for draft in shown
        ]

    def _input(
        self, match: Match, a: Optional[Record], b: Optional[Record]
    ) -> tuple[Pair, Optional[_Noise], frozenset[_Cause]]:
        pair, contents = self._compare(match, a, b)
        if pair.verdict in ("equal", "unmatched", "unreadable"):
            return pair, None, self._causes.get(contents, _NONE) if pair.verdict != "equal" else _NONE
        known = self._causes.get(contents)
        if known is None and a is not None and b is not None:
            known = self._written.get((storage_of(a), storage_of(b))) if storage_of(a) is not None else None
            made = [side.get(_identity(record)) for side, record in zip(self._of_side, (a, b))]
            if known is None and any(made):
                known = frozenset().union(*(causes for causes in made if causes))
                for cause in known:
                    self._drafts[cause].explains += 1
        if known is not None:
            return replace(pair, explained=True, reason=_CARRIED), None, known
        if contents in self._noise:
            return replace(pair, verdict="noise", explained=True), self._noise[contents], _NONE
        assert pair.measure is not None or pair.verdict == "structure"
        measured = pair.measure
        if measured is not None and pair.verdict != "structure":
            verdict, reason = judge(measured, _dtype(a, b), self._rules)
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict == "noise":
                noise = self._noise[contents] = _Noise(measured, _NONE)
                return pair, noise, _NONE
        cause = self._add(
            _Draft(self._kind_of_input(match, b), pair, [f"{pair.record.label}: {pair.reason}", _where_from(a, b)])
        )
        self._causes[contents] = frozenset({cause})
        return pair, None, frozenset({cause})

    def _output(
        self,
        match: Match,
        a: Optional[Record],
        b: Optional[Record],
        causes: set[_Cause],
        input_noise: list[_Noise],
        changed: bool,
    ) -> Pair:
        pair, contents = self._compare(match, a, b)
        if pair.verdict in ("equal", "unmatched", "unreadable"):
            if pair.verdict == "equal":
                self._causes.pop(contents, None)
            return pair
        assert a is not None
        assert b is not None
        small = frozenset().union(*(one.causes for one in input_noise))
        if pair.measure is not None and pair.verdict != "structure":
            measured = pair.measure
            error = _input_error(match.reference, input_noise, measured)
            verdict, reason = judge(
                measured,
                _dtype(a, b),
                self._rules,
                terms=reduction_length(match.reference.op_type, match.reference.inputs, match.reference.outputs),
                own_type=sums_in_own_type(match.reference.op_type),
                input_error=error,
            )
            if changed and verdict == "noise":
                reason = f"{match.actual.op_type} in place of {match.reference.op_type}, {reason}"
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict == "noise":
                self._noise[contents] = _Noise(measured, small | causes)
                return pair
        causes = causes or set(small)
        if causes:
            for cause in causes:
                self._drafts[cause].explains += 1
            pair = replace(pair, explained=True, reason=f"{_CARRIED}{_extent(pair.measure)}")
            self._remember(pair, frozenset(causes), contents)
        return pair

    def _origin_of(self, match: Match, pair: Pair, clean: bool, input_noise: list[_Noise], changed: bool) -> _Cause:
        name = operator_class(match.reference.op_type)
        evidence = [f"{pair.record.label}: {pair.reason}"]
        hidden = False
        if changed:
            kind = "structure"
            evidence.append(f"{match.actual.op_type} in actual, {match.reference.op_type} in the reference")
        elif pair.verdict == "structure":
            kind = "structure"
        elif name in UNINITIALISED:
            kind, hidden = "uninitialised", True
        elif name in RANDOM:
            kind = "random"
        elif match.reference.op_type.startswith(_COLLECTIVE):
            kind = "collective"
        elif input_noise and pair.measure is not None and not pair.measure.nonfinite:
            largest = max(one.measure.rel_l2 for one in input_noise)
            kind = "amplification" if pair.measure.rel_l2 < _COMPUTE * largest else "compute"
            evidence.append(f"its inputs differ by rounding only (at most {largest:.2g})")
        else:
            kind = "compute"
        if clean and not input_noise:
            count = len(match.reference.inputs)
            evidence.append(f"all {count} recorded inputs are equal" if count else "no inputs are recorded")
        return self._add(_Draft(kind, pair, evidence, hidden=hidden))

    def _compare(self, match: Match, a: Optional[Record], b: Optional[Record]) -> tuple[Pair, Any]:
        """The pair without a judgement on its numbers, and the contents that name the difference."""
        if a is None or b is None:
            side = "the reference" if a is None else "actual"
            return Pair(a, b, match.how, match.confidence, "unmatched", f"recorded in {side} only"), None
        skipped = next((one.attrs["skipped"] for one in (a, b) if one.attrs.get("skipped")), None)
        if skipped is not None:
            return Pair(a, b, match.how, match.confidence, "unreadable", f"not stored: {skipped}"), None
        contents = (_identity(a), _identity(b))
        if None not in contents and a.content == b.content:
            return Pair(a, b, match.how, match.confidence, "equal"), contents
        if a.shape != b.shape:
            reason = f"shape {_text(a.shape)} instead of {_text(b.shape)}"
            return Pair(a, b, match.how, match.confidence, "structure", reason), contents
        key = (a.content, b.content) if None not in contents else None
        found = self._measured.get(key) if key is not None else None
        if found is None:
            try:
                left, right = a.numpy(), b.numpy()
                if key is None and left.dtype == right.dtype and left.tobytes() == right.tobytes():
                    return Pair(a, b, match.how, match.confidence, "equal"), contents
                found = measure(left, right)
            except AscendDumpError as error:
                return Pair(a, b, match.how, match.confidence, "unreadable", str(error)), contents
            if key is not None:
                self._measured[key] = found
        if a.dtype != b.dtype:
            reason = f"{a.dtype} instead of {b.dtype}"
            return (
                Pair(a, b, match.how, match.confidence, "structure", reason, transformation="cast", measure=found),
                contents,
            )
        return Pair(a, b, match.how, match.confidence, "different", measure=found), contents

    def _remember(self, pair: Pair, causes: frozenset[_Cause], contents: Any = None) -> None:
        a, b = pair.actual, pair.reference
        if a is None or b is None:
            return
        self._causes[contents if contents is not None else (_identity(a), _identity(b))] = causes
        for side, record in zip(self._of_side, (a, b)):
            if _identity(record) is not None:
                side[_identity(record)] = causes
        if storage_of(a) is not None:
            self._written[storage_of(a), storage_of(b)] = causes

    def _add(self, draft: _Draft) -> _Cause:
        self._drafts.append(draft)
        return len(self._drafts) - 1

    def _kind_of_input(self, match: Match, b: Optional[Record]) -> str:
        if not self._seen_operator:
            return "input" if b is None or b.index == 0 else "parameter"
        # What no recorded operator wrote, read inside a module, belongs to the module.
        return "parameter" if match.reference.module or match.reference.phase == "other" else "input"


def _extent(measure: Optional[Measure]) -> str:
    if measure is None:
        return ""
    if measure.nonfinite:
        return f" ({measure.nonfinite} of {measure.count} elements NaN or Inf on one side only)"
    return f" (relative error {measure.rel_l2:.2g})"


def _sides(a: list[Record], b: list[Record]) -> list[tuple[Optional[Record], Optional[Record]]]:
    """Records of the same place of two operators."""
    left = {(record.io, record.index): record for record in a}
    right = {(record.io, record.index): record for record in b}
    return [(left.get(place), right.get(place)) for place in sorted({*left, *right})]


def _identity(record: Record) -> Optional[Any]:
    """The bytes of a tensor whatever view is taken of them; None where the dump has no hash."""
    content = record.content
    return None if content is None else content[0]


def _dtype(a: Optional[Record], b: Optional[Record]) -> str:
    """The coarser type of both."""
    names = [record.dtype or "" for record in (a, b) if record is not None]
    known = [(kind.mantissa, name) for name in names for kind in (float_kind(name),) if kind is not None]
    return min(known)[1] if known else names[0]


def _input_error(operator: Operator, noise: list[_Noise], output: Measure) -> float:
    """What the noise in the inputs may make of the output, relative to the output's rms."""
    total = 0.0
    for one in (each.measure for each in noise):
        scale = 1.0
        if input_scale_matters(operator.op_type) and output.rms > 0:
            # A sum of signed terms: the error stays, the result shrinks.
            scale = max(1.0, one.rms * math.sqrt(max(1.0, one.count / max(output.count, 1))) / output.rms)
        total += one.rel_l2 * scale
    return total


def _where_from(a: Optional[Record], b: Optional[Record]) -> str:
    return "no recorded operator wrote it before" if a is not None and b is not None else "recorded on one side only"


def _text(shape: Optional[tuple[int, ...]]) -> str:
    return "unknown" if shape is None else str(list(shape))


def _next_request(draft: _Draft) -> dict[str, Any]:
    record = draft.pair.record
    request: dict[str, Any] = {"layers": record.op_name, "data": "tensor"}
    if record.step is not None:
        request["steps"] = str(record.step)
    if record.rank is not None:
        request["ranks"] = str(record.rank)
    return request
