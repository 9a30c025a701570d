"""Walk the paired operators of one step in execution order, judge each tensor, and find the differences that nothing
before explains.

A difference is known by its contents: the pair (content of actual, content of reference). A tensor whose pair of
contents was seen before carries an old difference on. One with a new pair has its cause here, if the inputs of its
operator do not differ, or in something that was not recorded, if it is an input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.compare._arguments import differing_arguments, same_generator
from ascend_dump.analysis.compare._consequences import why_both_are_right
from ascend_dump.analysis.compare._floats import float_kind
from ascend_dump.analysis.compare._match import Match
from ascend_dump.analysis.compare._measure import Measure
from ascend_dump.analysis.compare._names import is_view
from ascend_dump.analysis.compare._of_operator import judge_output, measure_terms, rounding_type
from ascend_dump.analysis.compare._operators import Operator, storage_of
from ascend_dump.analysis.compare._records import Difference, Differences, Types, identity_of, type_of
from ascend_dump.analysis.compare._rerun import Rerun
from ascend_dump.analysis.compare._result import Origin, Pair
from ascend_dump.analysis.compare._roles import Roles
from ascend_dump.analysis.compare._scale import natural_scale
from ascend_dump.analysis.compare._shards import Portions
from ascend_dump.analysis.compare._spread import Spread
from ascend_dump.analysis.compare._types import (
    COLLECTIVES,
    COPIES,
    EXPONENTIALS,
    RANDOM,
    VIEWS,
    input_scale_matters,
    keeps_relative_errors,
    operator_class,
    rounds_as_inputs,
)
from ascend_dump.analysis.compare._undefined import why_undefined, written_inputs
from ascend_dump.analysis.compare._verdict import Noise, Rules, judge
from ascend_dump.analysis.compare._wild import follows_inputs, measure_others
from ascend_dump.reading import Record

__all__ = ["Divergence"]

#: Identifies an origin while its step is walked.
_Cause = int
_NONE: frozenset[_Cause] = frozenset()
#: The reason of a difference that an origin explains.
_CARRIED = "carried on from an earlier difference"
#: An output so many times further off than its inputs was computed wrongly, however much the operator enlarges errors.
_COMPUTE = 1e3
#: Larger tensors are not looked at element by element: copies of them in float64 would take gigabytes.
_MOST_ELEMENTS = 1 << 26
_CARRIED_NOISE = "carried on from rounding before"
_CARRIED_UNDEFINED = "carried on from what carries no defined value"
_MADE_ALONE = "made by an operator that the other side does not run"
_NOT_WRITTEN = "no recorded operator wrote it before"
_SAME_STATE = "its generator was in the same state on both sides"
_OTHER_STATE = "its generator was in another state already: seed it alike, or look for who drew from it before"


class _Noise(NamedTuple):
    """A difference within rounding.

    error   relative to the norm
    unit    the coarsest unit of rounding that it may come from
    causes  the origins whose consequence it may be
    """

    measure: Measure
    error: float
    unit: float
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

    def __init__(self, rules: Rules, rerun: Optional[Rerun] = None) -> None:
        """rerun: runs operators again whose outputs differ."""
        self._rules = rules
        self._rerun = rerun
        self._causes: dict[Any, frozenset[_Cause]] = {}
        #: Differences within rounding, with the origins that they may be a small consequence of.
        self._noise: dict[Any, _Noise] = {}
        self._differences = Differences()
        #: By contents of one side: what an operator without a partner copied them from.
        self._copies: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._written: dict[Any, frozenset[_Cause]] = {}
        #: By contents of one side: what an operator without a partner made, and what differs there.
        self._of_side: tuple[dict[Any, frozenset[_Cause]], dict[Any, frozenset[_Cause]]] = ({}, {})
        self._drafts: list[_Draft] = []
        self._seen_operator = False
        self.begin_step(())

    def begin_step(
        self,
        reference: Sequence[Operator],
        cast: Optional[tuple[str, str]] = None,
        views: Optional[tuple[dict[Any, Any], dict[Any, Any]]] = None,
        spread: Optional[Spread] = None,
        shards: Optional[Portions] = None,
        types: Optional[Types] = None,
    ) -> None:
        """Numbers of storages begin anew with each step.

        cast: the types of actual and reference, where the one program as a whole computes in another type.
        views: of programs in two frameworks, by contents: what they are a view of. Layouts may differ there.
        types: of such programs, in which types each has a tensor.
        spread: another run of the reference.
        shards: the other ranks, where several of one side hold parts of what the one of the other side has.
        """
        self._spread = spread
        self._differences.shards = shards
        self._differences.layouts = views is not None
        self._differences.types = types or ({}, {})
        for copies, known in zip(self._copies, views or ()):
            copies.update(known)
        self._written.clear()
        self._seen_operator = False
        self._reference = reference
        self._roles: Optional[Roles] = None
        self._differences.cast = cast

    @property
    def is_clean(self) -> bool:
        """Whether no difference is known yet, so that tensors with equal bytes change nothing of what is."""
        return not self._causes

    def walk(self, match: Match) -> list[Pair]:
        """Judge the tensors of two paired operators."""
        actual, reference = match.actual, match.reference
        # Another name in another framework is no change of the program.
        changed = match.tensors is None and operator_class(actual.op_type) != operator_class(reference.op_type)
        pairs: list[Pair] = []
        causes: set[_Cause] = set()
        input_noise: list[_Noise] = []
        unreadable = False
        written = written_inputs(reference)
        late = [(a, b) for a, b in match.inputs if b is not None and b.index in written]
        for a, b in match.inputs:
            if (a, b) in late:
                continue
            pair, noise, why = self._input(match, a, b)
            pairs.append(pair)
            causes |= why
            unreadable = unreadable or pair.verdict == "unreadable"
            if noise is not None:
                input_noise.append(noise)
        clean = not causes
        made: Optional[_Cause] = None
        for a, b in (*late, *match.outputs):
            pair = self._output(match, a, b, causes, input_noise, changed)
            if pair.verdict in ("different", "structure") and not pair.explained:
                if made is None:
                    made = self._origin_of(match, pair, clean and not unreadable, input_noise, changed)
                assert a is not None
                assert b is not None
                self._remember(pair, (identity_of(a), identity_of(b)), frozenset({made}))
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
            place = 0 if of_actual else 1
            known = self._of_side[place]
            # An origin only if something differs that was made of it.
            draft = _Draft("structure", outputs[0], [f"{operator.op_type} runs in {side} only"], hidden=True)
            read = [identity_of(one) for one in operator.inputs]
            causes = frozenset({self._add(draft)}).union(*(known.get(one, _NONE) for one in read))
            for pair in outputs:
                written = identity_of(pair.record)
                known[written] = causes
                if operator_class(operator.op_type) in COPIES and read and read[0] != written:
                    copies = self._copies[place]
                    copies[written] = copies.get(read[0], read[0])
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
        found = self._between(a, b)
        pair = _pair(match, a, b, found)
        if a is None or b is None or found.verdict in ("equal", "unreadable"):
            causes = self._causes.get(found.contents, _NONE) if found.contents and pair.verdict != "equal" else _NONE
            return pair, None, causes
        known: Optional[frozenset[_Cause]] = None
        noise: Optional[_Noise] = None
        for contents in self._names(found.contents):
            known = known if known is not None else self._causes.get(contents)
            if noise is None:
                noise = self._noise.get(contents)
                if noise is not None and not _may_be_part_of(found, noise, type_of(a, b)):
                    noise = None
        if known is None and noise is None and storage_of(a) is not None:
            known = self._written.get((storage_of(a), storage_of(b)))
        if known is not None and found.verdict != "structure" and self._undefined(known):
            return replace(pair, verdict="noise", explained=True, reason=_CARRIED_UNDEFINED), None, known
        if known is not None:
            return replace(pair, explained=True, reason=_CARRIED), None, known
        if noise is not None:
            verdict = "undecided" if found.bounds else "noise"
            if found.measure is not None and not found.bounds:
                # It may be another part of the same memory, which differs more, or less.
                noise = noise._replace(measure=found.measure, error=found.measure.rel_l2)
            return replace(pair, verdict=verdict, explained=True, reason=_CARRIED_NOISE), noise, _NONE
        made = [side.get(name, _NONE) for side, name in zip(self._of_side, found.contents or ())]
        causes = frozenset().union(*made)
        if found.measure is not None and found.verdict != "structure":
            rules = self._rules.of(match.reference.op_name, match.reference.op_type)
            verdict, reason = self._judged(found, judge(found.measure, type_of(a, b), rules, cast=found.cast), b)
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                # Several ranks bring together what one rank has without that: it is no change of the program.
                of = causes if self._differences.shards is None else _NONE
                return pair, self._keep_noise(found, type_of(a, b), of), _NONE
        if causes and self._regrouped(causes):
            return replace(pair, verdict="unmatched", explained=True, reason=_MADE_ALONE), None, causes
        if causes:
            return replace(pair, explained=True, reason=_CARRIED), None, causes
        cause = self._add(
            _Draft(self._kind_of_input(match, b), pair, [f"{pair.record.label}: {pair.reason}", _NOT_WRITTEN])
        )
        if found.contents is not None:
            self._causes[found.contents] = frozenset({cause})
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
        found = self._between(a, b)
        pair = _pair(match, a, b, found)
        if a is None or b is None or found.verdict in ("equal", "unreadable"):
            if found.verdict == "equal" and found.contents is not None:
                self._causes.pop(found.contents, None)
            return pair
        if found.verdict != "structure":
            undefined = self._undefined_output(match, pair, found, causes)
            if undefined is not None:
                return undefined
        small = frozenset().union(*(one.causes for one in input_noise))
        if input_noise and found.contents in self._noise and operator_class(match.reference.op_type) in VIEWS:
            return replace(pair, verdict="undecided" if found.bounds else "noise", reason=_CARRIED_NOISE)
        if found.measure is not None and found.verdict != "structure":
            if self._regrouped(causes):
                kind = float_kind(type_of(a, b))
                unit = kind.unit if kind is not None else 0.0
                input_noise = [*input_noise, _Noise(found.measure, 4 * unit, unit, frozenset(causes))]
            verdict, reason = self._judge_output(match, a, b, found, input_noise, clean=not causes)
            if changed and verdict == "noise":
                reason = f"{match.actual.op_type} in place of {match.reference.op_type}, {reason}"
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                self._keep_noise(found, type_of(a, b), small | causes, input_noise)
                return pair
        causes = causes or set(small)
        if causes:
            for cause in causes:
                self._drafts[cause].explains += 1
            pair = replace(pair, explained=True, reason=f"{_CARRIED}{_extent(pair.measure)}")
            self._remember(pair, found.contents, frozenset(causes))
        return pair

    def _undefined_output(
        self, match: Match, pair: Pair, found: Difference, causes: Collection[_Cause]
    ) -> Optional[Pair]:
        """The pair of an output that differs and carries no value of the program; None of one that carries one."""
        operator, record = match.reference, pair.reference
        assert record is not None
        listed = record.index in self._rules.of(operator.op_name, operator.op_type).undefined
        why = "the rules given say so" if listed else why_undefined(operator, record)
        if why is not None:
            pair = replace(pair, verdict="noise", reason=f"no defined value: {why}", undefined=why, measure=None)
            cause = self._add(_Draft("uninitialised", pair, [f"{pair.record.label}: {pair.reason}"], hidden=True))
            self._remember(pair, found.contents, frozenset({cause}))
            return pair
        if self._undefined(causes) and _moves(operator.op_type):
            pair = replace(pair, verdict="noise", explained=True, reason=_CARRIED_UNDEFINED)
            self._remember(pair, found.contents, frozenset(causes))
            return pair
        return None

    def _undefined(self, causes: Collection[_Cause]) -> bool:
        """Whether all that is known of a difference is that it came from what carries no defined value."""
        return bool(causes) and all(self._drafts[one].kind == "uninitialised" for one in causes)

    def _judge_output(
        self, match: Match, a: Record, b: Record, found: Difference, input_noise: list[_Noise], *, clean: bool
    ) -> tuple[str, str]:
        operator = match.reference
        assert found.measure is not None
        dtype = rounding_type(operator, b) if rounds_as_inputs(operator.op_type) else type_of(a, b)

        def said(measured: Measure, scale: float = 0.0) -> tuple[str, str]:
            noise = _made_of(operator, input_noise, measured, scale)
            verdict = judge_output(operator, b, measured, dtype, self._rules, noise=noise, scale=scale, cast=found.cast)
            return self._judged(found, verdict, b)

        verdict, reason = said(found.measure)
        if verdict == "different" and not found.measure.nonfinite:
            # All that follows takes reading, so it is looked at where something differs only.
            scale = natural_scale(operator, b)
            if scale > found.measure.rms:
                verdict, reason = said(found.measure, scale)
        if verdict == "different" and clean and not found.bounds:
            settled = self._settled(match, a, b, dtype, input_noise)
            if settled is not None:
                verdict, reason = "noise", settled
        # An input that differs by more than rounding is no noise, however wild its elements are.
        if verdict == "different" and input_noise and clean and not found.bounds:
            unit = max(one.unit for one in input_noise)
            others = measure_others(a, b, _sides_of(match, b), unit)
            if others is not None:
                rest, count = others
                verdict, reason = said(rest)
                if verdict == "noise":
                    reason = f"{count} elements are rounding alone in its inputs already, the others {reason}"
        if verdict == "different" and self._rerun is not None and clean and not input_noise and not found.bounds:
            settled = self._rerun.settles(match, a, b)
            if settled is not None:
                verdict, reason = "noise", settled
        return verdict, reason

    def _settled(self, match: Match, a: Record, b: Record, dtype: str, input_noise: list[_Noise]) -> Optional[str]:
        """The reason why a difference is rounding, told element by element; None where it is not."""
        if math.prod(b.shape or ()) > _MOST_ELEMENTS:
            return None
        kind = float_kind(dtype)
        if kind is None:
            return why_both_are_right(match, a, b)
        if input_noise and keeps_relative_errors(match.reference.op_type):
            unit = max(kind.unit, *(one.unit for one in input_noise))
            if follows_inputs(a, b, _sides_of(match, b), self._rules.gain, unit):
                return "each element is as far off, relative to its size, as its inputs are"
        if not input_noise:
            apart = measure_terms(match.reference, a, b, dtype)
            if apart is not None:
                rules = self._rules
                verdict, reason = judge_output(match.reference, b, apart, dtype, rules, scale=1.0)
                return f"{reason}, of the terms of each element" if verdict == "noise" else None
        return None

    def _regrouped(self, causes: Collection[_Cause]) -> bool:
        """Whether all that is known of a difference is that operators run on one side only, in another type.

        Autograd adds gradients in another order there, so that neither side has the partial sums of the other.
        """
        return self._differences.cast is not None and bool(causes) and all(self._drafts[one].hidden for one in causes)

    def _judged(self, found: Difference, said: tuple[str, str], reference: Record) -> tuple[str, str]:
        """The verdict where the numbers are lower bounds, and where another run of the reference is known."""
        measured = found.measure
        if said[0] == "different" and measured is not None and self._spread is not None:
            reason = self._spread.covers(measured, reference)
            if reason is not None:
                said = ("noise", reason)
        if not found.bounds or measured is None:
            return said
        if said[0] == "different":
            if measured.nonfinite:
                return said
            return "different", f"statistics prove that elements differ by {measured.max_abs:.2g} at least"
        return "undecided", "statistics agree, which cannot prove that the tensors do"

    def _keep_noise(
        self, found: Difference, dtype: str, causes: frozenset[_Cause], made_of: Sequence[_Noise] = ()
    ) -> _Noise:
        assert found.measure is not None
        kind = float_kind(dtype)
        unit = max([kind.unit if kind is not None else 0.0, *(one.unit for one in made_of)])
        error = found.measure.rel_l2
        if found.bounds:
            # How far they are apart is not known: as far as noise may be.
            error = max(error, math.sqrt(unit))
        noise = _Noise(found.measure, error, unit, causes)
        if found.contents is not None:
            self._noise[found.contents] = noise
        return noise

    def _between(self, a: Optional[Record], b: Optional[Record]) -> Difference:
        return self._differences.between(a, b)

    def _names(self, contents: Optional[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """A difference and what it was before an operator without a partner copied one side of it."""
        if contents is None:
            return []
        names = [contents]
        for side, copies in enumerate(self._copies):
            source = copies.get(contents[side])
            if source is not None:
                names.append((source, contents[1]) if side == 0 else (contents[0], source))
        if len(names) == 3:
            names.append((names[1][0], names[2][1]))
        return names

    def _origin_of(self, match: Match, pair: Pair, clean: bool, input_noise: list[_Noise], changed: bool) -> _Cause:
        name = operator_class(match.reference.op_type)
        evidence = [f"{pair.record.label}: {pair.reason}"]
        arguments = differing_arguments(match.actual, match.reference)
        evidence += arguments
        if changed:
            kind = "structure"
            evidence.append(f"{match.actual.op_type} in actual, {match.reference.op_type} in the reference")
        elif pair.verdict == "structure" or arguments:
            kind = "structure"
        elif name in RANDOM:
            kind = "random"
            state = same_generator(match.actual, match.reference)
            if state is not None:
                evidence.append(_SAME_STATE if state else _OTHER_STATE)
        elif match.reference.op_type.startswith(COLLECTIVES):
            kind = "collective"
        elif input_noise and pair.measure is not None and not pair.measure.nonfinite:
            largest = max(one.error for one in input_noise)
            kind = "amplification" if pair.measure.rel_l2 < _COMPUTE * largest else "compute"
            evidence.append(f"its inputs differ by rounding only (at most {largest:.2g})")
        else:
            kind = "compute"
        if clean and not input_noise:
            count = len(match.reference.inputs)
            evidence.append(f"all {count} recorded inputs are equal" if count else "no inputs are recorded")
        if self._rerun is not None and pair.verdict == "different":
            evidence += self._rerun.evidence(match, pair.actual, pair.reference)
        return self._add(_Draft(kind, pair, evidence))

    def _remember(self, pair: Pair, contents: Optional[tuple[Any, Any]], causes: frozenset[_Cause]) -> None:
        a, b = pair.actual, pair.reference
        if a is None or b is None:
            return
        if contents is not None:
            self._causes[contents] = causes
            for side, name in zip(self._of_side, contents):
                side[name] = causes
        if storage_of(a) is not None:
            self._written[storage_of(a), storage_of(b)] = causes

    def _add(self, draft: _Draft) -> _Cause:
        self._drafts.append(draft)
        return len(self._drafts) - 1

    def _kind_of_input(self, match: Match, b: Record) -> str:
        if self._roles is None:
            self._roles = Roles(self._reference)
        return self._roles.kind_of(b, match.reference.module, first=not self._seen_operator)


def _may_be_part_of(found: Difference, noise: _Noise, dtype: str) -> bool:
    """Whether what differs may be elements of a tensor with known noise: none is further off than the worst of these,
    but for the rounding to another type."""
    if found.measure is None or found.bounds:
        return True
    kind = float_kind(dtype)
    rounding = 0.0 if kind is None else 2 * kind.unit * found.measure.rms * math.sqrt(found.measure.count)
    return found.measure.max_abs <= 2 * noise.measure.max_abs + rounding


def _pair(match: Match, a: Optional[Record], b: Optional[Record], found: Difference) -> Pair:
    return Pair(
        a,
        b,
        match.how,
        match.confidence,
        found.verdict,
        found.reason,
        "cast" if found.cast else found.layout,
        found.measure,
    )


def _moves(op_type: str) -> bool:
    """Whether an operator computes nothing: what it gives is what it was given."""
    return is_view(op_type) or operator_class(op_type) == "copy"


def _extent(measure: Optional[Measure]) -> str:
    if measure is None:
        return ""
    if measure.nonfinite:
        return f" ({measure.nonfinite} of {measure.count} elements NaN or Inf on one side only)"
    return f" (relative error {measure.rel_l2:.2g})"


def _sides_of(match: Match, output: Record) -> list[tuple[Record, Record]]:
    """The inputs that an output is made of element by element: of an operator on lists, those of the same place."""
    sides = [(a, b) for a, b in match.inputs if a is not None and b is not None]
    if operator_class(match.reference.op_type).startswith("_foreach_"):
        count = max(len(match.reference.outputs), 1)
        sides = [(a, b) for a, b in sides if b.index % count == output.index % count]
    return sides


def _made_of(operator: Operator, noise: list[_Noise], output: Measure, scale: float) -> Noise:
    """What the noise in the inputs may make of the output."""
    size = most = each = 0.0
    for one in noise:
        natural = max(output.rms, scale)
        # Where a few elements are much larger than the others, so are their errors, here as there.
        most += one.measure.max_abs * (max(1.0, natural / one.measure.rms) if one.measure.rms else 1.0)
        if operator_class(operator.op_type) in EXPONENTIALS:
            each += one.measure.max_abs
        if input_scale_matters(operator.op_type):
            # A sum of signed terms: the error stays, the result shrinks.
            share = max(1.0, one.measure.count / max(output.count, 1))
            natural = max(natural, one.measure.rms * math.sqrt(share))
        # Of a reference that is all zero an error has no relative size.
        size += one.error * natural if math.isfinite(one.error) else one.measure.rmse
    return Noise(size, max((one.unit for one in noise), default=0.0), most, each)


def _next_request(draft: _Draft) -> dict[str, Any]:
    record = draft.pair.record
    request: dict[str, Any] = {"layers": record.op_name, "data": "tensor"}
    if record.step is not None:
        request["steps"] = str(record.step)
    if record.rank is not None:
        request["ranks"] = str(record.rank)
    return request
