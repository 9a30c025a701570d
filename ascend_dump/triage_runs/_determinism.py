"""Compare two runs of a program: by the numbers of its steps, and by the hashes of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Optional

from ascend_dump.analysis.compare import Comparison, Pair
from ascend_dump.dump_format import Outline
from ascend_dump.reading import Dump

__all__ = ["first_other_step", "first_unequal", "is_unequal", "other_content", "unequal"]


def first_other_step(a: Sequence[Outline], b: Sequence[Outline]) -> Optional[int]:
    """Return the first step of both runs with other numbers, or None. A step may end in the middle, with its run."""
    steps = []
    for outline, again in zip(a, b):
        for step in outline.steps.keys() & again.steps.keys():
            pairs = zip(outline.steps[step], again.steps[step])
            if any(number != other for number, other in pairs):
                steps.append(step)
    return min(steps, default=None)


def first_unequal(compared: Comparison) -> Iterator[list[Pair]]:
    """Yield the pairs of each operator with equal inputs and unequal outputs, in execution order.

    An operator that one side lacks counts as unequal.
    """
    for pairs in unequal(compared):
        inputs = [pair for pair in pairs if pair.record.io == "input" and pair.actual and pair.reference]
        if all(pair.verdict == "equal" for pair in inputs):
            yield pairs


def unequal(compared: Comparison) -> Iterator[list[Pair]]:
    """Yield the pairs of each operator with an unequal input or output, in execution order."""
    for _, group in groupby(compared.pairs.looked_at(), lambda pair: pair.record.execution):
        pairs = list(group)
        if any(is_unequal(pair) for pair in pairs):
            yield pairs


def is_unequal(pair: Pair) -> bool:
    """Return True if the two tensors differ; not of tensors that carry no value of the program."""
    return pair.verdict not in ("equal", "unreadable") and not pair.undefined


def other_content(before: Dump, again: Dump) -> Optional[str]:
    """Return the first record of a later dump that has another hash than in the earlier one, or None."""
    earlier = dict(_contents(before))
    for key, content in _contents(again):
        if key in earlier and earlier[key] != content:
            _, step, name, io, index = key
            return f"{name}.{io}.{index} in step {step}"
    return None


def _contents(dump: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for record in dump:
        content = record.content
        if content is not None:
            yield (record.rank, record.step, record.op_name, record.io, record.index), content
