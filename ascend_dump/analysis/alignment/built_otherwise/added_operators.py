"""Find operators that only one side runs, or only some of its calls."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Optional

from ascend_dump.analysis.alignment.token_groups import CHOOSING, changes_elements, chosen_behind, computes_floats
from ascend_dump.analysis.alignment.token_parts import TokenPart
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.reading import Record

__all__ = ["added_operator", "added_results", "may_change_results", "scaled_for_choice"]


def added_results(sides: Sequence[Sequence[Operator]], matches: Sequence[Match]) -> list[tuple[int, Operator]]:
    """Return (side, operator) of element-wise operators that only one side runs on the last result of both sides.

    Their results have the last axis of that result, such as that of the vocabulary: a loss has another one. If
    there are other operators behind it, the side goes on with a part that is built otherwise.

    The first number is the side: 0 for actual, 1 for the reference.

    sides: the operators of actual and of the reference
    """
    added = []
    for number, side in enumerate(sides):
        behind = _behind_last(side, matches)
        if all(is_elementwise for _, is_elementwise in behind):
            added += [(number, operator) for operator, _ in behind]
    return added


def scaled_for_choice(sides: Sequence[Sequence[Operator]], matches: Sequence[Match]) -> list[tuple[int, Operator]]:
    """Return (side, operator) of element-wise operators between the last result and a choice of one side only.

    Such an operator may be a temperature that the other side does not record, or a factor of the model.
    """
    scaling: list[list[Operator]] = []
    for side in sides:
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        chosen, last = chosen_behind(side, paired), _last_result(side, paired)
        scaling.append([])
        for operator in side[last + 1 :] if last is not None else ():
            if id(operator) not in chosen or not computes_floats(operator):
                continue
            if not changes_elements(operator) or operator_class(operator.op_type) in CHOOSING:
                break
            scaling[-1].append(operator)
    classes = [[operator_class(operator.op_type) for operator in of_side] for of_side in scaling]
    return [
        (side, operator)
        for side, of_side in enumerate(scaling)
        for operator in of_side
        if operator_class(operator.op_type) not in classes[1 - side]
    ]


def _last_result(side: Sequence[Operator], paired: Container[int]) -> Optional[int]:
    numbers = [n for n, operator in enumerate(side) if id(operator) in paired and computes_floats(operator)]
    return numbers[-1] if numbers else None


def may_change_results(side: Sequence[Operator], matches: Sequence[Match]) -> bool:
    """Return True if a side runs element-wise operators on the last result of both sides that the other side lacks."""
    return any(is_elementwise for _, is_elementwise in _behind_last(side, matches))


def _behind_last(side: Sequence[Operator], matches: Sequence[Match]) -> list[tuple[Operator, bool]]:
    """Return the operators behind the last result of both sides that compute floats, without those of a loss.

    The second value is True for element-wise operators whose result has the last axis of that result.
    """
    paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
    computing = [operator for operator in side if computes_floats(operator)]
    begin = 1 + max((n for n, operator in enumerate(computing) if id(operator) in paired), default=-1)
    if not begin:
        return []
    chosen, axes = chosen_behind(side, paired), {_last_axis(record) for record in computing[begin - 1].outputs}
    return [
        (operator, changes_elements(operator) and _last_axis(operator.outputs[0]) in axes)
        for operator in computing[begin:]
        if id(operator) not in chosen
    ]


def added_operator(
    side: TokenSide, grouped: Container[tuple[int, str]], part: TokenPart, number: int
) -> Optional[tuple[int, Operator]]:
    """Return (index of the call, operator that made the value of a token) if the base call lacks this operator.

    None if the base call has the same operator, or if the operator is unknown.

    side     one side, with its calls
    grouped  (index of the call, name) of the operators that are the same as an operator of the base call
    part     the tokens of a tensor of this side
    number   the number of the token
    """
    for index, record in part.records.items():
        if number not in side.slots[index]:
            continue
        storage = storage_of(record)
        maker: Optional[Operator] = None
        for operator in side.calls[index].operators:
            if any(read is record for read in operator.inputs):
                break
            places = [place[0] for output in operator.outputs if (place := storage_of(output)) is not None]
            computes = computes_floats(operator) or operator_class(operator.op_type) == "_to_copy"
            if storage is not None and storage[0] in places and computes:
                maker = operator
        if maker is not None and (index, maker.op_name) not in grouped:
            return index, maker
    return None


def _last_axis(record: Record) -> tuple[int, ...]:
    return tuple(record.shape or ())[-1:]
