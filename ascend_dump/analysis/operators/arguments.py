"""Compare the arguments of the two operators of a pair, if both dumps record arguments."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.names import operation
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.dump_format import Arguments, Named, TensorOf, plain_text
from ascend_dump.errors import CorruptDump

__all__ = [
    "DifferingArgument",
    "are_other_updates",
    "arguments_of",
    "commutes",
    "differing_arguments",
    "in_any_order",
    "numbers_of",
    "same_generator",
    "tensors_among",
]

#: Arguments that are not compared: device and memory layout do not change results, and seeds differ between runs.
_SURROUNDINGS = (
    *("device", "layout", "pin_memory", "memory_format", "non_blocking"),
    *("generator", "seed", "dropout_seed", "philox_seed", "philox_offset"),
)
#: Relative difference of two number arguments up to which rounding before the call may be the only cause.
_ROUNDING = 2.0**-16
_MOST_SHOWN = 60
#: Operators with the same result for both orders of their two inputs.
_COMMUTATIVE = frozenset(
    {
        *("add", "bitwise_and", "bitwise_or", "bitwise_xor", "dot", "eq", "fmax", "fmin", "hypot", "logaddexp"),
        *("logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mul", "ne"),
    }
)

#: Arguments that are axes of the first input.
_AXES = frozenset({"dim", "dims", "dim0", "dim1", "axis"})


class DifferingArgument(NamedTuple):
    """An argument with different values in two operators; None if an operator was called without it."""

    name: str
    actual: Any
    reference: Any

    @property
    def text(self) -> str:
        """Return a text such as "eps: 1e-06 here, 1e-05 in the reference"."""
        return f"{self.name}: {_short(self.actual)} here, {_short(self.reference)} in the reference"

    @property
    def numbers(self) -> Optional[tuple[float, float]]:
        """Return both values as numbers; None if either is not a number."""
        if isinstance(self.actual, (int, float)) and isinstance(self.reference, (int, float)):
            return float(self.actual), float(self.reference)
        return None

    @property
    def is_axis(self) -> bool:
        """True for axes of a tensor, whose numbers depend on the axes that a program puts before them."""
        return self.name in _AXES

    @property
    def is_integer(self) -> bool:
        """True if both values are integers, lists of them, or not given."""
        sides = (side if isinstance(side, list) else [side] for side in (self.actual, self.reference))
        values = [value for side in sides for value in side]
        return all(value is None or (isinstance(value, int) and not isinstance(value, bool)) for value in values)

    @property
    def is_rounding(self) -> bool:
        """Return True if both values are floats, and earlier rounding may explain their difference."""
        if not isinstance(self.actual, float) or not isinstance(self.reference, float):
            return False
        return abs(self.actual - self.reference) <= _ROUNDING * max(abs(self.actual), abs(self.reference))


def differing_arguments(actual: Operator, reference: Operator) -> list[DifferingArgument]:
    """Return the arguments that differ; empty if a dump does not record them, or if the operators are not the same.

    Of two overloads of one operator, the arguments that both have are compared: a product with a number is one of two
    overloads, depending on how the program writes it.
    """
    a, b = arguments_of(actual), arguments_of(reference)
    if a is None or b is None or operation(a.operator) != operation(b.operator):
        return []
    differing = []
    names = dict.fromkeys((*a.values, *b.values))
    if a.operator != b.operator:
        names = {name: None for name in names if name in a.values and name in b.values}
    for name in names:
        value_a, value_b = a.values.get(name), b.values.get(name)
        if name not in _SURROUNDINGS and not _is_same(value_a, value_b):
            differing.append(DifferingArgument(name, value_a, value_b))
    return differing


def are_other_updates(actual: Operator, reference: Operator) -> bool:
    """Return True if only one of two operators writes to its input, and they compute with other numbers.

    Such operators are two ways to compute a result that later operators have in common. For example, one optimizer
    multiplies a parameter by 1 - rate * decay in place, and another one subtracts rate * decay * parameter from it.
    """
    if writes(actual.op_type) == writes(reference.op_type):
        return False
    numbers = [numbers_of(operator) for operator in (actual, reference)]
    return None not in numbers and numbers[0] != numbers[1]


def numbers_of(operator: Operator) -> Optional[list[float]]:
    """Return the arguments that are numbers, and not flags; None if the dump does not record arguments."""
    arguments = arguments_of(operator)
    if arguments is None:
        return None
    return [float(value) for value in arguments.values.values() if type(value) in (int, float)]


def same_generator(actual: Operator, reference: Operator) -> Optional[bool]:
    """Return True if both operators drew random numbers from a generator in the same state; None if this is unknown."""
    a, b = arguments_of(actual), arguments_of(reference)
    if a is None or b is None or a.generator is None or b.generator is None:
        return None
    if not a.generator.hash or not b.generator.hash:
        return None
    return a.generator.hash == b.generator.hash


def arguments_of(operator: Operator) -> Optional[Arguments]:
    """Return the arguments of an operator; None if the dump does not record them."""
    for record in operator.records:
        try:
            return record.arguments
        except CorruptDump:
            return None
    return None


def tensors_among(operator: Operator) -> Optional[set[int]]:
    """Return the indices of all input tensors among the arguments, even of those without a record.

    None if the dump records no arguments.
    """
    arguments = arguments_of(operator)
    return None if arguments is None else set(_inputs_in(list(arguments.values.values())))


def commutes(operator: Operator) -> bool:
    """Return True if the operator has two inputs, and the same result if the inputs are exchanged."""
    if len(operator.inputs) != 2 or operator_class(operator.op_type) not in _COMMUTATIVE or writes(operator.op_type):
        return False
    arguments = arguments_of(operator)
    return arguments is None or arguments.values.get("alpha", 1) == 1


def in_any_order(operator: Operator, inputs: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Return the inputs of an operator as a key. If the operator commutes, both orders of its inputs have one key."""
    return tuple(sorted(inputs, key=repr)) if commutes(operator) else tuple(inputs)


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
