"""Judge the inputs of an operator. Most differences are known; a new difference entered from outside the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.explaining.adapter_evidence import adapter_of
from ascend_dump.analysis.explaining.borders import judge_border, leave, note_agreement
from ascend_dump.analysis.explaining.drafts import Draft, add_effect
from ascend_dump.analysis.explaining.input_kind import InputKinds
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.rank_state import (
    FOLLOWS,
    FOLLOWS_ROUNDING,
    FOLLOWS_UNDEFINED,
    MAYBE_REARRANGED,
    NO_VALUE_YET,
    SAME_CONSTANT,
    Caller,
    OuterGradient,
    RankState,
)
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import Border
from ascend_dump.analysis.explaining.tracking.divided_data import number_of_parts
from ascend_dump.analysis.explaining.tracking.local_results import (
    NO_COUNTERPART,
    MadeAlone,
    is_index_into_part,
    only_passes_on,
)
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.narrowed import why_narrowed
from ascend_dump.analysis.numerics.permutations import IDENTITY, find_layout
from ascend_dump.analysis.numerics.tensor_pair import Difference, type_of
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.collectives import is_contribution
from ascend_dump.analysis.operators.module_calls import DRIFTED, NOT_RECORDED
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, is_same_name, storage_of
from ascend_dump.analysis.operators.properties import SHAPED
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["InputJudge"]

_UNREAD = "memory that the operator overwrites without reading it"
#: Operators whose second input has the classes of the rows of their first input.
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward", "cross_entropy_loss")
_ENLARGED = "its gradient is rounding alone, which an optimizer may enlarge to an update of full size"
_SHAPE = "the operator reads only its shape and type"
_SAME_NUMBERS = "the same numbers as integers: another type shows in the result"
_NO_EFFECT = "another tensor, from which an earlier operator computed the same"


class _JudgedInput(NamedTuple):
    """The pair of an input, with the origins of its difference, or with its noise.

    border: set if the input leaves a stretch (a part that is built differently) and differs
    """

    pair: Pair
    causes: frozenset[OriginNumber] = NO_ORIGINS
    noise: Optional[InputNoise] = None
    border: Optional[Border] = None


class InputJudge:
    """Judges inputs of the operators of a step."""

    def __init__(
        self, state: RankState, reference: Sequence[Operator], wiring: Optional[Wiring], sources: Optional[Wiring]
    ) -> None:
        """Create the judge of a step.

        reference  all operators of the reference
        wiring     the sources of all inputs; None if one side has parts, so that the programs work in other ways
        sources    as wiring, also if one side has parts
        """
        self._state = state
        self._wiring, self._sources = wiring, sources
        self._reference = reference
        self._kinds: Optional[InputKinds] = None
        self._is_first = True

    def judge_all(self, operators: OperatorPair) -> None:
        """Judge the inputs, and add their pairs, origins and noise to `operators`."""
        match = operators.match
        for a, b in match.inputs:
            self._count_parameter(b)
            if b is None or b.index not in operators.written:
                pair, causes, noise, border = self._judge(match, a, b)
                of_input = [] if noise is None else [noise]
                if border is not None:
                    operators.borders.append(border)
                    of_input += [noise.noise for stretch in border.stretches for noise in stretch.entering.values()]
                is_sent = pair.verdict == "different" and a is not None and is_contribution(a)
                if is_sent and self._state.differences.shards is None:
                    # Other ranks receive the tensor, so the outputs on this rank may all be equal.
                    add_effect(pair, self._state.drafts.of(causes))
                operators.inputs.append(pair)
                operators.add(causes, *of_input, index=None if b is None else b.index)
        for side, records in enumerate(match.unpaired_inputs):
            for record in records:
                causes, noise = self._state.look_up_unpaired(side, record)
                operators.add(causes, *(() if noise is None else (noise,)))
        self._is_first = False

    def judge_parameter(self, record: Record) -> None:
        """Compare a parameter with the parameter of the same name on the other side.

        This is done only if an operator without a partner is the first to read the parameter.
        """
        state, name = self._state, record.parameter
        if self._wiring is None or not name:
            return
        a, b = (reads.get(name) for reads in self._wiring.first_reads)
        if a is None or b is None or a.io != "input" or b.io != "input" or not (record is a or record is b):
            return
        difference, pair = state.compare(None, a, b)
        is_known = any(known is not None for known in state.known.look_up(a, b, difference))
        if difference.verdict != "different" or is_known or state.known.one_sided_writers(a, b):
            return
        makers = () if difference.bounds else state.stretches.makers(difference.contents)
        if makers:
            # A gradient that leaves a part which is built differently, where the terms of sums may cancel.
            border, _ = judge_border(state, makers, a, b, difference, pair)
            if border.causes:
                leave(state, border)
            return
        verdict, reason = state.judge.of_input(a, b, difference)
        if verdict == "different":
            pair = replace(pair, verdict=verdict, reason=reason)
            number = self._add_parameter(a, b, pair)
            state.known.add_written(a, b, difference.contents, frozenset({number}))

    def _add_parameter(self, a: Record, b: Record, pair: Pair) -> OriginNumber:
        evidence = [f"{a.label} ({a.parameter}): {pair.reason}", *self._state.unreadable_evidence()]
        return self._state.drafts.add(
            Draft("parameter", pair, evidence, first_seen=True, joined=("parameter", b.step, None))
        )

    def _add_names(self, draft: Draft, a: Record, b: Record) -> None:
        """Note that a parameter has another name on the other side: programs may divide their parameters differently.

        For example, one keeps an adapter apart that the other one has merged.
        """
        names = ("", "") if self._wiring is None else (self._wiring.parameter(a), self._wiring.parameter(b, 1))
        if all(names) and self._wiring is not None and not is_same_name(*names):
            draft.names = names
            draft.adapter = adapter_of(names, self._wiring.first_reads)

    def _count_parameter(self, record: Optional[Record]) -> None:
        storage = None if record is None else storage_of(record)
        if record is not None and storage is not None and record.attrs.get("requires_grad"):
            self._state.drafts.parameters.setdefault(record.step, set()).add(storage[0])

    def _judge(self, match: Match, a: Optional[Record], b: Optional[Record]) -> _JudgedInput:
        state = self._state
        difference, pair = state.compare(match, a, b)
        if a is None or b is None:
            return _JudgedInput(pair, *state.look_up_unpaired(1 if a is None else 0, pair.record))
        if difference.verdict == "equal":
            note_agreement(state, state.stretches.left_by(match.reference, b), pair)
            self._note_agreement(match, a, b)
            return _JudgedInput(pair)
        if difference.verdict == "unreadable":
            return _JudgedInput(pair, state.known.causes_of(difference.contents))
        if (storage_of(a), storage_of(b)) in state.cast_memory and is_no_value(a) and is_no_value(b):
            return _JudgedInput(replace(pair, verdict="noise", reason=NO_VALUE_YET))
        if state.is_same_constant(a, b, difference):
            return _JudgedInput(replace(pair, verdict="noise", reason=SAME_CONSTANT))
        if state.is_cast(difference):
            difference = difference.of_values()
            pair = replace(pair, verdict="different", reason="")
        has_no_value = is_contribution(a) is False or is_unread(b)
        if difference.verdict == "unmatched":
            return _JudgedInput(pair, state.known.causes_of(difference.contents))
        if has_no_value and difference.verdict != "structure":
            reason = f"no defined value: {_UNREAD}"
            return _JudgedInput(replace(pair, verdict="noise", reason=reason, undefined=_UNREAD, measure=None))
        is_made_again = not state.has_parts and state.stretches.is_made_again(difference.contents)
        known = None if is_made_again else self._look_up(a, b, difference, pair)
        if known is not None:
            state.drafts.add_later_read(pair.record, known.causes)
        is_structure = difference.verdict == "structure" and not state.has_parts
        if match.reference.function in SHAPED and b.index == 0 and not is_structure:
            # The operator reads only the shape of this input, so a difference of its values has no effect.
            return _JudgedInput(replace(pair, verdict="noise", reason=_SHAPE) if known is None else known.pair)
        if known is None and state.has_parts and self._is_local(match, a, b, difference):
            pair = replace(pair, verdict="unmatched", reason=NO_COUNTERPART)
            state.add_local(pair, [pair])
            return _JudgedInput(pair)
        is_passed_on = known is None and state.has_parts and only_passes_on(match.reference)
        if is_passed_on and (not match.reference.module or state.local.passed_on_by(a, b)):
            # Another rank may update this parameter, or send this tensor. It is judged where an operator computes with
            # it.
            return _JudgedInput(replace(pair, verdict="unmatched", reason=NO_COUNTERPART))
        return known or self._judge_new(match, a, b, difference, pair)

    def _is_local(self, match: Match, a: Record, b: Record, difference: Difference) -> bool:
        """Return True if an input is a tensor of one of several ranks, and the other side has no such tensor."""
        local = self._state.local
        if _is_target(match, b) or _is_whole_parameter(match, a, b):
            return False
        if len(match.actual.inputs) != len(match.reference.inputs):
            return True  # a list of samples: each rank has its own
        if local.are_local(a, b):
            return True
        is_made_alone = local.maker(a, b) is not None
        if not is_made_alone and not local.passed_on_by(a, b):
            return False
        others = [self._state.compare(match, *pair)[1] for pair in (*match.inputs, *match.outputs)]
        # Beside a tensor that is no part of that of the other side, it is not known which part this one is.
        if any(pair.verdict == "unmatched" and None not in (pair.actual, pair.reference) for pair in others):
            return True
        return is_made_alone and is_index_into_part(b, others[: len(match.inputs)])

    def _look_up(self, a: Record, b: Record, difference: Difference, pair: Pair) -> Optional[_JudgedInput]:
        """Return the judged input if its difference, or its noise, is known; else None."""
        causes, noise = self._state.known.look_up(a, b, difference)
        if causes is not None:
            if not causes:
                return _JudgedInput(replace(pair, verdict="noise", explained=True, reason=_NO_EFFECT))
            if difference.verdict != "structure" and self._state.drafts.are_undefined(causes):
                return _JudgedInput(replace(pair, verdict="noise", explained=True, reason=FOLLOWS_UNDEFINED), causes)
            return _JudgedInput(replace(pair, explained=True, reason=FOLLOWS), causes)
        if noise is None:
            return None
        if difference.measure is not None and not difference.bounds:
            # The input may be another part of the same memory, with a larger or smaller error.
            noise = noise._replace(measure=difference.measure, error=difference.measure.rel_l2)
        verdict = "undecided" if difference.bounds else "noise"
        return _JudgedInput(replace(pair, verdict=verdict, explained=True, reason=FOLLOWS_ROUNDING), noise=noise)

    def _judge_new(self, match: Match, a: Record, b: Record, difference: Difference, pair: Pair) -> _JudgedInput:
        """Judge a difference that is not known by its contents."""
        state = self._state
        if _are_same_numbers(a, b, difference):
            return _JudgedInput(replace(pair, verdict="noise", reason=_SAME_NUMBERS))
        makers = state.stretches.makers(difference.contents, of_values=difference.verdict != "structure")
        if not makers and difference.verdict != "structure" and _has_moved_axes(a, b):
            makers = state.stretches.makers(difference.contents)
        if makers:
            border, noise = judge_border(state, makers, a, b, difference, pair)
            earlier = state.modules.known(b) if border.causes else NO_ORIGINS
            if earlier:
                state.known.add(difference.contents, earlier)
                return _JudgedInput(replace(border.pair, explained=True, reason=FOLLOWS), earlier)
            own = frozenset(number for number in border.causes if state.drafts[number].hidden)
            if border.causes and state.has_parts:
                # Operators that only one side runs are no origins. Their result is an origin if it differs.
                pair = replace(pair, verdict="different", reason=border.pair.reason)
                causes = border.causes - own or state.local_origin(pair)
                causes = causes or frozenset({self._add_origin(self._kind_of(match, b), match, b, pair, ())})
                state.known.add(difference.contents, causes)
                return _JudgedInput(pair, causes)
            return _JudgedInput(border.pair, border.causes, noise, border if border.causes else None)
        if difference.measure is not None and difference.verdict != "structure":
            earlier_noise = state.known.largest if is_of_module(b) else None
            rounded_to = state.differences.rounded_type(a, b) if self._kind_of(match, b) == "parameter" else None
            verdict, reason = state.judge.of_input(a, b, difference, earlier_noise, rounded_to)
            if verdict == "different" and state.modules.may_have_drifted(b, difference.measure):
                verdict, reason = "undecided", DRIFTED
            if verdict == "different" and match.tensors is not None:
                is_enlarged = state.history.is_enlarged_rounding(_name_between_frameworks(a, b), a, b)
                verdict, reason = ("noise", _ENLARGED) if is_enlarged else (verdict, reason)
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                if verdict == "noise" and match.tensors is not None:
                    self._note_agreement(match, a, b)
                suspects = self._suspects(match, a, b, pair) if verdict == "undecided" else NO_ORIGINS
                return _JudgedInput(pair, noise=state.known.add_noise(difference, type_of(a, b), suspects))
        causes = state.modules.of_input(b) or state.local_origin(pair)
        if causes:
            state.known.add(difference.contents, causes)
            return _JudgedInput(replace(pair, explained=True, reason=FOLLOWS), causes)
        kind, evidence = self._explain(match, a, b)
        # Freed memory may be used again for data from outside. So the last write to memory explains only parameters,
        # which stay where they are, and tensors that recorded operators wrote on both sides.
        causes = state.known.one_sided_writers(a, b) if kind in ("parameter", "wiring") else NO_ORIGINS
        for draft in state.drafts.of(causes):
            draft.border = draft.border or pair
        if kind == "parameter":
            causes = causes or state.history.causes_of(self._name_of(a, b), b.step)
        is_value = pair.verdict == "different" and float_kind(b.dtype or "") is not None
        if not causes and kind in ("parameter", "input") and is_value and not self._name_of(a, b):
            # Where only some layers are recorded, later steps read what unrecorded updates and layers made.
            causes = state.history.earlier_gradients(b.step)
        if causes:
            pair = replace(pair, explained=True, reason=FOLLOWS)
        else:
            causes = frozenset({self._add_origin(kind, match, b, pair, evidence)})
            if kind == "parameter":
                state.history.add_causes(self._name_of(a, b), b.step, causes)
        state.known.add(difference.contents, causes)
        return _JudgedInput(pair, causes)

    def _note_agreement(self, match: Match, a: Record, b: Record) -> None:
        name = b.parameter if match.tensors is None else _name_between_frameworks(a, b)
        if name:
            self._state.history.add_agreeing(name, b.step)

    def _name_of(self, a: Record, b: Record) -> str:
        """Return the name of a parameter that an operator reads; "" if it is unknown."""
        return a.parameter or b.parameter or ("" if self._wiring is None else self._wiring.parameter(a))

    def _suspects(self, match: Match, a: Record, b: Record, pair: Pair) -> frozenset[OriginNumber]:
        """Return the origin of an input that differs although its statistics agree, if later differences follow."""
        if self._state.has_parts or not are_rearranged(a, b):
            return NO_ORIGINS
        kind, evidence = self._explain(match, a, b)
        pair = replace(pair, reason=MAYBE_REARRANGED)
        return frozenset({self._add_origin(kind, match, b, pair, evidence, hidden=True)})

    def _explain(self, match: Match, a: Record, b: Record) -> tuple[str, list[str]]:
        """Return the kind of the origin of an input, and the evidence on where both sides read it from."""
        is_wiring, evidence = False, list[str]()
        if self._wiring is not None:
            is_wiring, evidence = self._wiring.explain(match, a, b)
        elif self._sources is not None:
            evidence = self._sources.update_between(match, a, b)
            is_wiring = bool(evidence)
        if not is_wiring and match.tensors is not None and a.parameter:
            return "parameter", evidence  # other frameworks record no names
        return ("wiring" if is_wiring else self._kind_of(match, b)), evidence

    def _kind_of(self, match: Match, reference: Record) -> str:
        if self._kinds is None:
            self._kinds = InputKinds(self._reference)
        return self._kinds.kind_of(reference, match.reference.module, first=self._is_first)

    def _add_origin(
        self,
        kind: str,
        match: Match,
        reference: Record,
        pair: Pair,
        sources: Sequence[str],
        *,
        hidden: bool = False,
    ) -> OriginNumber:
        caller: Optional[Caller] = None
        gradient: Optional[OuterGradient] = None
        name = pair.record.parameter or reference.parameter or ""
        if not name and kind == "parameter":
            name = self._name_of(pair.record, reference)
        shards = self._state.differences.shards
        if shards is not None and pair.actual is not None and pair.reference is not None:
            sources = [*shards.why_different(pair.actual, pair.reference), *sources]
        if pair.verdict == "different":
            sources = [*why_narrowed(pair.actual, pair.reference), *sources]
        label = f"{pair.record.label}{name and f' ({name})'}"
        evidence = [f"{label}: {pair.reason}", *sources, *self._state.unreadable_evidence()]
        joined: tuple[Any, ...] = (kind, reference.step, None if kind == "parameter" else match.reference.position)
        if is_of_module(reference) and kind in ("parameter", "input"):
            # Functions that are not recorded may run between the output of one module and the input of the next.
            gradient = self._state.outer_gradient(match)
            caller = self._state.caller(match) if pair.verdict == "different" else None
            if gradient is not None:
                kind, pair, evidence, joined = "unknown", gradient.pair, gradient.evidence, gradient.joined
            elif caller is not None:
                pair = caller.pair or pair
                kind = "input" if caller.module is None else "unknown"
                evidence = [f"{pair.record.label}: {pair.reason}", *sources, *caller.evidence]
                evidence += self._state.unreadable_evidence()
                evidence += [NOT_RECORDED] if caller.module is not None else []
            elif kind == "parameter":
                kind = "unknown"
                evidence.append(NOT_RECORDED)
        if kind == "wiring" and not hidden:
            earlier = self._state.wirings.get((match.reference.op_name, tuple(sources)))
            if earlier is not None:
                self._state.drafts[earlier].explains += 1
                self._state.rebuilt.append((earlier, match.reference.position))
                return earlier
        if kind == "wiring" and match.reference.source:
            # Operators of one source line are one change of the program, even if several layers run the line.
            joined = (kind, match.reference.source, match.reference.op_type)
        is_reshaped = (
            (kind == "input" or is_of_module(reference)) and pair.verdict == "structure" and not pair.has_one_shape
        )
        if is_reshaped and kind == "input":
            joined = (kind, "shape")
        made = self._state.local.maker(pair.actual, pair.reference) if self._state.has_parts else None
        if made is None and self._state.has_parts and pair.actual is not None and pair.reference is not None:
            evidence += self._state.local.passed_on_by(pair.actual, pair.reference)
        seen = None if made is None else pair
        if made is not None:
            kind, pair, evidence = _made_alone(made, pair, evidence)
            joined = (kind, pair.record.source, pair.record.op_type)
        is_first_seen = kind not in ("wiring", "structure")
        draft = Draft(
            kind, pair, evidence, hidden=hidden, reshaped=is_reshaped, first_seen=is_first_seen, joined=joined
        )
        draft.seen = seen
        if kind == "parameter" and match.tensors is not None and pair.actual is not None:
            draft.add_since(self._state.agreed_in(_name_between_frameworks(pair.actual, reference), reference))
        elif (kind == "parameter" and name) or (is_of_module(reference) and kind == "unknown" and gradient is None):
            draft.add_since(self._state.agreed_in(name, reference))
        if kind == "parameter" and pair.actual is not None and pair.reference is not None:
            self._add_names(draft, pair.actual, pair.reference)
        draft.caller = None if caller is None else caller.module
        if is_reshaped and kind == "input":
            draft.summary = f"{{count}} inputs have other sizes, such as {label}: {pair.reason}"
        number = self._state.drafts.add(draft)
        if draft.is_of_size:
            draft.parts = 0 if self._wiring is None else number_of_parts(match, pair, self._wiring.operators)
            self._state.arguments.add_sizes(pair, number)
        if kind == "wiring" and not hidden:
            self._state.wirings[match.reference.op_name, tuple(sources)] = number
        if (kind == "wiring" or draft.is_of_structure) and not hidden:
            self._state.rebuilt.append((number, match.reference.position))
        return number


def _name_between_frameworks(a: Record, b: Record) -> str:
    """Return the name of a parameter, or where the reference reads it: most frameworks record no names."""
    return a.parameter or b.parameter or b.label


def _is_target(match: Match, reference: Record) -> bool:
    """Return True for the classes that a loss compares with the scores of the same rows: rows and classes go together.

    With a part of the classes, a program computes its loss by other operators.
    """
    return match.reference.function in _LOSSES and reference.index == 1


def _is_whole_parameter(match: Match, a: Record, b: Record) -> bool:
    """Return True for a parameter of one name and shape on both sides that a module reads."""
    return bool(match.reference.module and b.parameter and a.parameter == b.parameter and a.shape == b.shape)


def _are_same_numbers(a: Record, b: Record, difference: Difference) -> bool:
    """Return True for equal numbers, integers on one side and floats on the other, such as positions of tokens.

    Statistics do not prove that they are equal.
    """
    measure = difference.measure
    if difference.verdict != "structure" or measure is None or measure.unequal or difference.bounds:
        return False
    others = [record.dtype or "" for record in (a, b) if float_kind(record.dtype or "") is None]
    return a.shape == b.shape and len(others) == 1 and others[0].startswith(("int", "uint"))


def _has_moved_axes(a: Record, b: Record) -> bool:
    """Return True if two tensors of one shape have the same elements, with the axes in another order."""
    try:
        layout = find_layout(a.numpy(), b.numpy())
    except AscendDumpError:  # only statistics are recorded
        return False
    return layout is not None and layout.name != IDENTITY


def _made_alone(made: MadeAlone, pair: Pair, evidence: Sequence[str]) -> tuple[str, Pair, list[str]]:
    """Return kind, pair and evidence of an origin at an operator that only one side runs, and that made the input."""
    operator = made.operator
    record = next(iter(operator.outputs))
    reason = f"{operator.op_type} runs in {'actual' if made.of_actual else 'the reference'} only"
    sides = (record, None) if made.of_actual else (None, record)
    lines = [reason, f"its result differs, read as {evidence[0]}", *evidence[1:]]
    return "structure", replace(pair, actual=sides[0], reference=sides[1], reason=reason), lines
