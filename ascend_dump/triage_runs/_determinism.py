"""Whether a program does the same again: by the numbers of its steps, and by the hashes of what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Optional

from ascend_dump.analysis.compare import Comparison, Pair
from ascend_dump.dump_format import Outline
from ascend_dump.reading import Dump

__all__ = ["first_other_step", "first_unequal", "is_unequal", "other_content", "unequal"]


def first_other_step(a: Sequence[Outline], b: Sequence[Outline]) -> Optional[int]:
    """The first step that both have with other numbers; None where there is none."""
    found = []
    for one, other in zip(a, b):
        found += [step for step in one.steps.keys() & other.steps.keys() if one.steps[step] != other.steps[step]]
    return min(found, default=None)


def first_unequal(compared: Comparison) -> Iterator[list[Pair]]:
    """The pairs of operators whose inputs are equal on both sides, and whose outputs are not, in the order they ran.

    An operator that one side lacks is one of them.
    """
    for pairs in unequal(compared):
        inputs = [one for one in pairs if one.record.io == "input" and one.actual and one.reference]
        if all(one.verdict == "equal" for one in inputs):
            yield pairs


def unequal(compared: Comparison) -> Iterator[list[Pair]]:
    """The pairs of operators of which an input or an output is not equal, in the order they ran."""
    for _, group in groupby(compared.pairs.looked_at(), lambda pair: pair.record.execution):
        pairs = list(group)
        if any(is_unequal(one) for one in pairs):
            yield pairs


def is_unequal(pair: Pair) -> bool:
    return pair.verdict not in ("equal", "unreadable") and not pair.undefined


def other_content(before: Dump, again: Dump) -> Optional[str]:
    """The first record of a later dump whose content was another one before, by hashes; None where there is none."""
    known = dict(_contents(before))
    for key, content in _contents(again):
        if key in known and known[key] != content:
            _, step, name, io, index = key
            return f"{name}.{io}.{index} in step {step}"
    return None


def _contents(dump: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for record in dump:
        content = record.content
        if content is not None:
            yield (record.rank, record.step, record.op_name, record.io, record.index), content
