"""Choose which pairs to believe if two programs are built differently: products, and operators with equal weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.products import NarrowPart, is_product
from ascend_dump.analysis.alignment.token_parts import distance
from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.reading import Record

__all__ = ["OperatorGroups", "are_built_otherwise", "between_borders", "divided", "in_one_order", "is_inside"]

#: Operators of one call; and for the position of each: the same operator in all calls, by index of the call.
OperatorGroups = tuple[list[Operator], dict[int, dict[int, Operator]]]
#: Tensors with a larger relative distance do not agree: in rounding units, but at least _LEAST_APART.
_UNITS_APART, _LEAST_APART = 64.0, 1e-4


def are_built_otherwise(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if the two programs have few modules in common."""
    modules = [{operator.module_path for operator in side if operator.module} for side in (actual, reference)]
    return 2 * len(modules[0] & modules[1]) < min(map(len, modules))


def divided(group: OperatorGroups, wide: Mapping[int, Sequence[NarrowPart]]) -> OperatorGroups:
    """Return the operators, and the same operators in all calls, with wide products divided into narrow ones.

    wide: the parts of each wide product, by its position
    """
    if not wide:
        return group
    operators: list[Operator] = []
    of_calls: dict[int, dict[int, Operator]] = {}
    for operator in group[0]:
        calls = group[1][operator.position]
        for part in wide.get(operator.position, [None]):
            position = len(operators)
            if part is None:
                base = replace(operator, position=position)
                of_calls[position] = {index: base if op is operator else op for index, op in calls.items()}
            else:
                divided = {index: part.of(op, position) for index, op in calls.items()}
                base = next(divided[index] for index, op in calls.items() if op is operator)
                of_calls[position] = divided
            operators.append(base)
    return operators, of_calls


def in_one_order(match: Match) -> Match:
    """Return the match with `is_crossed` set if a commutative operator has the same weight at the other index."""
    if not commutes(match.reference) or len(match.actual.inputs) != 2:
        return match
    contents = [[record.content for record in operator.inputs] for operator in (match.actual, match.reference)]
    is_crossed = any(
        contents[0][n] is not None and contents[0][n] == contents[1][1 - n] != contents[1][n] for n in (0, 1)
    )
    return match._replace(is_crossed=is_crossed)


def between_borders(
    matches: Sequence[Match], parts: Mapping[int, Optional[Record]], unit: float, agreeing: set[int]
) -> Iterator[Match]:
    """Yield the matches that can be believed, in parts of the programs that are built differently.

    Matches of the mapping, and of two products, are sure. All others are weak. A weak match whose outputs differ is
    dropped if all inputs of the next sure match agree, or if no sure match follows: the operators are not the same.

    parts     by `id` of a record: the record that is compared
    unit      the rounding unit
    agreeing  receives the `id` of the reference operator of each sure match whose inputs agree
    """
    limit = max(_UNITS_APART * unit, _LEAST_APART)
    weak: list[Match] = []
    for match in matches:
        is_sure = match.how == "mapping" or (is_product(match.reference) and is_product(match.actual))
        if not is_sure:
            weak.append(match)
            continue
        agrees = all(_is_near(a, b, parts, limit) for a, b in match.inputs)
        yield from (m for m in weak if not agrees or all(_is_near(a, b, parts, limit) for a, b in m.outputs))
        weak = []
        if agrees:
            agreeing.add(id(match.reference))
        yield match
    yield from (m for m in weak if all(_is_near(a, b, parts, limit) for a, b in m.outputs))


def is_inside(operator: Operator, matches: Sequence[Match], of_actual: bool, agreeing: set[int]) -> bool:
    """Return True if the next match of the mapping after an operator of one side has inputs that agree."""
    sure = [match for match in matches if match.how == "mapping"]
    behind = [match for match in sure if (match.actual if of_actual else match.reference).position > operator.position]
    return bool(behind) and id(behind[0].reference) in agreeing


def _is_near(a: Optional[Record], b: Optional[Record], parts: Mapping[int, Optional[Record]], limit: float) -> bool:
    """Return True if two tensors are compared, and their relative distance is at most `limit`."""
    part_a, part_b = (None if record is None else parts.get(id(record)) for record in (a, b))
    return part_a is not None and part_b is not None and distance(part_a, part_b) <= limit
