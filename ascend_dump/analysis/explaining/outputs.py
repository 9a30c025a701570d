"""Judge the outputs of an operator: a difference that nothing known explains is an origin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.shards import is_of_parts
from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.explaining.drafts import Draft, explain
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.output_origins import add_origin, suspected_origins
from ascend_dump.analysis.explaining.rank_state import (
    FOLLOWS,
    FOLLOWS_ROUNDING,
    FOLLOWS_UNDEFINED,
    NO_VALUE_YET,
    SAME_CONSTANT,
    RankState,
    extent,
)
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.tracking.known_differences import statistics_settle
from ascend_dump.analysis.explaining.tracking.local_results import (
    NO_COUNTERPART,
    NO_COUNTERPART_INPUT,
    only_passes_on,
    why_local,
)
from ascend_dump.analysis.explaining.tracking.partly_written import covers_part
from ascend_dump.analysis.judging.elementwise import measure_without_masks
from ascend_dump.analysis.judging.input_noise import FOLLOWS_FLIPS, NO_ORIGINS, InputNoise, OriginNumber, flips_in
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.permutations import IDENTITY, is_permutation
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.module_calls import DRIFTED
from ascend_dump.analysis.operators.names import is_view, moves_elements
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.analysis.operators.properties import ALLOCATING, NO_INPUTS, VIEWS, writes
from ascend_dump.analysis.operators.undefined_outputs import why_undefined
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.dump_format import UNINITIALISED
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["judge_outputs"]
#: An output that differs by this share, and by about as much as an input (within this factor), follows from the input.
_FAR_OFF, _ABOUT = 0.25, 4.0
#: An output with this many times less error than an input is computed from other inputs on both sides.
_TIMES_LESS = 1e3
_NEARER = "computed from other inputs, and its statistics agree but for rounding"
#: An output whose arguments differ follows from them if its error is this many times the rounding of its inputs.
_TIMES_ROUNDING = 4.0


def judge_outputs(state: RankState, operators: OperatorPair) -> tuple[list[Pair], Optional[OriginNumber]]:
    """Judge the inputs that the operator overwrites, then its outputs. Returns their pairs, and the new origin if any.

    All outputs of an operator have one origin.
    """
    match = operators.match
    overwritten = [(a, b) for a, b in match.inputs if b is not None and b.index in operators.written]
    pairs = []
    origin: Optional[OriginNumber] = None
    for a, b in (*overwritten, *match.outputs):
        pair = _judge(state, operators.of_output(b), a, b)
        if writes(match.reference.op_type):
            state.known.forget_one_sided_writes(a, b)
        if pair.differs and not pair.explained:
            assert a is not None
            assert b is not None
            origin = add_origin(state, operators, pair) if origin is None else origin
            state.remember(pair, (identity_of(a), identity_of(b)), frozenset({origin}))
        pairs.append(pair)
    for a, b in match.outputs:
        if a is not None and b is not None and not is_no_value(b):
            state.known.add_output(a, b, is_written=_is_written(match.reference.op_type, b))
    return pairs, origin


def _is_written(op_type: str, output: Record) -> bool:
    """Return True if an operator writes to memory that is there before: in place, or to a part of larger memory.

    An `out=` argument is not recorded as an input. So DDP writes each gradient to its part of a bucket, which it sends.
    """
    return writes(op_type) or (covers_part(output) and not is_view(op_type))


def _judge(state: RankState, operators: OperatorPair, a: Optional[Record], b: Optional[Record]) -> Pair:
    difference, pair = state.compare(operators.match, a, b)
    if difference.verdict == "equal":
        state.known.forget(difference.contents)
        if b is not None and b.attrs.get("skipped") == UNINITIALISED:
            state.remember(pair, None, _without_value(state, operators, pair))
    if a is None or b is None or difference.verdict in ("equal", "unreadable"):
        return pair
    if difference.verdict == "unmatched":
        state.add_local(pair, operators.inputs)
        return pair
    memory = storage_of(a), storage_of(b)
    is_cast = operators.is_cast or memory in state.cast_memory
    if is_cast and difference.verdict == "structure" and a.shape == b.shape and is_no_value(a) and is_no_value(b):
        # The memory is allocated for a tensor that one program casts, and is not written yet.
        state.cast_memory.add(memory)
        _without_value(state, operators, pair)
        return replace(pair, verdict="noise", reason=NO_VALUE_YET)
    if operators.match.reference.function in NO_INPUTS and state.is_same_constant(a, b, difference):
        return replace(pair, verdict="noise", reason=SAME_CONSTANT)
    if is_cast and difference.verdict == "structure" and difference.contents is not None:
        state.casts.add(difference.contents)
        difference = difference.of_values()
        pair = replace(pair, verdict=difference.verdict, reason=difference.reason)
    elif difference.verdict == "structure" and _passes_on_axes(operators, difference):
        difference = replace(difference, verdict="different", reason="")
        pair = replace(pair, verdict="different", reason="")
    if difference.verdict != "structure":
        undefined = _undefined(state, operators, b, difference, pair)
        if undefined is not None:
            return undefined
    is_view_of_noise = operators.noise and operators.match.reference.function in VIEWS
    if is_view_of_noise and state.known.is_noise(difference.contents):
        return replace(pair, verdict="undecided" if difference.bounds else "noise", reason=FOLLOWS_ROUNDING)
    if difference.measure is not None and difference.verdict != "structure":
        pair = _judge_values(state, operators, a, b, difference, difference.measure, pair)
        if pair.verdict != "different":
            return pair
    elif flips_in(operators.noise) and not operators.causes and a.dtype == b.dtype:
        # The number of elements may depend on flags, for example on how many elements of a mask are true.
        size = math.prod(b.shape or ())
        state.known.add_noise(difference, type_of(a, b), operators.noise_causes, operators.noise, size)
        return replace(pair, verdict="noise", explained=True, reason=FOLLOWS_FLIPS, undefined=FOLLOWS_FLIPS)
    if state.has_parts and pair.verdict == "different" and not operators.causes:
        shards = state.differences.shards
        is_alone = shards is not None and shards.is_of_one_rank(a, b)
        adds_own = shards is not None and any(
            input_pair.verdict in ("equal", "noise")
            and shards.differs_over_ranks((input_pair.actual, input_pair.reference))
            for input_pair in operators.inputs
            if not is_of_parts(input_pair.transformation)
        )
        reason = why_local(operators.match.reference, operators.inputs, pair, is_alone=is_alone, adds_own=adds_own)
        if shards is not None and reason is not None and reason is not NO_COUNTERPART_INPUT:
            reason = None if shards.has_to_agree(a, b) else reason
        if reason is None and _has_number_of_rank(state, operators):
            reason = NO_COUNTERPART
        if reason is not None:
            pair = replace(pair, verdict="unmatched", reason=reason)
            if not only_passes_on(operators.match.reference) or _reads_local(state, operators):
                state.add_local(pair, operators.inputs)
            return pair
    operators.causes |= state.modules.of_output(b)
    if not operators.causes and is_of_module(b):
        # A gradient is a sum over the modules that read the tensor: one of them may run backward on one side only.
        operators.causes |= {made.stretch.number for made in state.stretches.makers(difference.contents)}
    causes = frozenset(operators.causes)
    if not causes and not _is_called_differently(operators):
        causes = operators.noise_causes
    if causes:
        explain(pair, state.drafts.of(causes))
        if difference.bounds and not operators.causes:
            # The origins were suspects so far. From here on their differences are proven.
            state.rebuilt += [(number, operators.match.reference.position) for number in causes]
        pair = replace(pair, explained=True, reason=f"{FOLLOWS}{extent(pair.measure)}")
        state.remember(pair, difference.contents, causes)
    return pair


def _without_value(state: RankState, operators: OperatorPair, pair: Pair) -> frozenset[OriginNumber]:
    """Add the hidden origin of memory without a value.

    An operator may write only a part of this memory and then read all of it, with undefined values.
    """
    evidence = [f"{pair.record.label}: {pair.reason}"]
    causes = frozenset({state.drafts.add(Draft("uninitialised", pair, evidence, hidden=True))})
    is_allocated = operators.match.reference.function in ALLOCATING
    if is_allocated and pair.actual is not None and pair.reference is not None:
        state.known.add_without_value(pair.actual, pair.reference, causes)
    return causes


def _passes_on_axes(operators: OperatorPair, difference: Difference) -> bool:
    """Return True if an output has its axes in another order because an input has, or because both sides move axes.

    One program computes with heads before tokens, the other one with tokens before heads. Then values decide.
    """
    if not difference.has_values:
        return False
    match = operators.match
    if all(is_view(operator.op_type) for operator in (match.actual, match.reference)):
        return is_permutation(difference.layout)
    return any(is_permutation(pair.transformation) and pair.verdict in ("equal", "noise") for pair in operators.inputs)


def _is_called_differently(operators: OperatorPair) -> bool:
    """Return True if other arguments or another operator explain a difference better than rounding that was measured.

    Inputs agree although a part before them is built differently. Statistics do not prove that they agree.
    """
    match = operators.match
    if match.tensors is not None or moves_elements(match.reference.function):
        return False
    if any(noise.bounds or noise.flips for noise in operators.noise):
        return False
    if operators.is_replaced:
        return True
    arguments = differing_arguments(match.actual, match.reference)
    return any(not (argument.is_axis and _have_moved_axes(operators)) for argument in arguments)


def _have_moved_axes(operators: OperatorPair) -> bool:
    """Return True if an input has its axes in another order on each side, so that numbers of axes differ, too."""
    return any(is_permutation(pair.transformation) for pair in operators.inputs)


def _is_due_to_arguments(operators: OperatorPair, a: Record, b: Record, measure: Measure) -> bool:
    """Return True if other arguments explain an output better than rounding, which may explain as much at most.

    The inputs are off by rounding that was measured, and an operator seldom enlarges it. Elements that a mask fills
    with other values do not count. Nor do axes where each side may have others before them, or another order.
    """
    match, kind = operators.match, float_kind(type_of(a, b))
    if kind is None or match.tensors is not None or any(noise.bounds or noise.flips for noise in operators.noise):
        return False
    differing = differing_arguments(match.actual, match.reference)
    has_other_axes = token_part(b) is not None or _have_moved_axes(operators)
    if all(argument.is_rounding or (has_other_axes and argument.is_axis) for argument in differing):
        return False
    most = _TIMES_ROUNDING * max([kind.unit, *(max(noise.unit, noise.error) for noise in operators.noise)])
    if measure.rel_l2 <= most:
        return False
    unmasked = measure_without_masks(a, b)
    return unmasked is None or unmasked.rel_l2 > most


def _has_number_of_rank(state: RankState, operators: OperatorPair) -> bool:
    """Return True if the two calls differ only by integers that belong to the rank, such as the first index of a part.

    Only results of integers or flags count, and parts of a tensor that is whole on the rank: numbers of the program
    itself rarely are such results. A wrong part is found where an operator reads it.
    """
    shards, match = state.differences.shards, operators.match
    outputs = [(a, b) for a, b in match.outputs if a is not None and b is not None]
    arguments = differing_arguments(match.actual, match.reference)
    if shards is None or not arguments:
        return False
    first = next(((a, b) for a, b in match.inputs if a is not None and b is not None), None)
    if first is None:
        return False
    agree = all(pair.verdict in ("equal", "noise") for pair in operators.inputs)
    if moves_elements(match.reference.function) and agree:
        is_part = any(a.shape != b.shape for a, b in outputs)
        is_part = is_part or any(shards.has_own_number(first, argument.name) for argument in arguments)
        return is_part and all(argument.is_integer for argument in arguments)
    if any(float_kind(b.dtype or "") is not None for _, b in outputs):
        return False
    return all(shards.are_numbers_of_ranks(first, argument.name) for argument in arguments)


def _reads_local(state: RankState, operators: OperatorPair) -> bool:
    """Return True if an input is a result of one of several ranks that has no counterpart on the other side."""
    pairs = [(pair.actual, pair.reference) for pair in operators.inputs]
    return any(a is not None and b is not None and state.local.are_local(a, b) for a, b in pairs)


def _undefined(
    state: RankState, operators: OperatorPair, reference: Record, difference: Difference, pair: Pair
) -> Optional[Pair]:
    """Return the pair of an output without a defined value; None if its value is defined."""
    operator = operators.match.reference
    is_listed = reference.index in state.rules.of(operator.op_name, operator.op_type).undefined
    reason = "the rules given say so" if is_listed else why_undefined(operator, reference)
    if reason is not None:
        pair = replace(pair, verdict="noise", reason=f"no defined value: {reason}", undefined=reason, measure=None)
        evidence = [f"{pair.record.label}: {pair.reason}"]
        # A difference of the inputs explains the elements that have a value, and whatever is computed from them.
        causes = frozenset(operators.causes) or frozenset(
            {state.drafts.add(Draft("uninitialised", pair, evidence, hidden=True))}
        )
    elif state.drafts.are_undefined(operators.causes) and _copies_values(operator.function):
        pair = replace(pair, verdict="noise", explained=True, reason=FOLLOWS_UNDEFINED)
        causes = frozenset(operators.causes)
    else:
        return None
    state.remember(pair, difference.contents, causes)
    return pair


def _judge_values(
    state: RankState,
    operators: OperatorPair,
    a: Record,
    b: Record,
    difference: Difference,
    measure: Measure,
    pair: Pair,
) -> Pair:
    """Return the pair with the verdict on its numbers. A difference within rounding is noted as noise."""
    match, causes, noise = operators.match, operators.causes, operators.noise
    if operators.is_blind and not causes and not noise:
        kind = float_kind(type_of(a, b))
        unit = kind.unit if kind is not None else 0.0
        noise = [*noise, InputNoise(measure, unit, unit, NO_ORIGINS)]
    equal, clean = operators.has_equal_inputs, not causes or state.drafts.are_undefined(causes)
    if state.modules.reads_unrecorded(b) and state.known.largest is not None:
        noise = [*noise, state.known.largest]
    rebuilt = _is_rebuilt(operators, measure)
    verdict, reason = state.judge.of_output(match, a, b, difference, noise, clean=clean, equal=equal, rebuilt=rebuilt)
    if verdict == "different" and rebuilt and state.known.largest is not None and operators.are_in_another_order:
        # Elements at the same position are no pair, so the rounding in them is unknown: at most the largest so far.
        noise = [*noise, state.known.largest]
        verdict, reason = state.judge.of_output(
            match, a, b, difference, noise, clean=clean, equal=equal, rebuilt=rebuilt
        )
    if verdict == "noise" and not causes and _is_due_to_arguments(operators, a, b, measure):
        verdict, reason = "different", f"the arguments differ, and rounding explains less{extent(measure)}"
    if verdict == "different" and rebuilt and statistics_settle(difference, a, b):
        verdict, reason = "undecided", _NEARER
    if verdict == "undecided" and causes and _is_as_far_off(operators, measure):
        verdict = "different"
    is_explained = bool(causes or state.modules.of_output(b))
    if verdict == "different" and not is_explained and state.modules.may_have_drifted(b, measure):
        verdict, reason = "undecided", DRIFTED
    aligned = _aligned(state, match, a, b) if verdict == "different" and state.judge.of_parts else None
    if aligned is not None:
        in_one_order = replace(difference, layout=IDENTITY)
        state.judge.of_parts = False
        verdict, reason = state.judge.of_output(*aligned, in_one_order, noise, clean=clean, equal=equal)
        state.judge.of_parts = True
    if verdict == "noise" and operators.is_replaced:
        reason = f"{match.actual.op_type} in place of {match.reference.op_type}, {reason}"
    undefined = ""
    if verdict != "different":
        has_ended = verdict == "undecided" and rebuilt and statistics_settle(difference, a, b)
        # Each side may add other terms first. The sums agree but for rounding: nothing later follows from these terms.
        ended = causes if verdict == "noise" and rebuilt else NO_ORIGINS
        origins = NO_ORIGINS if has_ended else operators.noise_causes | (causes - ended)
        if verdict == "noise":
            # Memory without a value was overwritten: values that agree are no accident.
            origins = frozenset(number for number in origins if not state.drafts.are_undefined({number}))
        if verdict == "undecided" and not origins:
            origins = suspected_origins(state, operators, replace(pair, verdict=verdict, reason=reason))
        added = state.known.add_noise(difference, type_of(a, b), origins, noise)
        if added.flips and flips_in(noise):
            undefined = FOLLOWS_FLIPS
    return replace(pair, verdict=verdict, reason=reason, undefined=undefined)


def _is_rebuilt(operators: OperatorPair, measure: Measure) -> bool:
    """Return True if an output agrees much better than an input, so that the inputs are no pair.

    For example, each side multiplies other factors. Then elements of the inputs do not correspond.
    """
    errors = [pair.measure.rel_l2 for pair in operators.inputs if pair.differs and pair.measure is not None]
    return max(errors, default=0.0) > _TIMES_LESS * measure.rel_l2


def _is_as_far_off(operators: OperatorPair, measure: Measure) -> bool:
    """Return True if an output is about as far off as an input that is proven to differ.

    It follows from that input, even if statistics of the other inputs allow for more rounding than that.
    """
    errors = [pair.measure.rel_l2 for pair in operators.inputs if pair.verdict == "different" and pair.measure]
    return measure.rel_l2 > _FAR_OFF and any(error / _ABOUT < measure.rel_l2 < error * _ABOUT for error in errors)


def _aligned(state: RankState, match: Match, a: Record, b: Record) -> Optional[tuple[Match, Record, Record]]:
    """Return the match and its output, rearranged to the same elements on both sides.

    None if that is not possible, for example because values of several ranks are combined.
    """
    shards = state.differences.shards
    if shards is None or match.tensors is not None:
        return None
    try:
        inputs = [(x, y, shards.aligned(x, y)) for x, y in match.inputs if x is not None and y is not None]
        output = shards.aligned(a, b)
    except AscendDumpError:
        return None
    if output is None or any(pair is None for _, _, pair in inputs) or len(inputs) != len(match.inputs):
        return None
    pairs = [pair for _, _, pair in inputs if pair is not None]
    actual, reference = (
        replace(operator, inputs=[pair[side] for pair in pairs], outputs=[output[side]])
        for side, operator in enumerate((match.actual, match.reference))
    )
    return (match._replace(actual=actual, reference=reference), *output)


def _copies_values(function: str) -> bool:
    """Return True if an operator computes nothing, so that its output has the values of its input."""
    return is_view(function) or function == "copy"
