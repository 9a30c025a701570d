"""Divide operators where two programs are built differently, so that both have the same products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.built_otherwise.products import NarrowPart, is_product
from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["OperatorGroups", "are_built_otherwise", "divided", "in_one_order"]

#: Operators of one call; and for the position of each: the same operator in all calls, by index of the call.
OperatorGroups = tuple[list[Operator], dict[int, dict[int, Operator]]]


def are_built_otherwise(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if the two programs have few modules in common, or each has products in modules of its own.

    A program of functions has no modules, so that it has none in common with a program that has modules.
    """
    sides = (actual, reference)
    modules = [{operator.module_path for operator in side if operator.module} for side in sides]
    products = [
        {operator.module_path for operator in side if operator.module and is_product(operator)} for side in sides
    ]
    if not all(modules):
        return any(modules)
    has_few = 2 * len(modules[0] & modules[1]) < min(map(len, modules))
    return has_few or bool(products[0] - products[1] and products[1] - products[0])


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
        parts: Sequence[Optional[NarrowPart]] = wide.get(operator.position, [None])
        for part in parts:
            position = len(operators)
            if part is None:
                operators.append(replace(operator, position=position))
                of_calls[position] = calls
            else:
                # In its own call, an operator keeps its position.
                of_calls[position] = {index: part.of(op) for index, op in calls.items()}
                base = next(of_calls[position][index] for index, op in calls.items() if op is operator)
                operators.append(replace(base, position=position))
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
