"""Pair the operators of one network in two frameworks, which have other names, other layouts and other borders.

Names and order tell little there: one side fuses what the other spells out, and branches run in any order. Tensors tell
more: the same network on the same data makes the same values up to rounding, whatever their layout. Passes, strongest
first, each taking what is left:

mapping     the user says so
provenance  the dump itself says of what a fused operator was made (GE), and what both sides call by one name
value       the outputs are the same values in some layout
parameter   the same operation reads the same parameter, which no other reads
order       the longest common row of operations and shapes, where values differ: behind a fault
dataflow    what two paired operators read, made by one operator without a partner on each side

Operators between paired ones belong to the pair that reads them: of them only the tensors that both sides have are
compared. Views and sources (constants, variables) are no operators here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from ascend_dump._errors import AscendDumpError
from ascend_dump.analysis.compare._layouts import find_layout
from ascend_dump.analysis.compare._match import Match, common
from ascend_dump.analysis.compare._names import continues, is_source, is_view, operation
from ascend_dump.analysis.compare._operators import Operator
from ascend_dump.analysis.compare._records import identity_of
from ascend_dump.analysis.compare._types import operator_class
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Across", "is_across", "pair_across"]

#: Two programs that share fewer of all their types of operators, and fewer of those of the smaller one, are written for
#: different frameworks.
_SHARED, _CONTAINED = 0.34, 0.8
_ADDITION, _PRODUCT, _LINEAR = "add", "matmul", "linear"
#: How far statistics of the same values may be apart, relative to the norm.
_NEAR = 1e-3
_Sides = tuple[Optional[Record], Optional[Record]]

#: An input as it is read, the tensor that it is a view of, and the place of the operator that made that.
_Read = tuple[Record, Optional[Hashable], Optional[int]]


class _Found(NamedTuple):
    """The place of an operator of actual, and what tells that it belongs to one of the reference."""

    place: int
    how: str
    confidence: float


#: By the place of the operator of the reference.
_Pairs = dict[int, _Found]


@dataclass
class _Output:
    """One output of an operator that computes: its first four statistics are alike in every layout."""

    operator: int
    record: Record
    array: np.ndarray
    size: int
    norm: float
    total: float
    low: float
    high: float

    def near(self, other: _Output) -> bool:
        if self.size != other.size:
            return False
        scale = max(self.norm, other.norm)
        rms = scale / math.sqrt(self.size)
        return (
            abs(self.norm - other.norm) <= _NEAR * scale
            and abs(self.total - other.total) <= _NEAR * scale * math.sqrt(self.size)
            and abs(self.low - other.low) <= _NEAR * 10 * rms
            and abs(self.high - other.high) <= _NEAR * 10 * rms
        )


class _Side:
    """The operators of one program that compute, what they make, and where that is read."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        #: By the identity of a tensor: that of which it is a view.
        self.views: dict[Hashable, Hashable] = {}
        #: By the identity of a tensor: the place of the operator that made it.
        self.made: dict[Hashable, int] = {}
        self.computing: list[int] = []
        self._reads: dict[int, list[_Read]] = {}
        self.tensors: list[list[_Output]] = [[] for _ in operators]
        for place, operator in enumerate(operators):
            self._add(place, operator)

    def _add(self, place: int, operator: Operator) -> None:
        if is_source(operator.op_type) or not operator.outputs:
            return
        read = [identity_of(record) for record in operator.inputs]
        if is_view(operator.op_type):
            for record in operator.outputs:
                written = identity_of(record)
                if (
                    written is not None
                    and read
                    and read[0] is not None
                    and written not in self.made
                    and written not in read
                ):
                    self.views.setdefault(written, self.root(read[0]))
            return
        for record in operator.outputs:
            written = identity_of(record)
            if written is None or written in read:
                continue
            tensor = _output_of(place, record)
            if tensor is not None:
                self.tensors[place].append(tensor)
                self.made.setdefault(written, place)
        if self.tensors[place]:
            self.computing.append(place)

    def does(self, place: int) -> str:
        """The operation: an addition behind a product is what others call a linear layer."""
        done = operation(self.operators[place].op_type)
        if done == _ADDITION and any(operation(self.operators[one].op_type) == _PRODUCT for one in self.before(place)):
            return _LINEAR
        return done

    def before(self, place: int) -> list[int]:
        """The operators that this one continues, so that they are one with it in other frameworks."""
        found: list[int] = []
        stack = [place]
        while stack:
            here = stack.pop()
            names = continues(self.operators[here].op_type)
            if names:
                makers = [maker for _, _, maker in self.reads(here) if maker is not None]
                makers = [maker for maker in makers if operator_class(self.operators[maker].op_type) in names]
                found += makers
                stack += makers
        return found

    def root(self, identity: Optional[Hashable]) -> Optional[Hashable]:
        """The tensor that this is a view of."""
        return self.views.get(identity, identity)

    def reads(self, place: int) -> list[_Read]:
        """Each input with floating values of an operator, the tensor it is a view of, and who made that."""
        found = self._reads.get(place)
        if found is not None:
            return found
        found = self._reads[place] = []
        for record in self.operators[place].inputs:
            if _is_float(record):
                root = self.root(identity_of(record))
                maker = self.made.get(root)
                # Equal bytes may be written again later.
                found.append((record, root, maker if maker is not None and maker < place else None))
        return found


@dataclass
class Across:
    """What was paired: matches in the order of the reference, and the operators that only one side has.

    inside      operators of each side whose tensors the other side does not have, between paired ones
    views       by the identity of a tensor of each side: that of which it is a view
    """

    matches: list[Match] = field(default_factory=list)
    alone: tuple[list[Operator], list[Operator]] = field(default_factory=lambda: ([], []))
    inside: tuple[int, int] = (0, 0)
    views: tuple[dict[Hashable, Hashable], dict[Hashable, Hashable]] = field(default_factory=lambda: ({}, {}))


def is_across(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Whether these are programs of two frameworks, by the types of their operators, or two graphs of one program of
    which one was fused.

    Those of PyTorch have a namespace. A part of a program has types that the whole has too.
    """
    types = [{one.op_type for one in side if one.op_type} for side in (actual, reference)]
    if not all(types):
        return False
    eager = [any("::" in name for name in names) for names in types]
    if any(eager):
        return not all(eager)
    if _is_fused(actual, reference):
        return True
    shared = len(types[0] & types[1])
    return shared < _SHARED * len(types[0] | types[1]) and shared < _CONTAINED * min(map(len, types))


def pair_across(
    actual: Sequence[Operator], reference: Sequence[Operator], mapping: Optional[Mapping[str, str]] = None
) -> Across:
    """Pair the operators of one step of two programs in different frameworks.

    mapping: names of operators of actual, and those of the reference that make the same.
    """
    a, b = _Side(actual), _Side(reference)
    pairs: _Pairs = {}
    _by_mapping(a, b, mapping or {}, pairs)
    _by_provenance(a, b, pairs)
    _by_value(a, b, pairs)
    _by_parameter(a, b, pairs)
    _by_order(a, b, pairs)
    _by_dataflow(a, b, pairs)
    found = Across(views=(a.views, b.views))
    same = {(one.place, right) for right, one in pairs.items()}
    paired_places = {left for left, _ in same}, {right for _, right in same}
    belong = _inner(a, paired_places[0]), _inner(b, paired_places[1])
    for right, one in sorted(pairs.items()):
        tensors = (_inputs(a, b, one.place, right, same), _outputs(a.tensors[one.place], b.tensors[right]))
        found.matches.append(Match(actual[one.place], reference[right], one.how, one.confidence, tensors))
    for number, (side, paired) in enumerate(zip((a, b), paired_places)):
        for place in side.computing:
            if place not in paired and place not in belong[number]:
                found.alone[number].append(side.operators[place])
        broken = [one for one in side.operators if one.broken]
        found.alone[number].extend(one for one in broken if one not in found.alone[number])
    found.inside = (len(belong[0]), len(belong[1]))
    return found


def _by_mapping(a: _Side, b: _Side, mapping: Mapping[str, str], pairs: _Pairs) -> None:
    by_name = {b.operators[place].op_name: place for place in b.computing}
    for left in a.computing:
        right = by_name.get(mapping.get(a.operators[left].op_name, ""))
        if right is not None:
            pairs.setdefault(right, _Found(left, "mapping", 1.0))


def _by_provenance(a: _Side, b: _Side, pairs: _Pairs) -> None:
    """Of a fused operator the names of what it was made of; else its own, where the operation is the same too."""
    origins = [{place: _origins(side.operators[place]) for place in side.computing} for side in (a, b)]
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


def _origins(operator: Operator) -> list[str]:
    """The operators that the last one of a fused operator was before the graph was changed."""
    told = (record.attrs.get("original_op") for record in operator.outputs)
    names = [str(one["name"]) for one in told if isinstance(one, dict) and one.get("name")]
    return [name for name in dict.fromkeys(names) if name != operator.op_name]


def _is_fused(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Whether operators of one side are made of what are operators of the other."""
    for side, other in ((actual, reference), (reference, actual)):
        names = {one.op_name for one in other}
        if any(name in names for one in side for name in _origins(one)):
            return True
    return False


def _by_value(a: _Side, b: _Side, pairs: _Pairs) -> None:
    """By the first outputs: others (means, masks) are values that other programs compute on the way."""
    known = sorted((a.tensors[place][0] for place in a.computing), key=lambda one: one.norm)
    norms = [one.norm for one in known]
    taken = {found.place for found in pairs.values()}
    for count, right in enumerate(b.computing):
        tensor = b.tensors[right][0]
        if right in pairs or tensor.size < 2 or tensor.norm == 0:
            continue
        low, high = (bisect_left(norms, tensor.norm * (1 + sign * 2 * _NEAR)) for sign in (-1, 1))
        candidates = [one for one in known[low:high] if one.operator not in taken and one.near(tensor)]
        # The same operation first, and of several the one that runs at about the same time.
        share = count / len(b.computing)
        candidates.sort(key=lambda one: (not _alike(a, b, one.operator, right), abs(_share(a, one) - share)))
        for one in candidates:
            if find_layout(one.array, tensor.array) is not None:
                taken.add(one.operator)
                pairs[right] = _Found(one.operator, "value", 0.95)
                break


def _by_parameter(a: _Side, b: _Side, pairs: _Pairs) -> None:
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


def _readers(side: _Side, places: Sequence[int]) -> list[tuple[list[int], _Output]]:
    """What nobody computed, and the operators that read it; one that continues another reads what that reads."""
    found: dict[Hashable, tuple[list[int], _Output]] = {}
    for place in places:
        reads = list(side.reads(place))
        if side.does(place) == _LINEAR:
            reads += [read for one in side.before(place) for read in side.reads(one)]
        for record, root, maker in reads:
            tensor = _output_of(place, record) if maker is None and root is not None else None
            if tensor is not None and tensor.size > 1 and tensor.norm > 0:
                known, _ = found.setdefault(root, ([], tensor))
                known.append(place)
    return list(found.values())


def _same_parameter(one: _Output, other: _Output) -> bool:
    return one.near(other) and find_layout(one.array, other.array) is not None


def _by_order(a: _Side, b: _Side, pairs: _Pairs) -> None:
    taken = {found.place for found in pairs.values()}
    # What leads to equal values is right, and one program may go another way there.
    inner = _inner(a, taken), _inner(b, set(pairs))
    left = [place for place in a.computing if place not in taken and place not in inner[0]]
    right = [place for place in b.computing if place not in pairs and place not in inner[1]]
    for i, j in common([_key(a, place) for place in left], [_key(b, place) for place in right]):
        pairs[right[j]] = _Found(left[i], "order", 0.7)


def _by_dataflow(a: _Side, b: _Side, pairs: _Pairs) -> None:
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


def _free_makers(side: _Side, place: int, paired: set[int]) -> list[int]:
    """The operators without a partner that made what an operator reads, together with those that it continues."""
    whole = [place]
    if side.does(place) == _LINEAR:
        whole += [one for one in side.before(place) if one not in paired]
    makers = [maker for one in whole for _, _, maker in side.reads(one) if maker is not None]
    return [maker for maker in dict.fromkeys(makers) if maker not in paired and maker not in whole]


def _inner(side: _Side, paired: set[int]) -> set[int]:
    """Operators without a partner that lead to one with a partner."""
    found: set[int] = set()
    stack = list(paired)
    while stack:
        for _, _, maker in side.reads(stack.pop()):
            if maker is not None and maker not in paired and maker not in found:
                found.add(maker)
                stack.append(maker)
    return found


def _outside(side: _Side, place: int, paired: set[int]) -> list[_Read]:
    """What an operator reads together with those without a partner before it: of paired ones, and of nobody."""
    found: dict[Hashable, _Read] = {}
    seen = {place}
    stack = [place]
    while stack:
        for record, root, maker in side.reads(stack.pop()):
            if maker is None or maker in paired:
                found.setdefault(root, (record, root, maker))
            elif maker not in seen:
                seen.add(maker)
                stack.append(maker)
    return list(found.values())


def _inputs(a: _Side, b: _Side, left: int, right: int, same: set[tuple[int, int]]) -> list[_Sides]:
    """The inputs of two paired operators that are the same tensor: made by paired operators, or the same values, or of
    one size and nothing else to go by."""
    read_a = _outside(a, left, {one for one, _ in same})
    read_b = _outside(b, right, {one for _, one in same})
    found: list[_Sides] = []

    def take(i: int, j: int) -> None:
        found.append((read_a.pop(i)[0], read_b.pop(j)[0]))

    tests: list[Callable[[_Read, _Read], bool]] = [_made_by(same), _same_values, _same_size]
    for test in tests:
        j = 0
        while j < len(read_b):
            i = next((i for i, one in enumerate(read_a) if test(one, read_b[j])), None)
            if i is None:
                j += 1
            else:
                take(i, j)
    return found


def _made_by(same: set[tuple[int, int]]) -> Callable[[_Read, _Read], bool]:
    return lambda one, other: one[2] is not None and (one[2], other[2]) in same


def _same_values(one: _Read, other: _Read) -> bool:
    if one[2] is not None or other[2] is not None:
        return False
    left, right = _output_of(0, one[0]), _output_of(0, other[0])
    return (
        left is not None and right is not None and left.near(right) and find_layout(left.array, right.array) is not None
    )


def _same_size(one: _Read, other: _Read) -> bool:
    """A parameter that differs: nothing but its size tells what it is."""
    if one[2] is not None or other[2] is not None:
        return False
    size = math.prod(other[0].shape or ())
    return size > 1 and math.prod(one[0].shape or ()) == size


def _outputs(a: Sequence[_Output], b: Sequence[_Output]) -> list[_Sides]:
    """The first ones, and of the others those that are the same values."""
    found: list[_Sides] = [(a[0].record, b[0].record)]
    rest = list(a[1:])
    for tensor in b[1:]:
        one = next((one for one in rest if one.near(tensor) and find_layout(one.array, tensor.array)), None)
        if one is not None:
            rest.remove(one)
            found.append((one.record, tensor.record))
    return found


def _key(side: _Side, place: int) -> Hashable:
    shape = side.tensors[place][0].record.shape or ()
    return (side.does(place), math.prod(shape))


def _alike(a: _Side, b: _Side, left: int, right: int) -> bool:
    return a.does(left) == b.does(right)


def _share(side: _Side, tensor: _Output) -> float:
    return bisect_left(side.computing, tensor.operator) / len(side.computing)


def _is_float(record: Record) -> bool:
    return (record.dtype or "").startswith(("float", "bfloat", "complex"))


def _output_of(place: int, record: Record) -> Optional[_Output]:
    import numpy as np

    if not _is_float(record):
        return None
    try:
        array = record.numpy()
    except AscendDumpError:
        return None
    if not array.size or array.dtype.kind == "c":
        return None
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        finite = np.zeros(1)
    norm = float(np.linalg.norm(finite))
    return _Output(
        place, record, array, array.size, norm, float(finite.sum()), float(finite.min()), float(finite.max())
    )
