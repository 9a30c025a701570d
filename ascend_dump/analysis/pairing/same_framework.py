"""Which operator of one dump is which of the other: anchors first, then alignment in the gaps between them."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.device_formats import shape_in_model
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.by_dataflow import pairs_by_flow
from ascend_dump.errors import NotSupported
from ascend_dump.reading import Record

__all__ = ["Match", "align", "common", "crossings"]

#: Operators that are aligned at once: the memory for it grows with the square.
_WINDOW = 1 << 12
#: From this confidence on a match says more than the order does.
_STRONG = 0.9

_Sides = tuple[Optional[Record], Optional[Record]]
_Key = Callable[[Operator], Optional[Hashable]]


class Match(NamedTuple):
    """Two operators that do the same in both programs.

    how         "mapping", "content", "dataflow", "place", "order", "name": what tells so; "provenance", "value",
                "parameter" and "inputs" between frameworks and of fused graphs
    confidence  1.0 certain … 0.5 by position only
    tensors     pairs of inputs and pairs of outputs, where others than those of equal place are the same tensor
    apart       then, what else each side reads
    """

    actual: Operator
    reference: Operator
    how: str
    confidence: float
    tensors: Optional[tuple[Sequence[_Sides], Sequence[_Sides]]] = None
    apart: tuple[Sequence[Record], Sequence[Record]] = ((), ())

    @property
    def inputs(self) -> Sequence[_Sides]:
        return _by_place(self.actual.inputs, self.reference.inputs) if self.tensors is None else self.tensors[0]

    @property
    def outputs(self) -> Sequence[_Sides]:
        return _by_place(self.actual.outputs, self.reference.outputs) if self.tensors is None else self.tensors[1]


def crossings(matches: Iterable[Match]) -> list[Match]:
    """The matches of weak evidence (confidence below 0.9) that cross stronger ones, in the order of the reference."""
    ordered = sorted(matches, key=lambda match: match.reference.position)
    strong = [match for match in ordered if match.confidence >= _STRONG]
    row = [strong[at] for at in longest_row([match.actual.position for match in strong])]
    found = []
    passed = 0
    for match in ordered:
        while passed < len(row) and row[passed].reference.position <= match.reference.position:
            passed += 1
        if match.confidence < _STRONG:
            before = row[passed - 1].actual.position if passed else -1
            after = row[passed].actual.position if passed < len(row) else match.actual.position + 1
            if not before < match.actual.position < after:
                found.append(match)
    return found


def _by_place(a: list[Record], b: list[Record]) -> list[_Sides]:
    """Records of the same place of two operators."""
    left = {(record.io, record.index): record for record in a}
    right = {(record.io, record.index): record for record in b}
    return [(left.get(place), right.get(place)) for place in sorted({*left, *right})]


def align(
    actual: Sequence[Operator],
    reference: Sequence[Operator],
    mapping: Optional[Mapping[str, str]] = None,
    *,
    parts: bool = False,
) -> list[Match]:
    """Pair operators of one step, in the order of the reference; what is left over has no partner.

    Where every operator has its equal at its place, that is its partner. Else passes, strongest first, each in the
    gaps that the ones before left: the user's mapping (names of actual to names of reference); of graphs, unique
    contents and names in any order; unique contents; dataflow (what reads the outputs of paired operators); place and
    call (module path, type, phase and shapes); type and shapes without names; place and type of what has another shape;
    phase and shapes of what has another type. Pairs by dataflow may cross others, these others never do; of what is
    left then, unique contents are paired wherever they ran. Raises NotSupported without rapidfuzz.

    parts: tensors of one side may be parts of those of the other, so that shapes say nothing.
    """
    if not mapping and len(actual) == len(reference) and all(map(_is_same, actual, reference)):
        return [Match(one, other, "content", 1.0) for one, other in zip(actual, reference)]
    pairs: dict[int, Match] = {}
    taken: set[int] = set()
    if mapping:
        by_name = {one.op_name: one for one in reference}
        for one in actual:
            other = by_name.get(mapping.get(one.op_name, ""))
            if other is not None and other.position not in taken:
                pairs[one.position] = Match(one, other, "mapping", 1.0)
                taken.add(other.position)
    found: list[Match] = list(pairs.values())
    if not any("::" in one.op_type for one in reference):
        _unordered(actual, reference, _KEYS_IN_GRAPHS, found)
    left, right = _left_over(actual, reference, found)
    known = _patience([_contents(one) for one in left], [_contents(one) for one in right])
    row = [Match(left[i], right[j], "content", 1.0) for i, j in known]
    if not parts:
        before = [(match.actual.position, match.reference.position) for match in (*found, *row)]
        flow = pairs_by_flow(actual, reference, before, _kind)
        row += [Match(actual[i], reference[j], "dataflow", 0.95) for i, j in flow]
    found += row
    for a, b in _gaps(left, right, row):
        if parts:
            _sequence(a, b, _KEYS_OF_PARTS, found)
        else:
            _anchored(a, b, [(_place, "place", 0.95)], found)
    _unordered(left, right, _KEYS_ANYWHERE, found)
    return sorted(found, key=lambda match: match.reference.position)


def _anchored(
    a: Sequence[Operator], b: Sequence[Operator], passes: Sequence[tuple[_Key, str, float]], found: list[Match]
) -> None:
    """Pair what is unique on both sides and in order, then look into the gaps with the next pass."""
    if not passes:
        _sequence(a, b, _KEYS_IN_GAPS, found)
        return
    (key, how, confidence), *rest = passes
    anchors = _patience([key(one) for one in a], [key(one) for one in b])
    i0 = j0 = 0
    for i, j in [*anchors, (len(a), len(b))]:
        if i > i0 and j > j0:
            _anchored(a[i0:i], b[j0:j], rest, found)
        if i < len(a) and j < len(b):
            found.append(Match(a[i], b[j], how, confidence))
        i0, j0 = i + 1, j + 1


def _gaps(
    a: Sequence[Operator], b: Sequence[Operator], pairs: Sequence[Match]
) -> Iterator[tuple[list[Operator], list[Operator]]]:
    """The operators without a partner between those pairs that do not cross."""
    ordered = sorted(pairs, key=lambda match: match.reference.position)
    row = [ordered[at] for at in longest_row([match.actual.position for match in ordered])]
    free_a, free_b = _left_over(a, b, pairs)
    i = j = 0
    for match in row:
        i0, j0 = i, j
        while i < len(free_a) and free_a[i].position < match.actual.position:
            i += 1
        while j < len(free_b) and free_b[j].position < match.reference.position:
            j += 1
        if i > i0 and j > j0:
            yield free_a[i0:i], free_b[j0:j]
    yield free_a[i:], free_b[j:]


def _left_over(
    a: Sequence[Operator], b: Sequence[Operator], found: Sequence[Match]
) -> tuple[list[Operator], list[Operator]]:
    taken_a, taken_b = {match.actual.position for match in found}, {match.reference.position for match in found}
    return [one for one in a if one.position not in taken_a], [one for one in b if one.position not in taken_b]


def _unordered(
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[_Key, str, float]], found: list[Match]
) -> None:
    """Pair what is unique on both sides wherever it ran."""
    for key, how, confidence in keys:
        sides = [[(key(one), one) for one in side] for side in _left_over(a, b, found)]
        counts = [Counter(name for name, _ in side) for side in sides]
        known = {name: one for name, one in sides[1] if name is not None and counts[1][name] == 1}
        for name, one in sides[0]:
            if name in known and counts[0][name] == 1:
                found.append(Match(one, known[name], how, confidence))


def _patience(a: Sequence[Optional[Hashable]], b: Sequence[Optional[Hashable]]) -> list[tuple[int, int]]:
    """The longest row of keys that are unique on each side and stand in the same order."""
    count_a, count_b = Counter(a), Counter(b)
    place = {key: j for j, key in enumerate(b) if key is not None and count_b[key] == 1}
    pairs = [(i, place[key]) for i, key in enumerate(a) if key in place and count_a[key] == 1]
    return [pairs[at] for at in longest_row([j for _, j in pairs])]


def longest_row(numbers: Sequence[int]) -> list[int]:
    """The places of the longest row of numbers in which each is larger than the one before."""
    tails: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for index, j in enumerate(numbers):
        at = bisect_left(tails, j)
        before.append(heads[at - 1] if at else -1)
        if at == len(tails):
            tails.append(j)
            heads.append(index)
        else:
            tails[at] = j
            heads[at] = index
    row = []
    index = heads[-1] if heads else -1
    while index >= 0:
        row.append(index)
        index = before[index]
    return row[::-1]


def _sequence(
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[_Key, str, float]], found: list[Match]
) -> None:
    """The longest common row of keys; in the gaps that stay, the next, looser key."""
    if not a or not b or not keys:
        return
    (key, how, confidence), *rest = keys
    i0 = j0 = 0
    for i, j in [*common([key(one) for one in a], [key(one) for one in b]), (len(a), len(b))]:
        if i > i0 and j > j0:
            _sequence(a[i0:i], b[j0:j], rest, found)
        if i < len(a) and j < len(b):
            found.append(Match(a[i], b[j], how, confidence))
        i0, j0 = i + 1, j + 1


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The places of the longest common row; of long ones, window by window."""
    if len(a) == len(b) and all(x == y for x, y in zip(a, b)):
        return [(i, i) for i in range(len(a))]
    number: dict[Hashable, int] = {}
    x = [number.setdefault(key, len(number)) for key in a]
    y = [number.setdefault(key, len(number)) for key in b]
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(x) and j < len(y):
        if len(x) - i <= 2 * _WINDOW and len(y) - j <= 2 * _WINDOW:
            found += [(i + k, j + m) for k, m in _indel(x[i:], y[j:])]
            break
        piece = x[i : i + _WINDOW]
        row = _indel(piece, y[j : j + _partner_length(piece, y[j : j + 2 * _WINDOW])])
        # Near the end of a window nothing tells how it goes on.
        kept = [(i + k, j + m) for k, m in row if k < _WINDOW // 2]
        found += kept
        i, j = (kept[-1][0] + 1, kept[-1][1] + 1) if kept else (i + _WINDOW // 2, j + _WINDOW // 2)
    return found


def _partner_length(piece: Sequence[int], others: Sequence[int]) -> int:
    """How many of the others take the fewest insertions and deletions to become the piece.

    With more or fewer of them, layers that are all alike would be paired with their neighbours.
    """
    distance = _indel_module().distance
    known: dict[int, int] = {}

    def edits(length: int) -> int:
        if length not in known:
            known[length] = distance(piece, others[:length])
        return known[length]

    best, step = min(len(piece), len(others)), _WINDOW // 4
    while step:
        best = min((best, best - step, best + step), key=lambda length: edits(min(max(length, 0), len(others))))
        best = min(max(best, 0), len(others))
        step //= 2
    return best


def _indel_module() -> Any:
    try:
        from rapidfuzz.distance import Indel
    except ImportError:
        raise NotSupported(
            "comparing dumps whose operators differ needs rapidfuzz, which is not installed",
            hint="pip install 'ascend-dump[analyze]'",
        ) from None
    return Indel


def _indel(x: Sequence[int], y: Sequence[int]) -> list[tuple[int, int]]:
    # Of equally long rows it finds the one that agrees with the ends, and here the beginnings are known to agree.
    return [
        (len(x) - op.src_end + k, len(y) - op.dest_end + k)
        for op in reversed(_indel_module().opcodes(x[::-1], y[::-1]))
        if op.tag == "equal"
        for k in range(op.src_end - op.src_start)
    ]


def _contents(operator: Operator) -> Optional[Hashable]:
    """Type and bytes of everything the operator read and wrote; None where a hash is missing or nothing is there."""
    if not operator.outputs:
        return None
    contents = []
    for record in (*operator.inputs, *operator.outputs):
        content = record.content
        if content is None:
            return None
        contents.append(content)
    return (operator_class(operator.op_type), operator.place, tuple(contents))


def _is_same(one: Operator, other: Operator) -> bool:
    """Whether it has the same name and place, and the same bytes in every tensor or the same reason for none."""
    names = [(x.op_type, x.op_name, x.phase, x.module, len(x.inputs), len(x.broken)) for x in (one, other)]
    left, right = ((*x.inputs, *x.outputs) for x in (one, other))
    return (
        names[0] == names[1]
        and not one.broken
        and len(left) == len(right)
        and all(a.io == b.io and a.index == b.index and _holds_same(a, b) for a, b in zip(left, right))
    )


def _holds_same(a: Record, b: Record) -> bool:
    content = a.content
    if content is not None:
        return content == b.content
    same = (a.dtype, a.shape, a.attrs.get("skipped")) == (b.dtype, b.shape, b.attrs.get("skipped"))
    return same and b.content is None and is_no_value(a) and is_no_value(b)


@functools.lru_cache(maxsize=4096)
def _sorted(shape: Optional[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(shape or ()))


def _shapes(operator: Operator) -> Hashable:
    """Shapes of the outputs, else of the inputs, whatever the order of their axes."""
    records = operator.outputs or operator.inputs
    return tuple([_sorted(shape_in_model(record)) for record in records])


def _place(operator: Operator) -> Optional[Hashable]:
    return (operator_class(operator.op_type), operator.place, operator.phase, _shapes(operator))


def _kind(operator: Operator) -> Hashable:
    return (operator_class(operator.op_type), operator.phase, _shapes(operator))


def _call(operator: Operator) -> Hashable:
    return (operator_class(operator.op_type), operator.place, operator.phase)


def _call_and_axes(operator: Operator) -> Hashable:
    """With how many axes its tensors have: of operators without shapes in common, those that could be one."""
    axes = [None if one.shape is None else len(one.shape) for one in (*operator.inputs, *operator.outputs)]
    return (_call(operator), tuple(axes))


def _effect(operator: Operator) -> Hashable:
    return (operator.phase, _shapes(operator))


def _name(operator: Operator) -> Optional[Hashable]:
    return (operator.op_name, _place(operator)) if operator.op_name else None


def _name_and_contents(operator: Operator) -> Optional[Hashable]:
    contents = _contents(operator)
    return (operator.op_name, contents) if operator.op_name and contents is not None else None


_KEYS_ANYWHERE: Sequence[tuple[_Key, str, float]] = ((_contents, "content", 0.9),)
#: Operators of a graph have names of their own, and branches run in any order; those of eager programs are numbered as
#: they run, and an operator more gives all later ones another name.
_KEYS_IN_GRAPHS: Sequence[tuple[_Key, str, float]] = (
    (_name_and_contents, "content", 1.0),
    (_contents, "content", 0.95),
    (_name, "name", 0.9),
)
_KEYS_IN_GAPS: Sequence[tuple[_Key, str, float]] = (
    (_place, "place", 0.9),
    (_kind, "order", 0.7),
    (_call_and_axes, "place", 0.6),
    (_effect, "order", 0.5),
)
_KEYS_OF_PARTS: Sequence[tuple[_Key, str, float]] = (
    (_call, "place", 0.9),
    (lambda one: (operator_class(one.op_type), one.phase), "order", 0.7),
)
