"""Judge the outputs of an operator: a difference that nothing known explains is an origin."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.shards import is_of_parts
from ascend_dump.analysis.explaining.between_frameworks import cause_between_frameworks, read_by_others
from ascend_dump.analysis.explaining.input_evidence import InputEvidence, inputs_of
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.origins import Draft, explain
from ascend_dump.analysis.explaining.rank_state import (
    FOLLOWS,
    FOLLOWS_ROUNDING,
    FOLLOWS_UNDEFINED,
    MAYBE_REARRANGED,
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
from ascend_dump.analysis.judging.elementwise import measure_without_masks
from ascend_dump.analysis.judging.input_noise import FOLLOWS_FLIPS, NO_ORIGINS, InputNoise, OriginNumber, flips_in
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.permutations import IDENTITY
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments, same_generator
from ascend_dump.analysis.operators.module_calls import DRIFTED, NOT_RECORDED
from ascend_dump.analysis.operators.names import is_view, may_enlarge_errors, moves_elements
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import (
    ALLOCATING,
    COLLECTIVES,
    NO_INPUTS,
    RANDOM,
    VIEWS,
    operator_class,
    writes,
)
from ascend_dump.analysis.operators.undefined_outputs import why_undefined
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.dump_format import UNINITIALISED
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["RUN_BETWEEN", "judge_outputs"]

#: The beginning of the evidence that other operators may be the cause.
RUN_BETWEEN = "operators without a partner run between"
#: If the error of an output is this many times the largest error of the inputs, the operator computed wrongly, even if
#: operators of its type enlarge errors.
_COMPUTE = 100.0
#: An output that differs by this share, and by about as much as an input (within this factor), follows from the input.
_FAR_OFF, _ABOUT = 0.25, 4.0
#: An output with this many times less error than an input is computed from other inputs on both sides.
_TIMES_LESS = 1e3
#: An output whose arguments differ follows from them if its error is this many times the rounding of its inputs.
_TIMES_ROUNDING = 4.0
#: Maximum number of operators of each side that a line of evidence names.
_MOST_BETWEEN = 3
#: The argument of elementwise arithmetic that is a number in place of a tensor.
_OPERAND = "other"
_SAME_STATE = "the generator state is the same on both sides"
#: Kinds of origins for which a comparison of two frameworks may find a cause.
_UNEXPLAINED = ("compute", "amplification", "unknown")
_OTHER_STATE = "the generator state differs already: seed both programs alike, or find the extra random call"


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
            origin = _add_origin(state, operators, pair) if origin is None else origin
            state.remember(pair, (identity_of(a), identity_of(b)), frozenset({origin}))
        pairs.append(pair)
    for a, b in match.outputs:
        if a is not None and b is not None and not is_no_value(b):
            state.known.add_output(a, b, is_written=writes(match.reference.op_type))
    return pairs, origin


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


def _is_called_differently(operators: OperatorPair) -> bool:
    """Return True if other arguments or another operator explain a difference better than rounding that was measured.

    Inputs agree although a part before them is built differently. Statistics do not prove that they agree.
    """
    match = operators.match
    if match.tensors is not None or moves_elements(match.reference.function):
        return False
    if any(noise.bounds or noise.flips for noise in operators.noise):
        return False
    return operators.is_replaced or bool(differing_arguments(match.actual, match.reference))


def _is_due_to_arguments(operators: OperatorPair, a: Record, b: Record, measure: Measure) -> bool:
    """Return True if other arguments explain an output better than rounding, which may explain as much at most.

    The inputs are off by rounding that was measured, and an operator seldom enlarges it. Elements that a mask fills
    with other values do not count.
    """
    match, kind = operators.match, float_kind(type_of(a, b))
    if kind is None or match.tensors is not None or any(noise.bounds or noise.flips for noise in operators.noise):
        return False
    if all(argument.is_rounding for argument in differing_arguments(match.actual, match.reference)):
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
    if moves_elements(match.reference.function) and operators.has_equal_inputs:
        is_part = any(a.shape != b.shape for a, b in outputs)
        is_part = is_part or any(shards.has_own_number(first, argument.name) for argument in arguments)
        return is_part and all(map(_are_integers, arguments))
    if any(float_kind(b.dtype or "") is not None for _, b in outputs):
        return False
    return all(shards.are_numbers_of_ranks(first, argument.name) for argument in arguments)


def _are_integers(argument: DifferingArgument) -> bool:
    """Return True if both values of an argument are integers, lists of them, or not given."""
    values = [
        value
        for side in (argument.actual, argument.reference)
        for value in (side if isinstance(side, list) else [side])
    ]
    return all(value is None or (isinstance(value, int) and not isinstance(value, bool)) for value in values)


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
    if verdict == "noise" and not causes and _is_due_to_arguments(operators, a, b, measure):
        verdict, reason = "different", f"the arguments differ, and rounding explains less{extent(measure)}"
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
        origins = NO_ORIGINS if has_ended else operators.noise_causes | causes
        if verdict == "noise":
            # Memory without a value was overwritten: values that agree are no accident.
            origins = frozenset(number for number in origins if not state.drafts.are_undefined({number}))
        if verdict == "undecided" and not origins:
            origins = _suspects(state, operators, replace(pair, verdict=verdict, reason=reason))
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


def _suspects(state: RankState, operators: OperatorPair, pair: Pair) -> frozenset[OriginNumber]:
    """Return the origin at an operator that is called differently, and whose output has other bytes on both sides.

    If the inputs are not equal bit for bit, it is reported only if later differences, which are proven, follow from it.
    pair: the output, whose statistics agree
    """
    match, a, b = operators.match, pair.actual, pair.reference
    if match.tensors is not None or state.has_parts or a is None or b is None:
        return NO_ORIGINS
    arguments = differing_arguments(match.actual, match.reference)
    is_rearranged = are_rearranged(a, b)
    if not (arguments and operators.has_equal_inputs) and not (is_rearranged and (arguments or operators.is_replaced)):
        return NO_ORIGINS
    earlier = state.arguments.earlier_origin(match)
    if earlier is not None:
        return frozenset({earlier})
    draft = _draft(state, operators, replace(pair, reason=MAYBE_REARRANGED) if is_rearranged else pair, arguments)
    is_cause = operators.has_equal_inputs and not operators.noise
    is_cast = pair.transformation == "cast" and all(_follows_type(argument, type_of(a, b)) for argument in arguments)
    draft.hidden = not is_cause or is_cast or all(argument.is_rounding for argument in arguments)
    number = state.drafts.add(draft)
    state.arguments.add_origin(match, number)
    return frozenset({number})


def _follows_type(argument: DifferingArgument, dtype: str) -> bool:
    """Return True for the type of a constant, or its value in this type, if a program computes in another type."""
    kind, numbers = float_kind(dtype), argument.numbers
    if argument.name == "dtype" or kind is None or numbers is None:
        return argument.name == "dtype"
    return abs(numbers[0] - numbers[1]) <= 2 * kind.unit * abs(numbers[1])


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


def _add_origin(state: RankState, operators: OperatorPair, pair: Pair) -> OriginNumber:
    """Add an origin, and return its number.

    If an earlier call differed in the same way, no origin is added, and the number of the earlier origin is returned.

    pair: the first output that differs
    """
    reference = operators.match.reference
    arguments = differing_arguments(operators.match.actual, reference)
    number = state.arguments.earlier_origin(operators.match)
    if number is None:
        number = state.drafts.add(_draft(state, operators, pair, arguments))
    else:
        state.drafts[number].explains += 1
    state.arguments.add_origin(operators.match, number)
    # If statistics agree further on, the difference may still go on: an argument that changes a result is an origin. A
    # factor or a summand is none, because another operator may apply it on the other side.
    computes_values = pair.has_one_shape and not is_view(reference.op_type)
    is_of_argument = (
        any(argument.name != _OPERAND for argument in arguments)
        and computes_values
        and pair.measure is not None
        and pair.measure.at is None
    )
    state.drafts[number].is_proven |= is_of_argument
    if state.drafts[number].kind == "structure" and not is_of_argument:
        state.rebuilt.append((number, reference.position))
    return number


def _draft(state: RankState, operators: OperatorPair, pair: Pair, arguments: Sequence[DifferingArgument]) -> Draft:
    match = operators.match
    inputs = inputs_of(match, operators.inputs, operators.written, operators.noise)
    named = [record.parameter for record in (pair.actual, pair.reference) if record is not None and record.parameter]
    evidence = [
        f"{pair.record.label}{f' ({named[0]})' if named else ''}: {pair.reason}",
        *(argument.text for argument in arguments),
        *state.arguments.forward_evidence(match.reference),
    ]
    kind = _origin_kind(operators, pair, inputs, bool(arguments))
    if operators.is_replaced:
        evidence.append(f"{match.actual.op_type} in actual, {match.reference.op_type} in the reference")
    has_same_state = same_generator(match.actual, match.reference) if kind == "random" else None
    if has_same_state is not None:
        evidence.append(_SAME_STATE if has_same_state else _OTHER_STATE)
    evidence += inputs.evidence
    of_module = is_of_module(pair.record)
    outer = state.outer_gradient(match) if of_module else None
    if outer is not None:
        kind, pair = "unknown", outer.pair
        evidence = outer.evidence
    elif of_module and kind == "compute":
        kind = "unknown"
        evidence.append(NOT_RECORDED)
    if kind == "unknown":
        evidence += [*inputs.unread_evidence, *state.unreadable_evidence()]
    if state.rerun is not None and pair.verdict == "different":
        evidence += state.rerun.evidence(match, pair.actual, pair.reference)
    evidence += _others_between(match)
    evidence += _of_ranks(state, pair)
    texts = [argument.text for argument in arguments]
    joined = _call_key(match.reference, texts) if texts else None if outer is None else outer.joined
    is_proven = False
    found = cause_between_frameworks(match, operators.inputs, pair, state.moved_axes) if kind in _UNEXPLAINED else None
    if found is not None and (kind != "unknown" or found.is_other_source):
        kind, pair, evidence, is_proven = found.kind, found.pair, found.evidence, found.is_proven
        joined = found.joined
    elif kind == "compute" and _reads_others(match):
        kind = "unknown"
    # Shards and other layouts have other shapes. So a different shape alone does not prove that values differ.
    reshaped = pair.verdict == "structure" and not pair.has_one_shape
    draft = Draft(
        kind,
        pair,
        evidence,
        reshaped=reshaped,
        first_seen=of_module or not (inputs.is_complete or is_proven),
        joined=joined,
        arguments=texts,
    )
    if of_module and outer is None and kind == "unknown" and pair.record.phase == "forward":
        draft.add_since(state.agreed_in("", pair.record))
    return draft


def _of_ranks(state: RankState, pair: Pair) -> list[str]:
    """Return the evidence of how the parts on several ranks differ from the whole tensor on one rank."""
    shards = state.differences.shards
    if shards is None or pair.actual is None or pair.reference is None:
        return []
    return shards.why_different(pair.actual, pair.reference)


def _others_between(match: Match) -> list[str]:
    """Return the evidence that operators without a partner run between the inputs and the operator."""
    names = [dict.fromkeys(record.op_name for record in records) for records in read_by_others(match)]
    sides = [", ".join([*of_side][:_MOST_BETWEEN]) for of_side in names]
    here, there = sides[0], sides[1] and f"{sides[1]} in the reference"
    if not here and not there:
        return []
    named = "; ".join(filter(None, (here, there)))
    return [f"{RUN_BETWEEN} these inputs and the operator, and may be the cause: {named}"]


def _reads_others(match: Match) -> bool:
    """Return True if each side reads a tensor, between frameworks, that was not compared and may differ already."""
    return match.tensors is not None and all(
        any(math.prod(record.shape or ()) > 1 for record in records) for records in match.unpaired_inputs
    )


def _call_key(operator: Operator, arguments: Sequence[str]) -> Optional[Hashable]:
    """Return the key of calls with different arguments that one change of the program explains; None if unknown.

    An optimizer calls many operators with numbers that follow from one setting, so they have one key per source line.
    In modules, calls of one operator on one line with the same arguments have one key, because layers are alike.
    """
    if not operator.source:
        return None
    if not operator.module and operator.phase == "other":
        return operator.source
    return (operator.source, operator_class(operator.op_type), *arguments)


def _origin_kind(operators: OperatorPair, pair: Pair, inputs: InputEvidence, has_arguments: bool) -> str:
    """Return the kind of the origin. has_arguments: the two calls have different arguments."""
    op_type = operators.match.reference.op_type
    if operators.is_replaced or pair.verdict == "structure" or has_arguments:
        return "structure"
    if operators.match.reference.function in RANDOM:
        return "random"
    if op_type.startswith(COLLECTIVES) and not inputs.unread:
        # The inputs of all ranks may be recorded elsewhere in the dump; `over_ranks` compares them.
        return "collective"
    if inputs.may_differ:
        return "unknown"
    measure = pair.measure
    if inputs.statistics_agree and _is_quotient_of_update(operators.match.reference):
        return "amplification"
    if not inputs.noise or inputs.statistics_agree or measure is None or measure.nonfinite:
        return "compute"
    enlarges = may_enlarge_errors(operators.match.reference.function)
    return "amplification" if enlarges and measure.rel_l2 < _COMPUTE * inputs.largest_error else "compute"


def _is_quotient_of_update(operator: Operator) -> bool:
    """Return True for a division outside of modules and passes, such as that of Adam.

    Adam divides a gradient by its size. So rounding in a tiny gradient, which statistics do not show, changes a step.
    """
    is_of_update = operator.phase not in ("forward", "backward") and not operator.module
    return is_of_update and operator_class(operator.op_type).removeprefix("_foreach_") in ("addcdiv", "div")


def _copies_values(function: str) -> bool:
    """Return True if an operator computes nothing, so that its output has the values of its input."""
    return is_view(function) or function == "copy"
