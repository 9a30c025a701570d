"""Divide the steps of one program at the step boundaries of the other.

A step ends with the update of an optimizer of PyTorch. If a program does not use an optimizer of PyTorch, its steps
are delimited differently, and contain one or several forward passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Optional

from ascend_dump.analysis.alignment.ranks_and_steps import Key, Steps
from ascend_dump.analysis.numerics.statistics_bounds import bounds, rounded_statistics
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = [
    "OperatorSteps",
    "are_parts_of_batches",
    "divided_steps",
    "is_part",
    "may_be_divided",
    "may_be_parts_of_batches",
    "parts_of",
]

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


def may_be_parts_of_batches(steps: Steps) -> bool:
    """Return True if one side has more steps, so that they may be calls with parts of the batches of the other side."""
    counts = [sum(1 for _, *pair in steps if pair[side]) for side in (0, 1)]
    return min(counts) > 0 and max(counts) >= 2 * min(counts)


def are_parts_of_batches(steps: OperatorSteps) -> bool:
    """Return True if a training calls its model with parts of a batch, one step each, and the other with all of it.

    The first steps decide: together, the inputs of the calls are the input of the other side, and no update lies
    between the calls.
    """
    sides = [[operators for _, *pair in steps if (operators := pair[side])] for side in (0, 1)]
    finer, coarser = sides if len(sides[0]) > len(sides[1]) else sides[::-1]
    whole = _inputs_by_name(coarser[0])
    if not all(any(operator.phase == "backward" for operator in side[0]) for side in sides):
        return False
    key = next((key for key, part in _inputs_by_name(finer[0]).items() if is_part(part, whole.get(key))), None)
    if key is None:
        return False
    calls = (_inputs_by_name(operators).get(key) for operators in finer)
    return bool(parts_of(calls, whole[key])) and not _is_updated(*finer[:2])


def parts_of(parts: Iterable[Optional[Record]], whole: Record) -> list[Record]:
    """Return the first of these tensors that together are all rows of another one; [] if none are, by statistics."""
    found: list[Record] = []
    rows, total = 0, (whole.shape or (0,))[0]
    for part in parts:
        if part is None or not is_part(part, whole):
            return []
        found.append(part)
        rows += (part.shape or (0,))[0]
        if rows >= total:
            break
    return found if found and rows == total and _have_equal_statistics(found, whole) else []


def _inputs_by_name(operators: Sequence[Operator]) -> dict[tuple[str, int], Record]:
    return {(record.op_name, record.index): record for operator in operators for record in operator.inputs}


def is_part(part: Record, whole: Optional[Record]) -> bool:
    """Return True if one tensor has fewer rows than the other, and the same shape otherwise."""
    if whole is None or not part.shape or not whole.shape or part.dtype != whole.dtype:
        return False
    return part.shape[0] < whole.shape[0] and part.shape[1:] == whole.shape[1:]


def _have_equal_statistics(parts: Sequence[Record], whole: Record) -> bool:
    try:
        return not bounds(rounded_statistics(*parts), rounded_statistics(whole), whole.dtype or "").unequal
    except AscendDumpError:
        return False


def _is_updated(first: Sequence[Operator], second: Sequence[Operator]) -> bool:
    """Return True if a parameter of the forward pass has another content in the next step."""
    contents = [
        {
            (record.op_name, record.index): record.content
            for operator in operators
            for record in operator.inputs
            if operator.phase == "forward" and record.parameter and record.content is not None
        }
        for operators in (first, second)
    ]
    return any(content != contents[1].get(key, content) for key, content in contents[0].items())
