"""Compare two runs of a program: by the hashes of their records, or by the numbers in their outlines.

An outline is a file with a few numbers of each step, such as losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Optional

from ascend_dump.analysis.compare import Comparison, Pair
from ascend_dump.dump_format import Outline
from ascend_dump.reading import Dump

__all__ = ["first_other_step", "first_unequal", "is_unequal", "other_content", "unequal"]


def first_other_step(a: Sequence[Outline], b: Sequence[Outline]) -> Optional[int]:
    """Return the first step whose numbers differ between two runs, None if no step differs.

    a, b: the outlines of the processes of each run. A run may end in the middle of a step, so only the numbers that
    both runs have are compared.
    """
    steps = []
    for outline, repeated in zip(a, b):
        for step in outline.steps.keys() & repeated.steps.keys():
            pairs = zip(outline.steps[step], repeated.steps[step])
            if any(number != other for number, other in pairs):
                steps.append(step)
    return min(steps, default=None)


def first_unequal(compared: Comparison) -> Iterator[list[Pair]]:
    """Yield the pairs of each operator with equal inputs and unequal outputs, in execution order.

    An operator that only one side has is included too.
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
    """Return True unless the tensors are equal, cannot be read, or have values that the operator leaves undefined."""
    return pair.verdict not in ("equal", "unreadable") and not pair.undefined


def other_content(before: Dump, repeated: Dump) -> Optional[str]:
    """Describe the first record whose hash in the later dump differs from that in the earlier dump; None if none."""
    earlier = dict(_contents(before))
    for key, content in _contents(repeated):
        if key in earlier and earlier[key] != content:
            _, step, name, io, index = key
            return f"{name}.{io}.{index} in step {step}"
    return None


def _contents(dump: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for record in dump:
        content = record.content
        if content is not None:
            yield (record.rank, record.step, record.op_name, record.io, record.index), content
