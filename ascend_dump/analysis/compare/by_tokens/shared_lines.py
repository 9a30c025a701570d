"""Name the call of the first token that differs, and the lines around an operator whose own line runs several times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.origins import differing_tokens
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.operators.operator import Operator

__all__ = ["with_calls", "with_lines_around"]


def with_calls(origins: Sequence[Origin], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins at the calls that compute the first token that differs.

    The calls of an operator are compared at once, under its name and step in a single one of them.
    """
    return [_at_call(origin, next(iter(differing_tokens(origin.pair)), None), alignment) for origin in origins]


def _at_call(origin: Origin, number: Optional[int], alignment: TokenAlignment) -> Origin:
    """Return an origin whose records have the names and steps of the call of a token. number: that of the token"""
    if number is None:
        return origin
    sides = [origin.pair.actual, origin.pair.reference]
    for side, record in enumerate(sides):
        name, bracket, part = ("", "", "") if record is None else record.op_name.partition("[")
        operator = next((op for op in alignment.base_operators(side) if op.op_name == name), None)
        moved = None if operator is None else alignment.at_token(side, operator, number)
        of_call = None if moved is None else next(iter(moved.records), None)
        if record is not None and moved is not None and of_call is not None:
            sides[side] = changed = copy(record)
            changed.op_name, changed.step = f"{moved.op_name}{bracket}{part}", of_call.step
    return replace(origin, pair=replace(origin.pair, actual=sides[0], reference=sides[1]))


def with_lines_around(origins: Sequence[Origin], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins, with the lines around the operator of the first one if its own line runs several times."""
    for origin in origins[:1]:
        side, key = int(origin.pair.actual is None), (origin.pair.record.step, origin.op_name.partition("[")[0])
        for call in alignment.calls[side]:
            steps = (next((record.step for record in operator.records), None) for operator in call.operators)
            keys = zip(steps, (operator.op_name for operator in call.operators))
            number = next((number for number, of_operator in enumerate(keys) if of_operator == key), None)
            fact = None if number is None else _lines_around(call.operators, number)
            if fact is not None:
                return [replace(origin, evidence=(*origin.evidence, fact)), *origins[1:]]
    return [*origins]


def _lines_around(operators: Sequence[Operator], number: int) -> Optional[str]:
    """Return a sentence with the nearest lines that run less often in the same module; None if there are none.

    number: the index of the operator
    """
    operator = operators[number]
    inside = [(n, op.source) for n, op in enumerate(operators) if op.module == operator.module]
    counts = _runs(op for op in operators if op.module == operator.module)
    count = counts[operator.source]
    before = [source for n, source in inside if n < number and counts[source] < count]
    behind = [source for n, source in inside if n > number and counts[source] < count]
    if not operator.source or not before or not behind or count < 2:
        return None
    lines = " and ".join(line.rpartition("/")[2] for line in (before[-1], behind[0]))
    return f"the line of {operator.op_name} runs {count} times in a call; this is between {lines}"


def _runs(operators: Iterable[Operator]) -> Counter[str]:
    """Count how often each line runs: a line may run several operators each time."""
    most: dict[str, Counter[str]] = {}
    for operator in operators:
        most.setdefault(operator.source, Counter())[operator.op_type] += 1
    return Counter({source: min(of_line.values()) for source, of_line in most.items()})
