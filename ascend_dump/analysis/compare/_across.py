"""Pair the operators of one network in two frameworks, which have other names, other layouts and other borders; and
those of a program with what a compiler took apart.

Names and order tell little there: one side fuses what the other spells out, and branches run in any order. Tensors tell
more: the same network on the same data makes the same values up to rounding, whatever their layout. Passes, strongest
first, each taking what is left:

mapping     the user says so
provenance  the dump, or a graph beside it, says of what an operator was made (GE, torchair); what both sides call by
            one name
value       the outputs are the same values in some layout
parameter   the same operation reads the same parameter, which no other reads
inputs      the same operation reads what paired operators made, which no other does
order       the longest common row of operations and shapes, where values differ: behind a fault
dataflow    what two paired operators read, made by one operator without a partner on each side

Where one side has one operator for what the other has several for (the gradients of a convolution), these are paired
with its other outputs. Operators between paired ones belong to the pair that reads them: of them only the tensors that
both sides have are compared. Views and sources (constants, variables) are no operators here, nor are modules whose
tensors are those of functions that are recorded too.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.compare._floats import float_kind
from ascend_dump.analysis.compare._layouts import find_layout
from ascend_dump.analysis.compare._match import Match, common
from ascend_dump.analysis.compare._modules import without_modules
from ascend_dump.analysis.compare._names import is_view
from ascend_dump.analysis.compare._operators import Operator
from ascend_dump.analysis.compare._provenance import Told, is_fused, origins_of
from ascend_dump.analysis.compare._records import Types, identity_of, type_of
from ascend_dump.analysis.compare._sides import NEAR, Output, Read, Side, output_of
from ascend_dump.analysis.compare._types import operator_class
from ascend_dump.reading import Record

__all__ = ["Across", "is_across", "pair_across"]

#: Two programs that share fewer of all their types of operators, and fewer of those of the smaller one, are written for
#: different frameworks.
_SHARED, _CONTAINED = 0.34, 0.8
#: Of a program that was taken apart, more of the types of operators of each side are not those of the other.
_ALONE = 0.05
#: As MindSpore calls its operators.
_NUMBERED = re.compile(r"-op\d+$")
#: Of the operators that have the same order, one part in so many is taken at a time.
_AT_ONCE = 8
#: How far outputs of the same inputs may be apart, in units of rounding of the coarser type.
_AGREE = 64
_Sides = tuple[Optional[Record], Optional[Record]]


class _Found(NamedTuple):
    """The place of an operator of actual, and what tells that it belongs to one of the reference."""

    place: int
    how: str
    confidence: float


#: By the place of the operator of the reference.
_Pairs = dict[int, _Found]


@dataclass
class Across:
    """What was paired: matches in the order of the reference, and the operators that only one side has.

    inside      operators of each side whose tensors the other side does not have, between paired ones
    views       by the identity of a tensor of each side: that of which it is a view
    types       by the identity of a tensor of each side: the types in which the program has its elements
    """

    matches: list[Match] = field(default_factory=list)
    alone: tuple[list[Operator], list[Operator]] = field(default_factory=lambda: ([], []))
    inside: tuple[int, int] = (0, 0)
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
    """Whether neither program has modules of the other, and both run operators that the other never runs."""
    modules = [{one.place for one in side if one.place} for side in (actual, reference)]
    if modules[0] & modules[1] or not any(modules):
        return False
    types = [{operator_class(one.op_type) for one in side if not is_view(one.op_type)} for side in (actual, reference)]
    return all(len(own - other) > _ALONE * len(own) for own, other in (types, types[::-1]))


def pair_across(
    actual: Sequence[Operator], reference: Sequence[Operator], mapping: Optional[Mapping[str, str]] = None
) -> Across:
    """Pair the operators of one step of two programs in different frameworks.

    mapping: names of operators of actual, and those of the reference that make the same.
    """
    actual, reference = without_modules(actual), without_modules(reference)
    a, b = Side(actual), Side(reference)
    pairs: _Pairs = {}
    _by_mapping(a, b, mapping or {}, pairs)
    _by_provenance(a, b, pairs)
    _by_value(a, b, pairs)
    _by_parameter(a, b, pairs)
    _by_inputs(a, b, pairs)
    while _by_order(a, b, pairs):
        _by_inputs(a, b, pairs)
    _by_dataflow(a, b, pairs)
    _drop_strangers(a, b, pairs)
    found = Across(views=(a.views, b.views), types=(a.types, b.types))
    told = Told(actual, reference)
    pieces = _pieces(a, b, pairs, told)
    paired_places = (
        {one.place for one in pairs.values()} | {one.left for one in pieces},
        {*pairs, *(one.right for one in pieces)},
    )
    belong = _inner(a, paired_places[0]), _inner(b, paired_places[1])
    outputs = {
        right: _outputs(a.tensors[one.place], b.tensors[right], told.outputs(one.place, right))
        for right, one in pairs.items()
    }
    every = [*(pair for sides in outputs.values() for pair in sides), *(one.sides for one in pieces)]
    same = {(identity_of(x), identity_of(y)) for x, y in every if x is not None and y is not None}
    for right, one in pairs.items():
        agree = _agree(a.tensors[one.place][0], b.tensors[right][0])
        tensors = (_inputs(a, b, one.place, right, paired_places, same, agree=agree), outputs[right])
        found.matches.append(Match(actual[one.place], reference[right], one.how, one.confidence, tensors))
    for piece in pieces:
        tensors = (_inputs(a, b, piece.left, piece.right, paired_places, same, agree=True), [piece.sides])
        found.matches.append(Match(actual[piece.left], reference[piece.right], piece.how, piece.confidence, tensors))
    found.matches.sort(key=lambda match: match.reference.position)
    for number, (side, paired) in enumerate(zip((a, b), paired_places)):
        for place in side.computing:
            if place not in paired and place not in belong[number]:
                found.alone[number].append(side.operators[place])
        broken = [one for one in side.operators if one.broken]
        found.alone[number].extend(one for one in broken if one not in found.alone[number])
    found.inside = (len(belong[0]), len(belong[1]))
    return found


def _by_mapping(a: Side, b: Side, mapping: Mapping[str, str], pairs: _Pairs) -> None:
    by_name = {b.operators[place].op_name: place for place in b.computing}
    for left in a.computing:
        right = by_name.get(mapping.get(a.operators[left].op_name, ""))
        if right is not None:
            pairs.setdefault(right, _Found(left, "mapping", 1.0))


def _by_provenance(a: Side, b: Side, pairs: _Pairs) -> None:
    """Of a fused operator the names of what it was made of; else its own, where the operation is the same too."""
    origins = [{place: origins_of(side.operators[place]) for place in side.computing} for side in (a, b)]
    makers = {name: place for place, names in origins[1].items() for name in names}
    own = {b.operators[place].op_name: place for place in b.computing}
    taken = {found.place for found in pairs.values()}

    def pair(left: int, right: Optional[int], how: str, confidence: float) -> None:
        if right is not None and right not in pairs and left not in taken:
            pairs[right] = _Found(left, how, confidence)
            taken.add(left)

    for left, names in origins[0].items():
        name = a.operators[left].op_name
        for one in names:
            pair(left, own.get(one), "provenance", 1.0)
            pair(left, makers.get(one), "provenance", 1.0)
        pair(left, makers.get(name), "provenance", 1.0)
        same = own.get(name)
        if same is not None and a.operators[left].op_type == b.operators[same].op_type:
            pair(left, same, "name", 0.9)


def _by_value(a: Side, b: Side, pairs: _Pairs) -> None:
    """By the first outputs: others (means, masks) are values that other programs compute on the way."""
    known = sorted((a.tensors[place][0] for place in a.computing), key=lambda one: one.norm)
    norms = [one.norm for one in known]
    taken = {found.place for found in pairs.values()}
    for count, right in enumerate(b.computing):
        tensor = b.tensors[right][0]
        if right in pairs or tensor.size < 2 or tensor.norm == 0:
            continue
        low, high = (bisect_left(norms, tensor.norm * (1 + sign * 2 * NEAR)) for sign in (-1, 1))
        candidates = [one for one in known[low:high] if one.operator not in taken and one.near(tensor)]
        # The same operation first, and of several the one that runs at about the same time.
        share = count / len(b.computing)
        candidates.sort(key=lambda one: (not _alike(a, b, one.operator, right), abs(_share(a, one) - share)))
        for one in candidates:
            if find_layout(one.array, tensor.array) is not None:
                taken.add(one.operator)
                pairs[right] = _Found(one.operator, "value", 0.95)
                break


def _by_parameter(a: Side, b: Side, pairs: _Pairs) -> None:
    taken = {found.place for found in pairs.values()}
    readers_a, readers_b = (
        _readers(side, [place for place in side.computing if place not in paired])
        for side, paired in ((a, taken), (b, set(pairs)))
    )
    for places, tensor in readers_b:
        others = [(some, one) for some, one in readers_a if _same_parameter(one, tensor)]
        if len(others) != 1 or any(one is not tensor and _same_parameter(one, tensor) for _, one in readers_b):
            continue
        for right in places:
            left = [place for place in others[0][0] if place not in taken and _alike(a, b, place, right)]
            if len(left) == 1 and right not in pairs:
                pairs[right] = _Found(left[0], "parameter", 0.9)
                taken.add(left[0])


def _readers(side: Side, places: Sequence[int]) -> list[tuple[list[int], Output]]:
    """What nobody computed, and the operators that read it; one that continues another reads what that reads."""
    found: dict[Hashable, tuple[list[int], Output]] = {}
    for place in places:
        reads = list(side.reads(place))
        if side.is_linear(place):
            reads += [read for one in side.before(place) for read in side.reads(one)]
        for record, root, maker in reads:
            tensor = output_of(place, record) if maker is None and root is not None else None
            if tensor is not None and tensor.size > 1 and tensor.norm > 0:
                known, _ = found.setdefault(root, ([], tensor))
                known.append(place)
    return list(found.values())


def _same_parameter(one: Output, other: Output) -> bool:
    return one.near(other) and find_layout(one.array, other.array) is not None


def _by_inputs(a: Side, b: Side, pairs: _Pairs) -> None:
    """Again and again, since what is paired so is read by others."""
    more = True
    while more:
        number = {one.place: right for right, one in pairs.items()}
        left = _by_key(a, [place for place in a.computing if place not in number], number)
        right = _by_key(b, [place for place in b.computing if place not in pairs], {place: place for place in pairs})
        shared = [key for key in left.keys() & right.keys() if len(left[key]) == len(right[key]) == 1]
        for key in shared:
            pairs[right[key][0]] = _Found(left[key][0], "inputs", 0.85)
        more = bool(shared)


def _by_key(side: Side, places: Sequence[int], paired: Mapping[int, int]) -> dict[Hashable, list[int]]:
    """Operators by what they do, with what paired operators made, and how much they make."""
    found: dict[Hashable, list[int]] = {}
    for place in places:
        makers = [maker for _, _, maker in side.reads(place) if maker is not None]
        if makers and all(maker in paired for maker in makers):
            key = (side.does(place), frozenset(paired[maker] for maker in makers), side.tensors[place][0].size)
            found.setdefault(key, []).append(place)
    return found


class _Piece(NamedTuple):
    """An operator without a partner, an output of which is another output of an operator of the other side."""

    left: int
    right: int
    sides: _Sides
    how: str = "value"
    confidence: float = 0.9


def _pieces(a: Side, b: Side, pairs: _Pairs, told: Told) -> list[_Piece]:
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
    return next((one for one in others if one.near(tensor) and find_layout(one.array, tensor.array) is not None), None)


def _by_order(a: Side, b: Side, pairs: _Pairs) -> bool:
    """Whether any were found. Only the first ones: their consumers are then found by dataflow, which is surer."""
    taken = {found.place for found in pairs.values()}
    # What leads to equal values is right, and one program may go another way there.
    inner = _inner(a, taken), _inner(b, set(pairs))
    left = [place for place in a.computing if place not in taken and place not in inner[0]]
    right = [place for place in b.computing if place not in pairs and place not in inner[1]]
    partner = {found.place: place for place, found in pairs.items()}
    found = []
    for i, j in common([_key(a, place) for place in left], [_key(b, place) for place in right]):
        read_a = {partner[maker] for _, _, maker in a.reads(left[i]) if maker in partner}
        read_b = {maker for _, _, maker in b.reads(right[j]) if maker in pairs}
        # Where each reads what the other does not, they are two branches.
        if not (read_a - read_b and read_b - read_a):
            found.append((left[i], right[j]))
    for one, other in found[: 1 + len(found) // _AT_ONCE]:
        pairs[other] = _Found(one, "order", 0.7)
    return bool(found)


def _drop_strangers(a: Side, b: Side, pairs: _Pairs) -> None:
    """Of the pairs that only order or readers speak for, leave those that read the same: of others no difference would
    say anything."""
    strangers = [0]
    while strangers:
        paired = {found.place for found in pairs.values()}, set(pairs)
        partner = {found.place: right for right, found in pairs.items()}
        strangers = []
        for right, found in pairs.items():
            if found.how in ("order", "dataflow"):
                read_a = {partner[maker] for _, _, maker in _outside(a, found.place, paired[0]) if maker is not None}
                read_b = {maker for _, _, maker in _outside(b, right, paired[1]) if maker is not None}
                if read_a != read_b:
                    strangers.append(right)
        for right in strangers:
            del pairs[right]


def _by_dataflow(a: Side, b: Side, pairs: _Pairs) -> None:
    taken = {found.place for found in pairs.values()}
    # What leads to equal values is right.
    waiting = sorted((right for right, found in pairs.items() if found.how != "value"), reverse=True)
    while waiting:
        right = waiting.pop(0)
        left = pairs[right].place
        makers_a, makers_b = _free_makers(a, left, taken), _free_makers(b, right, set(pairs))
        sizes_a, sizes_b = (
            Counter(side.tensors[place][0].size for place in makers) for side, makers in ((a, makers_a), (b, makers_b))
        )
        for maker in makers_b:
            size = b.tensors[maker][0].size
            if sizes_a[size] == sizes_b[size] == 1:
                [other] = [place for place in makers_a if a.tensors[place][0].size == size]
                pairs[maker] = _Found(other, "dataflow", 0.8)
                taken.add(other)
                waiting.append(maker)


def _free_makers(side: Side, place: int, paired: set[int]) -> list[int]:
    """The operators without a partner that made what an operator reads, together with those that it continues."""
    whole = [place]
    if side.is_linear(place):
        whole += [one for one in side.before(place) if one not in paired]
    makers = [maker for one in whole for _, _, maker in side.reads(one) if maker is not None]
    return [maker for maker in dict.fromkeys(makers) if maker not in paired and maker not in whole]


def _inner(side: Side, paired: set[int]) -> set[int]:
    """Operators without a partner that lead to one with a partner."""
    found: set[int] = set()
    stack = list(paired)
    while stack:
        for _, _, maker in side.reads(stack.pop()):
            if maker is not None and maker not in paired and maker not in found:
                found.add(maker)
                stack.append(maker)
    return found


def _outside(side: Side, place: int, paired: set[int]) -> list[Read]:
    """What an operator reads together with those without a partner before it: of paired ones, and of nobody."""
    found: dict[Hashable, Read] = {}
    seen = {place}
    stack = [place]
    while stack:
        for record, root, maker in side.reads(stack.pop()):
            if maker is None or maker in paired:
                # Of one tensor several parts may be read: query, key and value of an attention.
                found.setdefault(identity_of(record), (record, root, maker))
            elif maker not in seen:
                seen.add(maker)
                stack.append(maker)
    return list(found.values())


def _inputs(
    a: Side,
    b: Side,
    left: int,
    right: int,
    paired: tuple[set[int], set[int]],
    same: set[tuple[Optional[Hashable], Optional[Hashable]]],
    *,
    agree: bool,
) -> list[_Sides]:
    """The inputs of two paired operators that are the same tensor: outputs that are paired, or the same values.

    Of other values those that have one size and nothing else to go by, unless the outputs agree: what is made of them
    shows then that they are no partners.
    """
    read_a, read_b = _outside(a, left, paired[0]), _outside(b, right, paired[1])
    found: list[_Sides] = []

    def take(i: int, j: int) -> None:
        found.append((read_a.pop(i)[0], read_b.pop(j)[0]))

    def is_same(one: Read, other: Read) -> bool:
        return (one[1], other[1]) in same

    tests: list[Callable[[Read, Read], bool]] = [
        lambda one, other: is_same(one, other) and _are_near(one, other),
        lambda one, other: is_same(one, other) and _of_one_size(one, other),
        is_same,
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
    return found


def _agree(one: Output, other: Output) -> bool:
    """Whether two outputs are the same values up to rounding."""
    import numpy as np

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
    return (
        left is not None and right is not None and left.near(right) and find_layout(left.array, right.array) is not None
    )


def _of_one_size(one: Read, other: Read) -> bool:
    return math.prod(one[0].shape or ()) == math.prod(other[0].shape or ())


def _same_size(one: Read, other: Read) -> bool:
    """A parameter that differs: nothing but its size tells what it is."""
    if one[2] is not None or other[2] is not None:
        return False
    size = math.prod(other[0].shape or ())
    return size > 1 and math.prod(one[0].shape or ()) == size


def _outputs(a: Sequence[Output], b: Sequence[Output], told: Sequence[_Sides]) -> list[_Sides]:
    """Those of which the dump tells; else the first ones if they are of one size. Of the others those that are the same
    values."""
    found: list[_Sides] = list(told)
    known = {id(record) for sides in told for record in sides}
    rest, others = ([one for one in side if id(one.record) not in known] for side in (a, b))
    if not told and rest[0].size == others[0].size:
        found.append((rest.pop(0).record, others.pop(0).record))
    for tensor in others:
        one = next((one for one in rest if one.near(tensor) and find_layout(one.array, tensor.array)), None)
        if one is not None:
            rest.remove(one)
            found.append((one.record, tensor.record))
    return found or [(a[0].record, b[0].record)]


def _key(side: Side, place: int) -> Hashable:
    shape = side.tensors[place][0].record.shape or ()
    return (side.does(place), math.prod(shape))


def _alike(a: Side, b: Side, left: int, right: int) -> bool:
    return a.does(left) == b.does(right)


def _share(side: Side, tensor: Output) -> float:
    return bisect_left(side.computing, tensor.operator) / len(side.computing)
