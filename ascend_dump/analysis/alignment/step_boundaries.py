"""Divide the steps of one program at the step boundaries of the other.

A step ends with the update of an optimizer of PyTorch. If a program does not use an optimizer of PyTorch, its steps
are delimited differently, and contain one or several forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from ascend_dump.analysis.alignment.ranks_and_steps import Key, Steps
from ascend_dump.analysis.operators.operator import Operator

__all__ = ["OperatorSteps", "divided_steps", "may_be_divided"]

#: Minimum ratio of the record counts of two paired steps from which the larger one may cover several steps.
_MIN_RATIO = 1.5

#: Rank and step, operators of actual, and of the reference.
OperatorSteps = list[tuple[Key, list[Operator], list[Operator]]]


def may_be_divided(steps: Steps) -> bool:
    """Return True if a step is missing on one side, and a step that both sides have is much larger on one side."""
    sizes = [tuple(sum(map(len, batches)) for batches in pair) for _, *pair in steps]
    return not all(map(all, sizes)) and any(min(size) > 0 and max(size) >= _MIN_RATIO * min(size) for size in sizes)


def divided_steps(steps: OperatorSteps) -> OperatorSteps:
    """Divide the longer steps of one rank at the step boundaries of the other side.

    Boundaries lie before forward passes. The steps are returned unchanged unless both sides have the same number of
    passes in total, every step has a pass, and each of the longer steps ends where a step of the other side ends.
    """
    keys = [[key for key, *pair in steps if pair[side]] for side in (0, 1)]
    sides = [[operators for _, *pair in steps if (operators := pair[side])] for side in (0, 1)]
    finer = 0 if len(sides[0]) > len(sides[1]) else 1
    passes = [list(map(_count_passes, side)) for side in sides]
    ends = [list(accumulate(counts)) for counts in passes]
    are_parts = all(map(all, passes)) and bool(ends[1 - finer]) and set(ends[1 - finer]) < set(ends[finer])
    if not are_parts or ends[0][-1] != ends[1][-1]:
        return steps
    counts = iter(passes[finer])
    sides[1 - finer] = [part for operators in sides[1 - finer] for part in _split_by_passes(operators, counts)]
    return list(zip(keys[finer], *sides))


def _count_passes(operators: Sequence[Operator]) -> int:
    """Return the number of forward passes. A pass is an unbroken sequence of operators of the phase "forward"."""
    return sum(phase == "forward" for phase, _ in groupby(operator.phase for operator in operators))


def _split_by_passes(operators: Sequence[Operator], counts: Iterator[int]) -> Iterator[list[Operator]]:
    """Split the operators into parts. For each part, the next number in `counts` is its number of forward passes.

    The operators after a forward pass belong to the part of this pass.
    """
    part: list[Operator] = []
    remaining = next(counts)
    for phase, run in groupby(operators, key=lambda operator: operator.phase):
        if phase == "forward":
            if remaining == 0:
                yield part
                part, remaining = [], next(counts)
            remaining -= 1
        part += [replace(operator, position=len(part) + index) for index, operator in enumerate(run)]
    yield part
