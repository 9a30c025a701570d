"""The passes by which operators of two programs in two frameworks are paired, strongest first.

mapping     the user says so
provenance  the dump, or a graph beside it, says of what an operator was made (GE, torchair); what both sides call by
            one name
place       the same operation of an eager program, which runs equally often in its module on both sides, in the same
            phases and with the same shapes; first those of equal values, and after the next pass the others
value       the outputs are the same values in some layout; of statistics alone, alike ones
parameter   the same operation reads the same parameter, which no other reads
inputs      the same operation reads what paired operators made, which no other does; of what nobody reads on one side,
            with others in between
order       the longest common row of operations and shapes, where values differ: after a fault
dataflow    what two paired operators read, made by one operator without a partner on each side
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.pairing.fusion_names import origins_of
from ascend_dump.analysis.pairing.program_graph import NEAR, Output, Side, output_of
from ascend_dump.analysis.pairing.same_framework import common

__all__ = ["PairedOperator", "PairedOperators", "pair_operators"]

#: Of the operators that have the same order, one part in so many is taken at a time.
_AT_ONCE = 8


class PairedOperator(NamedTuple):
    """The place of an operator of actual, and what tells that it belongs to one of the reference."""

    place: int
    how: str
    confidence: float


#: By the place of the operator of the reference.
PairedOperators = dict[int, PairedOperator]


def pair_operators(a: Side, b: Side, mapping: Mapping[str, str]) -> PairedOperators:
    """mapping: names of operators of actual, and those of the reference that make the same."""
    pairs: PairedOperators = {}
    _by_mapping(a, b, mapping, pairs)
    _by_provenance(a, b, pairs)
    _by_calls(a, b, pairs, equal=True)
    _by_value(a, b, pairs, Output.is_same, 0.95)
    _by_calls(a, b, pairs, equal=False)
    _by_parameter(a, b, pairs)
    _by_inputs(a, b, pairs)
    _by_value(a, b, pairs, Output.resembles, 0.85)
    while _by_order(a, b, pairs):
        _by_inputs(a, b, pairs)
    _by_ends(a, b, pairs)
    _by_dataflow(a, b, pairs)
    _drop_strangers(a, b, pairs)
    return pairs


def _by_mapping(a: Side, b: Side, mapping: Mapping[str, str], pairs: PairedOperators) -> None:
    by_name = {b.operators[place].op_name: place for place in b.computing}
    for left in a.computing:
        right = by_name.get(mapping.get(a.operators[left].op_name, ""))
        if right is not None:
            pairs.setdefault(right, PairedOperator(left, "mapping", 1.0))


def _by_provenance(a: Side, b: Side, pairs: PairedOperators) -> None:
    """Of a fused operator the names of what it was made of; else its own, where the operation is the same too."""
    origins = [{place: origins_of(side.operators[place]) for place in side.computing} for side in (a, b)]
    makers = {name: place for place, names in origins[1].items() for name in names}
    own = {b.operators[place].op_name: place for place in b.computing}
    taken = {found.place for found in pairs.values()}

    def pair(left: int, right: Optional[int], how: str, confidence: float) -> None:
        if right is not None and right not in pairs and left not in taken:
            pairs[right] = PairedOperator(left, how, confidence)
            taken.add(left)

    for left, names in origins[0].items():
        name = a.operators[left].op_name
        for one in names:
            pair(left, own.get(one), "provenance", 1.0)
            pair(left, makers.get(one), "provenance", 1.0)
        pair(left, makers.get(name), "provenance", 1.0)
        same = own.get(name)
        if same is not None and a.operators[left].op_type == b.operators[same].op_type and not _is_eager(a, left):
            pair(left, same, "name", 0.9)


def _is_eager(side: Side, place: int) -> bool:
    """Whether the name of an operator numbers its calls: where a compiler took operators apart, the fifth addition of
    one program is not the fifth of the other."""
    return "::" in side.operators[place].op_type


def _by_calls(a: Side, b: Side, pairs: PairedOperators, *, equal: bool) -> None:
    """Eager operators that run equally often in one module on both sides, in the same phases and with the same shapes:
    an optimizer runs alike, whatever a compiler made of the network, and its tensors are told apart by nothing else
    while they are all zero.

    equal: only those that made the same values; the two sides may have run the others in another order
    """
    taken = {found.place for found in pairs.values()}
    calls_a, calls_b = _calls(a), _calls(b)
    for key in calls_a.keys() & calls_b.keys():
        if [_call(a, place) for place in calls_a[key]] == [_call(b, place) for place in calls_b[key]]:
            left = [place for place in calls_a[key] if a.tensors[place] and place not in taken]
            right = [place for place in calls_b[key] if b.tensors[place] and place not in pairs]
            if [_call(a, place) for place in left] == [_call(b, place) for place in right]:
                for one, other in zip(left, right):
                    if not equal or a.tensors[one][0].is_same(b.tensors[other][0]):
                        pairs[other] = PairedOperator(one, "place", 0.9)


def _calls(side: Side) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for place, operator in enumerate(side.operators):
        if _is_eager(side, place):
            found.setdefault((operator.place, operator.op_type), []).append(place)
    return found


def _call(side: Side, place: int) -> Hashable:
    operator = side.operators[place]
    return (operator.phase, tuple(record.shape for record in operator.outputs))


def _by_value(
    a: Side, b: Side, pairs: PairedOperators, same: Callable[[Output, Output], bool], confidence: float
) -> None:
    """By the first outputs: others (means, masks) are values that other programs compute on the way."""
    known = sorted((a.tensors[place][0] for place in a.computing), key=lambda one: one.norm)
    norms = [one.norm for one in known]
    taken = {found.place for found in pairs.values()}
    for count, right in enumerate(b.computing):
        tensor = b.tensors[right][0]
        if right in pairs or tensor.size < 2 or tensor.norm == 0:
            continue
        low, high = (bisect_left(norms, tensor.norm * (1 + sign * 2 * NEAR)) for sign in (-1, 1))
        candidates = [one for one in known[low:high] if one.operator not in taken]
        # The same operation first, and of several the one that runs at about the same time.
        share = count / len(b.computing)
        candidates.sort(key=lambda one: (not _alike(a, b, one.operator, right), abs(_share(a, one) - share)))
        for one in candidates:
            if same(one, tensor):
                taken.add(one.operator)
                pairs[right] = PairedOperator(one.operator, "value", confidence)
                break


def _by_parameter(a: Side, b: Side, pairs: PairedOperators) -> None:
    taken = {found.place for found in pairs.values()}
    readers_a, readers_b = (
        _readers(side, [place for place in side.computing if place not in paired])
        for side, paired in ((a, taken), (b, set(pairs)))
    )
    for places, tensor in readers_b:
        others = [(some, one) for some, one in readers_a if one.is_same(tensor)]
        if len(others) != 1 or any(one is not tensor and one.is_same(tensor) for _, one in readers_b):
            continue
        for right in places:
            left = [place for place in others[0][0] if place not in taken and _alike(a, b, place, right)]
            if len(left) == 1 and right not in pairs:
                pairs[right] = PairedOperator(left[0], "parameter", 0.9)
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


def _by_inputs(a: Side, b: Side, pairs: PairedOperators) -> None:
    """Again and again, since what is paired so is read by others."""
    more = True
    while more:
        number = {one.place: right for right, one in pairs.items()}
        left = _by_key(a, [place for place in a.computing if place not in number], number)
        right = _by_key(b, [place for place in b.computing if place not in pairs], {place: place for place in pairs})
        shared = [key for key in left.keys() & right.keys() if len(left[key]) == len(right[key]) == 1]
        for key in shared:
            pairs[right[key][0]] = PairedOperator(left[key][0], "inputs", 0.85)
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


def _by_order(a: Side, b: Side, pairs: PairedOperators) -> bool:
    """Whether any were found. Only the first ones: their consumers are then found by dataflow, which is surer."""
    taken = {found.place for found in pairs.values()}
    # What leads to equal values is right, and one program may go another way there.
    inner = a.leading_to(taken), b.leading_to(set(pairs))
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
        pairs[other] = PairedOperator(one, "order", 0.7)
    return bool(found)


def _by_ends(a: Side, b: Side, pairs: PairedOperators) -> None:
    """What nobody reads on one side, as a loss of which the other program keeps a part for its gradients: the same
    operation made of the same paired ones, which no other is."""
    partner = {found.place: right for right, found in pairs.items()}
    sides = []
    for side, number in ((a, partner), (b, {right: right for right in pairs})):
        inner = side.leading_to(set(number))
        found: dict[Hashable, list[tuple[int, bool]]] = {}
        for place in side.computing:
            if place not in number:
                makers = {number[maker] for _, _, maker in side.reads_outside(place, set(number)) if maker is not None}
                if makers:
                    key = (side.does(place), frozenset(makers), side.tensors[place][0].size)
                    found.setdefault(key, []).append((place, place in inner))
        sides.append(found)
    for both in sides[0].keys() & sides[1].keys():
        if len(sides[0][both]) == len(sides[1][both]) == 1:
            [(left, is_inner)], [(right, other_is_inner)] = sides[0][both], sides[1][both]
            if not (is_inner and other_is_inner):
                pairs[right] = PairedOperator(left, "inputs", 0.8)


def _drop_strangers(a: Side, b: Side, pairs: PairedOperators) -> None:
    """Of the pairs that only order or readers speak for, leave those that read the same: others are guesses, of which a
    difference would say nothing."""
    strangers = [0]
    while strangers:
        paired = {found.place for found in pairs.values()}, set(pairs)
        partner = {found.place: right for right, found in pairs.items()}
        strangers = []
        for right, found in pairs.items():
            if found.how in ("order", "dataflow"):
                read_a, read_b = a.reads_outside(found.place, paired[0]), b.reads_outside(right, paired[1])
                makers_a = {partner[maker] for _, _, maker in read_a if maker is not None}
                makers_b = {maker for _, _, maker in read_b if maker is not None}
                if makers_a != makers_b or not (makers_a or _read_one_tensor(a, b, found.place, right)):
                    strangers.append(right)
        for right in strangers:
            del pairs[right]


def _read_one_tensor(a: Side, b: Side, left: int, right: int) -> bool:
    """Whether two operators read some tensor of the same values, or none at all."""
    read_a, read_b = a.operators[left].inputs, b.operators[right].inputs
    if not read_a and not read_b:
        return True
    known = {identity_of(record) for record in read_a} - {None}
    if any(identity_of(record) in known for record in read_b):
        return True
    values = [one for one in (output_of(left, record) for record in read_a) if one is not None]
    others = (output_of(right, record) for record in read_b)
    return any(one.is_same(other) for other in others if other is not None for one in values)


def _by_dataflow(a: Side, b: Side, pairs: PairedOperators) -> None:
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
                pairs[maker] = PairedOperator(other, "dataflow", 0.8)
                taken.add(other)
                waiting.append(maker)


def _free_makers(side: Side, place: int, paired: set[int]) -> list[int]:
    """The operators without a partner that made what an operator reads, together with those that it continues."""
    whole = [place]
    if side.is_linear(place):
        whole += [one for one in side.before(place) if one not in paired]
    makers = [maker for one in whole for _, _, maker in side.reads(one) if maker is not None]
    return [maker for maker in dict.fromkeys(makers) if maker not in paired and maker not in whole]


def _key(side: Side, place: int) -> Hashable:
    shape = side.tensors[place][0].record.shape or ()
    return (side.does(place), math.prod(shape))


def _alike(a: Side, b: Side, left: int, right: int) -> bool:
    return a.does(left) == b.does(right)


def _share(side: Side, tensor: Output) -> float:
    return bisect_left(side.computing, tensor.operator) / len(side.computing)
