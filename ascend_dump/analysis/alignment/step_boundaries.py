"""Divide the steps of one program where those of the other begin.

A step ends with the update of an optimizer of PyTorch. A program with its own optimizer has other steps, of one or
several forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from ascend_dump.analysis.alignment.ranks_and_steps import Key, Steps
from ascend_dump.analysis.operators.operator import Operator

__all__ = ["OperatorSteps", "divided_steps", "may_be_divided"]

#: A step of several others has about so many times their records, or more.
_LARGER = 1.5

#: Rank and step, operators of actual, and of the reference.
OperatorSteps = list[tuple[Key, list[Operator], list[Operator]]]


def may_be_divided(steps: Steps) -> bool:
    """Return True if one side lacks steps, and a step that it has is larger than that of the other side."""
    sizes = [tuple(sum(map(len, batches)) for batches in sides) for _, *sides in steps]
    return not all(map(all, sizes)) and any(min(size) > 0 and max(size) >= _LARGER * min(size) for size in sizes)


def divided_steps(steps: OperatorSteps) -> OperatorSteps:
    """Return the steps of one rank; if one side has more of them, those of the other side are divided like these.

    They are divided before forward passes, so both sides need the same number of forward passes in total.
    """
    keys = [[key for key, *sides in steps if sides[side]] for side in (0, 1)]
    sides = [[operators for _, *sides in steps if (operators := sides[side])] for side in (0, 1)]
    finer = 0 if len(sides[0]) > len(sides[1]) else 1
    passes = [list(map(_passes, side)) for side in sides]
    ends = [list(accumulate(counts)) for counts in passes]
    are_parts = all(passes[finer]) and bool(ends[1 - finer]) and set(ends[1 - finer]) < set(ends[finer])
    if not are_parts or ends[0][-1] != ends[1][-1]:
        return steps
    counts = iter(passes[finer])
    sides[1 - finer] = [part for operators in sides[1 - finer] for part in _parts(operators, counts)]
    return list(zip(keys[finer], *sides))


def _passes(operators: Sequence[Operator]) -> int:
    """Return the number of forward passes: of runs of operators of that phase."""
    return sum(phase == "forward" for phase, _ in groupby(operator.phase for operator in operators))


def _parts(operators: Sequence[Operator], counts: Iterator[int]) -> Iterator[list[Operator]]:
    """Yield the operators of as many forward passes as each count says, with what follows these passes."""
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
