"""Walk the paired operators of one step in execution order, judge each tensor, and find the differences that nothing
before them explains.

A tensor whose difference is known already carries it on. A new difference in an output is caused by its operator, if
the inputs of that do not differ; one in an input is caused by something that was not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Optional

from ascend_dump.analysis.alignment.shards import Portions, is_of_parts
from ascend_dump.analysis.explaining.changed_arguments import Calls
from ascend_dump.analysis.explaining.input_evidence import KnownInputs, inputs_of, is_compared
from ascend_dump.analysis.explaining.input_kind import Roles, writes
from ascend_dump.analysis.explaining.known_differences import Carried
from ascend_dump.analysis.explaining.origins import Draft, add_effect, explain, told
from ascend_dump.analysis.explaining.results import ChangedCall, Origin, Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Difference, Differences, Types, identity_of, type_of
from ascend_dump.analysis.operators.arguments import differing_arguments, same_generator
from ascend_dump.analysis.operators.collectives import is_contribution
from ascend_dump.analysis.operators.module_calls import NOT_RECORDED, ModuleCalls
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COLLECTIVES, COPIES, RANDOM, VIEWS, operator_class
from ascend_dump.analysis.operators.undefined_outputs import why_undefined, written_inputs
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.analysis.replay.rerun import Rerun
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["Divergence"]

#: The reason of a difference that an origin explains.
_CARRIED = "carried on from an earlier difference"
#: An output so many times further off than its inputs was computed wrongly, however much the operator enlarges errors.
_COMPUTE = 1e3
_CARRIED_NOISE = "carried on from rounding before"
_UNREAD = "memory that the operator overwrites without reading it"
_CARRIED_UNDEFINED = "carried on from what carries no defined value"
_MADE_ALONE = "made by an operator that the other side does not run"
_NOT_WRITTEN = "no recorded operator wrote it before"
_SAME_STATE = "its generator was in the same state on both sides"
_OTHER_STATE = "its generator was in another state already: seed it alike, or look for who drew from it before"


class Divergence:
    """The state of the walk over the steps of one rank: what differences are known, and where they came from."""

    def __init__(self, rules: Rules, rerun: Optional[Rerun] = None) -> None:
        """rerun: runs operators again whose outputs differ."""
        self._judge = NoiseJudge(rules, None if rerun is None else rerun.settles)
        self._rules = rules
        self._rerun = rerun
        self._differences = Differences()
        self._carried = Carried()
        self._calls = Calls()
        self._modules = ModuleCalls()
        self._drafts: list[Draft] = []
        self._seen_operator = False
        #: How many records of the operators so far could not be read.
        self._unread = 0
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
        self._judge.spread = spread
        self._differences.shards = shards
        self._differences.layouts = views is not None
        self._differences.types = types or ({}, {})
        self._carried.begin_step(views)
        self._calls.begin_step()
        self._seen_operator = False
        self._reference = reference
        self._roles: Optional[Roles] = None
        #: The unreadable records of this step that are told.
        self._broken: set[int] = set()
        self._differences.cast = cast

    @property
    def is_clean(self) -> bool:
        """Whether no difference is known yet, so that tensors with equal bytes change nothing of what is."""
        return not self._carried

    def walk(self, match: Match) -> list[Pair]:
        """Judge the tensors of two paired operators."""
        actual, reference = match.actual, match.reference
        # Another name in another framework is no change of the program.
        changed = match.tensors is None and operator_class(actual.op_type) != operator_class(reference.op_type)
        pairs: list[Pair] = []
        causes: set[OriginNumber] = set()
        noise: list[InputNoise] = []
        written = written_inputs(reference)
        late = [(a, b) for a, b in match.inputs if b is not None and b.index in written]
        for a, b in match.inputs:
            if (a, b) in late:
                continue
            puts_in = None if a is None else is_contribution(a)
            pair, of_input, why = self._input(match, a, b, is_overwritten=puts_in is False)
            pairs.append(pair)
            causes |= why
            if puts_in and pair.verdict == "different" and self._differences.shards is None:
                # Other ranks get it, so it needs no output on this one that differs.
                add_effect(pair, [self._drafts[cause] for cause in why])
            if of_input is not None:
                noise.append(of_input)
        self._judge.of_parts = self._differences.shards is not None and any(
            is_of_parts(pair.transformation) for pair in pairs
        )
        for side, records in enumerate(match.unpaired_inputs):
            for record in records:
                why, of_input = self._of_one(side, record)
                causes |= why
                if of_input is not None:
                    noise.append(of_input)
        if match.tensors is None:
            if len(pairs) == 1 and pairs[0].verdict != "equal":
                self._calls.read_number(match, pairs[0], causes, noise)
            self._explain_call(match, causes, noise, changed)
        given = tuple(pairs)
        blind = any(match.unpaired_inputs) and not any(map(is_compared, given))
        made: Optional[OriginNumber] = None
        for a, b in (*late, *match.outputs):
            pair = self._output(match, a, b, causes, noise, changed, blind=blind)
            if writes(reference.op_type):
                self._carried.add_written_by_both(a, b)
            if pair.verdict in ("different", "structure") and not pair.explained:
                if made is None:
                    made = self._origin_of(match, pair, inputs_of(match, given, written, noise), changed)
                assert a is not None
                assert b is not None
                self._remember(pair, (identity_of(a), identity_of(b)), frozenset({made}))
            pairs.append(pair)
        if made is None and match.tensors is None:
            if any(_is_whole(one) for one in pairs if one.record.io != "input"):
                for cause in causes:
                    self._drafts[cause].settled = True
            self._note_call(match, pairs, causes, changed)
        self._end_module(match, pairs, causes if made is None else {*causes, made})
        pairs += self._broken_pairs(match)
        self._unread += _unread_in(pairs)
        self._seen_operator = True
        return pairs

    def _end_module(self, match: Match, pairs: Sequence[Pair], causes: Collection[OriginNumber]) -> None:
        record = next(match.reference.records, None)
        if record is not None:
            differs = any(pair.verdict in ("different", "structure") for pair in pairs)
            self._modules.end(record, causes if differs else NO_ORIGINS)

    def _broken_pairs(self, match: Match) -> Iterator[Pair]:
        """The unreadable records of both operators, but those told before: an operator may be in several matches."""
        for operator in (match.actual, match.reference):
            for record in operator.broken:
                if id(record) not in self._broken:
                    self._broken.add(id(record))
                    a, b = (record, None) if operator is match.actual else (None, record)
                    yield Pair(a, b, match.how, match.confidence, "unreadable", str(record.error))

    def _explain_call(self, match: Match, causes: set[OriginNumber], noise: list[InputNoise], changed: bool) -> None:
        """Add the origins and the noise that explain that the operators are called with different arguments."""
        known = self._calls.causes(match, changed)
        for one in known.origins - causes if self._calls.of_forward(match.reference) else ():
            self._drafts[one].backward.append(match.actual.label)
        causes |= known.origins
        noise.extend(known.noise)

    def _note_call(self, match: Match, pairs: Sequence[Pair], causes: Collection[OriginNumber], changed: bool) -> None:
        """Note an operator that is called with different arguments although the differences of its outputs are
        explained."""
        wrong = ("different", "structure")
        if all(one.verdict == "equal" for one in pairs):
            self._calls.add_equal(match)
            return
        # What a program is called with may follow from a shape.
        if any(pair.record.io == "input" and pair.verdict == "structure" for pair in pairs):
            self._calls.add_reshaped(match.reference, causes)
            return
        output = next(
            (one for one in pairs if one.record.io != "input" and one.explained and one.verdict in wrong), None
        )
        if output is not None:
            self._calls.add_changed(match, output, causes, changed)

    def only(self, operator: Operator, *, of_actual: bool) -> list[Pair]:
        """The records of an operator that only one side has."""
        side = "actual" if of_actual else "the reference"
        found: list[Pair] = []
        for record in operator.records:
            verdict, reason = "unmatched", f"{operator.op_type} runs in {side} only"
            if record.error is not None:
                verdict, reason = "unreadable", str(record.error)
            found.append(Pair(record if of_actual else None, None if of_actual else record, "", 0.0, verdict, reason))
        self._unread += _unread_in(found)
        outputs = [pair for pair in found if pair.record.io != "input" and pair.verdict == "unmatched"]
        if outputs:
            # An origin only if something differs that was made of it.
            # Those of one line are one change of the program.
            joined = (side, outputs[0].record.step, operator.module, operator.source) if operator.source else None
            said = [f"{operator.op_type} runs in {side} only"]
            draft = Draft("structure", outputs[0], said, hidden=True, joined=joined)
            if self._differences.shards is None:
                number = self._calls.add_alone(0 if of_actual else 1, operator, lambda: self._add(draft))
            else:
                # What ranks do to bring parts together is no change of the program, and its gradients none that follow.
                number = self._add(draft)
            self._modules.add_alone(outputs[0].record, number)
            self._carried.add_alone(
                0 if of_actual else 1,
                [identity_of(one) for one in operator.inputs],
                [identity_of(pair.record) for pair in outputs],
                number,
                copied=operator_class(operator.op_type) in COPIES,
            )
            for record in operator.outputs:
                if _is_write(record, operator):
                    self._carried.add_written_alone(0 if of_actual else 1, record, number)
        return found

    def origins(self) -> list[Origin]:
        """What was found, in the order it was found."""
        return told(self._drafts)

    def changed(self) -> list[ChangedCall]:
        """Operators called with different arguments whose difference an origin explains."""
        return self._calls.changed

    def _input(
        self, match: Match, a: Optional[Record], b: Optional[Record], *, is_overwritten: bool
    ) -> tuple[Pair, Optional[InputNoise], frozenset[OriginNumber]]:
        found = self._differences.between(a, b)
        pair = _pair(match, a, b, found)
        if a is None or b is None:
            causes, noise = self._of_one(1 if a is None else 0, pair.record)
            return pair, noise, causes
        if found.verdict in ("equal", "unreadable"):
            return pair, None, NO_ORIGINS if found.verdict == "equal" else self._carried.exactly(found.contents)
        if found.verdict != "structure" and (is_overwritten or is_unread(b)):
            pair = replace(
                pair, verdict="noise", reason=f"no defined value: {_UNREAD}", undefined=_UNREAD, measure=None
            )
            return pair, None, NO_ORIGINS
        known, noise = self._carried.look_up(a, b, found)
        if known is not None and found.verdict != "structure" and self._undefined(known):
            return replace(pair, verdict="noise", explained=True, reason=_CARRIED_UNDEFINED), None, known
        if known is not None:
            return replace(pair, explained=True, reason=_CARRIED), None, known
        if noise is not None:
            verdict = "undecided" if found.bounds else "noise"
            if found.measure is not None and not found.bounds:
                # It may be another part of the same memory, which differs more, or less.
                noise = noise._replace(measure=found.measure, error=found.measure.rel_l2)
            return replace(pair, verdict=verdict, explained=True, reason=_CARRIED_NOISE), noise, NO_ORIGINS
        causes = self._carried.of_sides(found.contents)
        if found.measure is not None and found.verdict != "structure":
            verdict, reason = self._judge.of_input(match, a, b, found)
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                # Several ranks bring together what one rank has without that: it is no change of the program.
                of = causes if self._differences.shards is None else NO_ORIGINS
                return pair, self._carried.add_noise(found, type_of(a, b), of), NO_ORIGINS
        if causes and self._regrouped(causes):
            return replace(pair, verdict="unmatched", explained=True, reason=_MADE_ALONE), None, causes
        causes = causes or self._modules.of_input(b)
        if causes:
            return replace(pair, explained=True, reason=_CARRIED), None, causes
        kind = self._kind_of_input(match, b)
        # Other memory is freed, and its address given to what the program brings from outside.
        written = self._carried.of_memory(a, b) if kind == "parameter" else NO_ORIGINS
        if written:
            self._carried.add(found.contents, written)
            return replace(pair, explained=True, reason=_CARRIED), None, written
        evidence = [f"{pair.record.label}: {pair.reason}", _NOT_WRITTEN, *_not_read(self._unread)]
        if is_of_module(b) and kind == "parameter":
            # Modules are given what functions made of the outputs of others.
            kind = "unknown"
            evidence.append(NOT_RECORDED)
        joined = (kind, b.step, match.reference.position)
        new = frozenset({self._add(Draft(kind, pair, evidence, first_seen=True, joined=joined))})
        self._carried.add(found.contents, new)
        return pair, None, new

    def _of_one(self, side: int, record: Record) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """What an input without partner carries on.

        Operators that the other side does not run differ by that alone, which says nothing of the values.
        """
        return self._carried.of_one(side, record, lambda one: not self._drafts[one].hidden)

    def _output(
        self,
        match: Match,
        a: Optional[Record],
        b: Optional[Record],
        causes: set[OriginNumber],
        input_noise: list[InputNoise],
        changed: bool,
        *,
        blind: bool,
    ) -> Pair:
        """blind: the operator has inputs, but none of them could be compared, so each may differ by rounding."""
        found = self._differences.between(a, b)
        pair = _pair(match, a, b, found)
        if a is None or b is None or found.verdict in ("equal", "unreadable"):
            if found.verdict == "equal":
                self._carried.forget(found.contents)
            return pair
        if found.verdict != "structure":
            undefined = self._undefined_output(match, pair, found, causes)
            if undefined is not None:
                return undefined
        small = NO_ORIGINS.union(*(one.causes for one in input_noise))
        is_view_of_noise = input_noise and operator_class(match.reference.op_type) in VIEWS
        if is_view_of_noise and self._carried.is_noise(found.contents):
            return replace(pair, verdict="undecided" if found.bounds else "noise", reason=_CARRIED_NOISE)
        if found.measure is not None and found.verdict != "structure":
            if self._regrouped(causes) or (blind and not causes and not input_noise):
                kind = float_kind(type_of(a, b))
                unit = kind.unit if kind is not None else 0.0
                roundings = 4 if causes else 1
                input_noise = [*input_noise, InputNoise(found.measure, roundings * unit, unit, frozenset(causes))]
            verdict, reason = self._judge.of_output(match, a, b, found, input_noise, clean=not causes)
            if changed and verdict == "noise":
                reason = f"{match.actual.op_type} in place of {match.reference.op_type}, {reason}"
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                self._carried.add_noise(found, type_of(a, b), small | causes, input_noise)
                return pair
        causes |= self._modules.of_output(b)
        causes = causes or set(small)
        if causes:
            explain(pair, [self._drafts[cause] for cause in causes])
            pair = replace(pair, explained=True, reason=f"{_CARRIED}{_extent(pair.measure)}")
            self._remember(pair, found.contents, frozenset(causes))
        return pair

    def _undefined_output(
        self, match: Match, pair: Pair, found: Difference, causes: Collection[OriginNumber]
    ) -> Optional[Pair]:
        """The pair of an output that differs and carries no value of the program; None of one that carries one."""
        operator, record = match.reference, pair.reference
        assert record is not None
        listed = record.index in self._rules.of(operator.op_name, operator.op_type).undefined
        why = "the rules given say so" if listed else why_undefined(operator, record)
        if why is not None:
            pair = replace(pair, verdict="noise", reason=f"no defined value: {why}", undefined=why, measure=None)
            cause = self._add(Draft("uninitialised", pair, [f"{pair.record.label}: {pair.reason}"], hidden=True))
            self._remember(pair, found.contents, frozenset({cause}))
            return pair
        if self._undefined(causes) and _moves(operator.op_type):
            pair = replace(pair, verdict="noise", explained=True, reason=_CARRIED_UNDEFINED)
            self._remember(pair, found.contents, frozenset(causes))
            return pair
        return None

    def _undefined(self, causes: Collection[OriginNumber]) -> bool:
        """Whether all that is known of a difference is that it came from what carries no defined value."""
        return bool(causes) and all(self._drafts[one].kind == "uninitialised" for one in causes)

    def _regrouped(self, causes: Collection[OriginNumber]) -> bool:
        """Whether all that is known of a difference is that operators run on one side only, in another type.

        Autograd adds gradients in another order there, so that neither side has the partial sums of the other.
        """
        return self._differences.cast is not None and bool(causes) and all(self._drafts[one].hidden for one in causes)

    def _origin_of(self, match: Match, pair: Pair, inputs: KnownInputs, changed: bool) -> OriginNumber:
        name = operator_class(match.reference.op_type)
        evidence = [f"{pair.record.label}: {pair.reason}"]
        arguments = differing_arguments(match.actual, match.reference)
        if arguments:
            before = self._calls.origin_before(match.reference, arguments)
            if before is not None:
                self._drafts[before].explains += 1
                self._calls.add_origin(match.reference, arguments, changed, before)
                return before
        evidence += [one.text for one in arguments]
        evidence += self._calls.equal_forward(match.reference)
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
        elif match.reference.op_type.startswith(COLLECTIVES) and not inputs.unread:
            # What ranks put in may be recorded apart from what they get; `over_ranks` holds it against each other.
            kind = "collective"
        elif inputs.may_differ:
            kind = "unknown"
        elif inputs.statistics_agree:
            kind = "compute"
        elif inputs.noise and pair.measure is not None and not pair.measure.nonfinite:
            kind = "amplification" if pair.measure.rel_l2 < _COMPUTE * inputs.largest_error else "compute"
        else:
            kind = "compute"
        evidence += inputs.evidence
        of_module = is_of_module(pair.record)
        if of_module and kind == "compute":
            kind = "unknown"
            evidence.append(NOT_RECORDED)
        if kind == "unknown":
            evidence += inputs.unread_evidence
            evidence += _not_read(self._unread)
        if self._rerun is not None and pair.verdict == "different":
            evidence += self._rerun.evidence(match, pair.actual, pair.reference)
        # Parts of ranks and other layouts differ in shape too, and in no more than that unless their values differ.
        reshaped = (
            pair.verdict == "structure"
            and pair.actual is not None
            and pair.reference is not None
            and pair.actual.shape != pair.reference.shape
        )
        made = self._add(Draft(kind, pair, evidence, reshaped=reshaped, first_seen=of_module or not inputs.whole))
        self._calls.add_origin(match.reference, arguments, changed, made)
        return made

    def _remember(self, pair: Pair, contents: Optional[tuple[Any, Any]], causes: frozenset[OriginNumber]) -> None:
        if pair.actual is not None and pair.reference is not None:
            self._carried.add_written(pair.actual, pair.reference, contents, causes)

    def _add(self, draft: Draft) -> OriginNumber:
        self._drafts.append(draft)
        return len(self._drafts) - 1

    def _kind_of_input(self, match: Match, b: Record) -> str:
        if self._roles is None:
            self._roles = Roles(self._reference)
        return self._roles.kind_of(b, match.reference.module, first=not self._seen_operator)


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


def _unread_in(pairs: Sequence[Pair]) -> int:
    return sum(pair.verdict == "unreadable" for pair in pairs)


def _not_read(count: int) -> list[str]:
    """The evidence against an origin that records before it are unreadable."""
    return [f"{counted(count, 'earlier record')} could not be read: the cause may be among them"] if count else []


def _is_write(output: Record, operator: Operator) -> bool:
    """Whether an operator wrote this output to memory that it was given."""
    storage, given = storage_of(output), map(storage_of, operator.inputs)
    return writes(operator.op_type) and storage is not None and any(one and one[0] == storage[0] for one in given)


def _is_whole(output: Pair) -> bool:
    """Whether an output is equal or noise and has several elements: a single number may be equal by chance."""
    return output.verdict in ("equal", "noise") and math.prod(output.record.shape or ()) > 1


def _moves(op_type: str) -> bool:
    """Whether an operator computes nothing, so that its output holds the values of its input."""
    return is_view(op_type) or operator_class(op_type) == "copy"


def _extent(measure: Optional[Measure]) -> str:
    if measure is None:
        return ""
    if measure.nonfinite:
        return f" ({measure.nonfinite} of {measure.count} elements NaN or Inf on one side only)"
    return f" (relative error {measure.rel_l2:.2g})"
