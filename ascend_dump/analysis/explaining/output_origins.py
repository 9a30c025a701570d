"""Add the origin at an operator whose output differs, with its kind and its evidence."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.explaining.between_frameworks import cause_between_frameworks, read_by_others
from ascend_dump.analysis.explaining.drafts import Draft
from ascend_dump.analysis.explaining.input_evidence import InputEvidence, inputs_of
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.rank_state import MAYBE_REARRANGED, RankState
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, OriginNumber
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import type_of
from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments, same_generator
from ascend_dump.analysis.operators.module_calls import NOT_RECORDED
from ascend_dump.analysis.operators.names import is_view, may_enlarge_errors
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import COLLECTIVES, RANDOM, operator_class
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["RUN_BETWEEN", "add_origin", "has_no_substitute", "suspected_origins"]

#: The beginning of the evidence that other operators may be the cause.
RUN_BETWEEN = "operators without a partner run between"
#: If the error of an output is this many times the largest error of the inputs, the operator computed wrongly, even if
#: operators of its type enlarge errors.
_COMPUTE = 100.0
#: Maximum number of operators of each side that a line of evidence names.
_MOST_BETWEEN = 3
#: The argument of elementwise arithmetic that is a number in place of a tensor; the one that a mask fills in.
_OPERAND, _FILL = "other", ("masked_fill", "value")
#: Arguments that are added to what an operator divides by. Nothing on the other side makes up for them, even if later
#: norms leave less of the difference than rounding is.
_ADDED_TO_DIVISOR = frozenset({"eps", "epsilon"})
_SAME_STATE = "the generator state is the same on both sides"
#: Kinds of origins for which a comparison of two frameworks may find a cause.
_UNEXPLAINED = ("compute", "amplification", "unknown")
_OTHER_STATE = "the generator state differs already: seed both programs alike, or find the extra random call"


def suspected_origins(state: RankState, operators: OperatorPair, pair: Pair) -> frozenset[OriginNumber]:
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


def has_no_substitute(argument: DifferingArgument) -> bool:
    """Return True for an argument for which no other operator makes up: an epsilon, or a word."""
    is_word = isinstance(argument.actual, str) and isinstance(argument.reference, str)
    return argument.name in _ADDED_TO_DIVISOR or (is_word and "dtype" not in argument.name)


def add_origin(state: RankState, operators: OperatorPair, pair: Pair) -> OriginNumber:
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
    computes_values = pair.has_one_shape and not is_view(reference.op_type) and pair.measure is not None
    is_of_argument = computes_values and (
        any(argument.name != _OPERAND and (reference.function, argument.name) != _FILL for argument in arguments)
        if pair.measure is not None and pair.measure.at is None
        else any(map(has_no_substitute, arguments)) and not operators.causes
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
    evidence += operators.integers
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
    if operators.is_replaced or pair.verdict == "structure" or has_arguments or operators.integers:
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
