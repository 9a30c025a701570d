"""Pair the operators of one network in two frameworks, which have other names, other layouts and other borders; and
those of a program with what a compiler took apart.

Names and order tell little there: one side fuses what the other spells out, and branches run in any order. Tensors tell
more: the same network on the same data makes the same values up to rounding, whatever their layout. `_passes.py` pairs
operators by that.

Where one side has one operator for what the other has several for (the gradients of a convolution), these are paired
with its other outputs. Operators between paired ones belong to the pair that reads them: of them only the tensors that
both sides have are compared. Views and sources (constants, variables) are no operators here, nor are modules whose
tensors are those of functions that are recorded too, nor what makes no floating-point values; all these are left out,
and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.permutations import find_layout
from ascend_dump.analysis.numerics.tensor_pair import Types, identity_of, type_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.cross_framework_passes import PairedOperators, pair_operators
from ascend_dump.analysis.pairing.fusion_names import Told, is_fused
from ascend_dump.analysis.pairing.module_duplicates import without_modules
from ascend_dump.analysis.pairing.program_graph import Output, Read, Side, output_of
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.reading import Record

__all__ = ["Across", "is_across", "pair_across"]

#: Two programs that share fewer of all their types of operators, and fewer of those of the smaller one, are written for
#: different frameworks.
_SHARED, _CONTAINED = 0.34, 0.8
#: Of a program that was taken apart, more of the types of operators of both sides together are those of one side alone.
_ALONE = 0.05
#: As MindSpore calls its operators.
_NUMBERED = re.compile(r"-op\d+$")
#: How far outputs of the same inputs may be apart, in units of rounding of the coarser type.
_AGREE = 64
_Sides = tuple[Optional[Record], Optional[Record]]


@dataclass
class Across:
    """What was paired: matches in the order of the reference, and the operators that only one side has.

    inside      operators of each side whose tensors the other side does not have, between paired ones
    left_out    operators of each side that are neither paired, nor inside, nor alone
    views       by the identity of a tensor of each side: that of which it is a view
    types       by the identity of a tensor of each side: the types in which the program has its elements
    """

    matches: list[Match] = field(default_factory=list)
    alone: tuple[list[Operator], list[Operator]] = field(default_factory=lambda: ([], []))
    inside: tuple[int, int] = (0, 0)
    left_out: tuple[int, int] = (0, 0)
    views: tuple[dict[Hashable, Hashable], dict[Hashable, Hashable]] = field(default_factory=lambda: ({}, {}))
    types: Types = field(default_factory=lambda: ({}, {}))


def is_across(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Whether these are programs of two frameworks, by the types of their operators, or two graphs of one program of
    which one was fused, or its operators taken apart.

    Those of PyTorch have a namespace, and MindSpore numbers the names of operators in its own way. A part of a program
    has types that the whole has too.
    """
    types = [{one.op_type for one in side if one.op_type} for side in (actual, reference)]
    if not all(types):
        return False
    eager = [any("::" in name for name in names) for names in types]
    if any(eager):
        return not all(eager) or _is_decomposed(actual, reference)
    numbered = [
        2 * sum(_NUMBERED.search(one.op_name) is not None for one in side) > len(side) for side in (actual, reference)
    ]
    if numbered[0] != numbered[1] or is_fused(actual, reference):
        return True
    shared = len(types[0] & types[1])
    return shared < _SHARED * len(types[0] | types[1]) and shared < _CONTAINED * min(map(len, types))


def _is_decomposed(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Whether neither program has modules of the other, and both run operators that the other never runs.

    What operators are taken apart into are mostly operators that both run: one type may be all that is new.
    """
    modules = [{one.place for one in side if one.place} for side in (actual, reference)]
    if modules[0] & modules[1] or not any(modules):
        return False
    types = [{operator_class(one.op_type) for one in side if not is_view(one.op_type)} for side in (actual, reference)]
    alone = [own - other for own, other in (types, types[::-1])]
    return all(alone) and sum(map(len, alone)) > _ALONE * sum(map(len, types))


def pair_across(
    actual: Sequence[Operator], reference: Sequence[Operator], mapping: Optional[Mapping[str, str]] = None
) -> Across:
    """Pair the operators of one step of two programs in different frameworks.

    mapping: names of operators of actual, and those of the reference that make the same.
    """
    given = len(actual), len(reference)
    actual, reference = without_modules(actual), without_modules(reference)
    a, b = Side(actual), Side(reference)
    pairs = pair_operators(a, b, mapping or {})
    found = Across(views=(a.views, b.views), types=(a.types, b.types))
    told = Told(actual, reference)
    pieces = _pieces(a, b, pairs, told)
    paired_places = (
        {one.place for one in pairs.values()} | {one.left for one in pieces},
        {*pairs, *(one.right for one in pieces)},
    )
    belong = a.leading_to(paired_places[0]), b.leading_to(paired_places[1])
    outputs = {
        right: _outputs(
            a.tensors[one.place],
            b.tensors[right],
            told.outputs(one.place, right),
            one_operator=actual[one.place].op_type == reference[right].op_type,
        )
        for right, one in pairs.items()
    }
    every = [*(pair for sides in outputs.values() for pair in sides), *(one.sides for one in pieces)]
    same = {(identity_of(x), identity_of(y)) for x, y in every if x is not None and y is not None}
    for right, one in pairs.items():
        agree = _agree(a.tensors[one.place][0], b.tensors[right][0])
        read, apart = _inputs(a, b, one.place, right, paired_places, same, agree=agree)
        sides = (read, outputs[right])
        found.matches.append(Match(actual[one.place], reference[right], one.how, one.confidence, sides, apart))
    for piece in pieces:
        read, apart = _inputs(a, b, piece.left, piece.right, paired_places, same, agree=True)
        operators = actual[piece.left], reference[piece.right]
        found.matches.append(Match(*operators, piece.how, piece.confidence, (read, [piece.sides]), apart))
    found.matches.sort(key=lambda match: match.reference.position)
    told_of = [paired | inner for paired, inner in zip(paired_places, belong)]
    for number, side in enumerate((a, b)):
        broken = {place for place, one in enumerate(side.operators) if one.broken}
        alone = [place for place in side.computing if place not in told_of[number]]
        alone += sorted(broken.difference(alone, paired_places[number]))
        found.alone[number].extend(side.operators[place] for place in alone)
        told_of[number].update(alone)
    found.inside = (len(belong[0]), len(belong[1]))
    found.left_out = (given[0] - len(told_of[0]), given[1] - len(told_of[1]))
    return found


class _Piece(NamedTuple):
    """An operator without a partner, an output of which is another output of an operator of the other side."""

    left: int
    right: int
    sides: _Sides
    how: str = "value"
    confidence: float = 0.9


def _pieces(a: Side, b: Side, pairs: PairedOperators, told: Told) -> list[_Piece]:
    taken = {one.place for one in pairs.values()}
    found = [_Piece(*one, "provenance", 1.0) for one in told.apart((taken, pairs))]
    known = {one.left for one in found} - taken, {one.right for one in found} - set(pairs)
    for right in b.computing:
        if right not in pairs and right not in known[1]:
            tensor = b.tensors[right][0]
            other = _among_others(a, tensor)
            if other is not None:
                found.append(_Piece(other.operator, right, (other.record, tensor.record)))
    done = {piece.left for piece in found}
    for left in a.computing:
        if left not in taken and left not in done and left not in known[0]:
            tensor = a.tensors[left][0]
            other = _among_others(b, tensor)
            if other is not None:
                found.append(_Piece(left, other.operator, (tensor.record, other.record)))
    return found


def _among_others(side: Side, tensor: Output) -> Optional[Output]:
    """The output of an operator, not its first one, that has these values."""
    if tensor.size < 2 or tensor.norm == 0:
        return None
    others = (one for place in side.computing for one in side.tensors[place][1:])
    return next((one for one in others if one.is_same(tensor)), None)


def _inputs(
    a: Side,
    b: Side,
    left: int,
    right: int,
    paired: tuple[set[int], set[int]],
    same: set[tuple[Optional[Hashable], Optional[Hashable]]],
    *,
    agree: bool,
) -> tuple[list[_Sides], tuple[list[Record], list[Record]]]:
    """The inputs of two paired operators that are the same tensor: outputs that are paired, or the same values.

    Of other values those that have one size and nothing else to go by, unless the outputs agree: what is made of them
    shows then that they are no partners. And what is left of each side.
    """
    read_a, read_b = a.reads_outside(left, paired[0]), b.reads_outside(right, paired[1])
    found: list[_Sides] = []

    def take(i: int, j: int) -> None:
        found.append((read_a.pop(i)[0], read_b.pop(j)[0]))

    def is_same(one: Read, other: Read) -> bool:
        return (one[1], other[1]) in same

    tests: list[Callable[[Read, Read], bool]] = [
        lambda one, other: is_same(one, other) and _are_near(one, other),
        # One side may read a part of what the other reads as a whole: these are no pair.
        lambda one, other: is_same(one, other) and _of_one_size(one, other),
        _same_values,
    ]
    for test in tests if agree else [*tests, _same_size]:
        j = 0
        while j < len(read_b):
            i = next((i for i, one in enumerate(read_a) if test(one, read_b[j])), None)
            if i is None:
                j += 1
            else:
                take(i, j)
    return found, ([one[0] for one in read_a], [one[0] for one in read_b])


def _agree(one: Output, other: Output) -> bool:
    """Whether two outputs are the same values up to rounding."""
    import numpy as np

    if one.array is None or other.array is None:
        return one.is_same(other)
    layout = find_layout(one.array, other.array)
    kind = float_kind(type_of(one.record, other.record))
    if layout is None or kind is None:
        return False
    with np.errstate(invalid="ignore"):
        distance = layout.of(one.array).astype(np.float64) - other.array.astype(np.float64)
    return float(np.linalg.norm(distance[np.isfinite(distance)])) <= _AGREE * kind.unit * other.norm


def _same_values(one: Read, other: Read) -> bool:
    return one[2] is None and other[2] is None and _are_near(one, other)


def _are_near(one: Read, other: Read) -> bool:
    left, right = output_of(0, one[0]), output_of(0, other[0])
    return left is not None and right is not None and left.is_same(right)


def _of_one_size(one: Read, other: Read) -> bool:
    return math.prod(one[0].shape or ()) == math.prod(other[0].shape or ())


def _same_size(one: Read, other: Read) -> bool:
    """A parameter that differs: nothing but its size tells what it is."""
    if one[2] is not None or other[2] is not None:
        return False
    size = math.prod(other[0].shape or ())
    return size > 1 and math.prod(one[0].shape or ()) == size


def _is_at_same_place(one: Output, other: Output) -> bool:
    return one.record.index == other.record.index and one.record.shape == other.record.shape


def _outputs(a: Sequence[Output], b: Sequence[Output], told: Sequence[_Sides], *, one_operator: bool) -> list[_Sides]:
    """Those of which the dump tells; else the first ones if they are of one size. Of the others those that are the same
    values; where both are one and the same operator also those at the same place, since gradients that are rounding
    alone have other values."""
    found: list[_Sides] = list(told)
    known = {id(record) for sides in told for record in sides}
    rest, others = ([one for one in side if id(one.record) not in known] for side in (a, b))
    if not told and rest[0].size == others[0].size:
        found.append((rest.pop(0).record, others.pop(0).record))
    tests: list[Callable[[Output, Output], bool]] = [Output.is_same, _is_at_same_place]
    for test in tests if one_operator else tests[:1]:
        for tensor in list(others):
            one = next((one for one in rest if test(one, tensor)), None)
            if one is not None:
                rest.remove(one)
                others.remove(tensor)
                found.append((one.record, tensor.record))
    return found or [(a[0].record, b[0].record)]
