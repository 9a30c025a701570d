"""What two operators of a pair were called with, where both dumps tell: the arguments that differ, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from ascend_dump._errors import CorruptDump
from ascend_dump.analysis.compare._operators import Operator
from ascend_dump.host import Arguments, Named, TensorOf, plain_text

__all__ = ["arguments_of", "differing_arguments", "same_generator", "tensors_among"]

#: Where an operator runs and how memory lies is no part of what it computes.
_SURROUNDINGS = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
_MOST_SHOWN = 60


def differing_arguments(actual: Operator, reference: Operator) -> list[str]:
    """Such as "eps: 1e-06 here, 1e-05 in the reference"; empty where a dump does not tell, or another operator ran."""
    a, b = arguments_of(actual), arguments_of(reference)
    if a is None or b is None or a.operator != b.operator:
        return []
    found = []
    for name in dict.fromkeys((*a.values, *b.values)):
        left, right = a.values.get(name), b.values.get(name)
        if name not in _SURROUNDINGS and not _is_same(left, right):
            found.append(f"{name}: {_short(left)} here, {_short(right)} in the reference")
    return found


def same_generator(actual: Operator, reference: Operator) -> Optional[bool]:
    """Whether both drew from a generator in the same state; None where that is not known."""
    a, b = arguments_of(actual), arguments_of(reference)
    if a is None or b is None or a.generator is None or b.generator is None:
        return None
    if not a.generator.hash or not b.generator.hash:
        return None
    return a.generator.hash == b.generator.hash


def arguments_of(operator: Operator) -> Optional[Arguments]:
    """None where the dump does not tell."""
    for record in operator.records:
        try:
            return record.arguments
        except CorruptDump:
            return None
    return None


def tensors_among(operator: Operator) -> Optional[set[int]]:
    """The indices of the inputs that it was called with, recorded or not; None where the dump does not tell."""
    known = arguments_of(operator)
    return None if known is None else set(_inputs_in(list(known.values.values())))


def _inputs_in(values: list[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, list):
            yield from _inputs_in(value)
        elif isinstance(value, TensorOf) and value.io == "input":
            yield value.index


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, TensorOf) and isinstance(b, TensorOf):
        return True  # the tensors themselves are compared
    if isinstance(a, Named) and isinstance(b, Named) and a.kind == b.kind == "object":
        return True
    return bool(a == b) or (a != a and b != b)


def _short(value: Any) -> str:
    text = "not given" if value is None else plain_text(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
