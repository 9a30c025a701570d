"""Pair the operators of two runs of one framework: the certain pairs first, then alignment in the gaps between them."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.device_formats import shape_in_model
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.arguments import commutes, in_any_order
from ascend_dump.analysis.operators.next_request import is_of_module, is_update
from ascend_dump.analysis.operators.operator import Operator, module_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.by_dataflow import pairs_by_flow
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows, has_storages
from ascend_dump.analysis.pairing.weak_pairs import Partners, computes, is_crossed, settled
from ascend_dump.dump_format import Placement
from ascend_dump.errors import NotSupported
from ascend_dump.reading import Record

__all__ = ["Match", "OneSided", "OtherSource", "RecordPair", "align", "common", "crossings", "in_places"]

#: Maximum number of operators that are aligned at once, because the memory grows with its square.
_WINDOW = 1 << 12
#: Matches of at least this confidence have more evidence than their order.
_STRONG = 0.9

RecordPair = tuple[Optional[Record], Optional[Record]]
_Key = Callable[[Operator], Optional[Hashable]]


class OneSided(NamedTuple):
    """An operator that only one side runs: its output, and the input that only this side reads."""

    of_actual: bool
    output: Record
    read: Record


class OtherSource(NamedTuple):
    """Inputs of one size that read outputs of operators which are no pair, and the names of these operators."""

    inputs: tuple[Record, Record]
    names: tuple[str, str]


class Match(NamedTuple):
    """Two operators that do the same in both programs.

    how              the evidence: "mapping", "content", "dataflow", "place", "order", "name" or "parameter"; between
                     frameworks and for fused graphs also "provenance", "value" and "inputs"
    confidence       1.0 certain … 0.5 by position only
    tensors          pairs of inputs and pairs of outputs; None if tensors of equal index are paired
    unpaired_inputs  further inputs of each side, if `tensors` is set
    is_crossed       True if a commutative operator has its two inputs in one order in actual, and in the opposite order
                     in the reference
    one_sided        between frameworks: an output of an operator before this one that reads a tensor which the other
                     side does not read; None if there is none
    other_source     between frameworks: the only input of each side without a partner; None if these are not one each
    """

    actual: Operator
    reference: Operator
    how: str
    confidence: float
    tensors: Optional[tuple[Sequence[RecordPair], Sequence[RecordPair]]] = None
    unpaired_inputs: tuple[Sequence[Record], Sequence[Record]] = ((), ())
    is_crossed: bool = False
    one_sided: Optional[OneSided] = None
    other_source: Optional[OtherSource] = None

    @property
    def inputs(self) -> Sequence[RecordPair]:
        """Return the pairs of inputs."""
        if self.tensors is not None:
            return self.tensors[0]
        if self.is_crossed:
            return list(zip(self.actual.inputs[::-1], self.reference.inputs))
        return in_places(self.actual.inputs, self.reference.inputs)

    @property
    def outputs(self) -> Sequence[RecordPair]:
        """Return the pairs of outputs."""
        return in_places(self.actual.outputs, self.reference.outputs) if self.tensors is None else self.tensors[1]


def crossings(matches: Iterable[Match]) -> list[Match]:
    """Return the matches of weak evidence (confidence below 0.9) that cross stronger ones, in reference order.

    Two matches cross if their operators run in one order in actual, and in the opposite order in the reference.
    """
    ordered = sorted(matches, key=lambda match: match.reference.position)
    strong = [match for match in ordered if match.confidence >= _STRONG]
    row = [strong[index] for index in _longest_increasing([match.actual.position for match in strong])]
    crossing = []
    passed = 0
    for match in ordered:
        while passed < len(row) and row[passed].reference.position <= match.reference.position:
            passed += 1
        if match.confidence < _STRONG:
            before = row[passed - 1].actual.position if passed else -1
            after = row[passed].actual.position if passed < len(row) else match.actual.position + 1
            if not before < match.actual.position < after:
                crossing.append(match)
    return crossing


def in_places(a: Sequence[Record], b: Sequence[Record]) -> list[RecordPair]:
    """Return the pairs of records of two operators that have equal indices; None for a missing record.

    Names of arguments replace the indices if a name has another index on the other side: if one program passes a mask
    to a module and the other one does not, all later arguments are moved.
    """
    by_name = _are_moved(a, b)
    records_a, records_b = ({_place(record, by_name): record for record in side} for side in (a, b))
    ordered = sorted({*records_a, *records_b}, key=lambda place: (records_b.get(place) or records_a[place]).index)
    return [(records_a.get(place), records_b.get(place)) for place in ordered]


def _place(record: Record, by_name: bool) -> Hashable:
    return record.io, (record.argument or record.index) if by_name else record.index


def _are_moved(a: Iterable[Record], b: Iterable[Record]) -> bool:
    """Return True if an argument of one name has two indices in calls of a module."""
    indices = {_place(record, True): record.index for record in b if is_of_module(record)}
    return bool(indices) and any(indices.get(_place(record, True), record.index) != record.index for record in a)


def align(
    actual: Sequence[Operator],
    reference: Sequence[Operator],
    mapping: Optional[Mapping[str, str]] = None,
    *,
    parts: bool = False,
) -> list[Match]:
    """Pair the operators of one step, in the order of the reference; operators that are left out have no partner.

    If every operator equals the operator at its index on the other side, these are the pairs. Else there are passes,
    the strongest evidence first:

    - the user's mapping, from names of actual to names of the reference
    - in any order: for graphs, unique contents and names; for eager programs, updates of the same parameter
    - contents that are unique on each side, in one order
    - dataflow: operators that read the same outputs of paired operators
    - calls (module path, type, phase and shapes) that are unique between two pairs; then dataflow again
    - in the gaps between pairs, in order: the same call; the same type, phase and shapes; the same call with other
      shapes; the same phase and shapes with another type
    - unique contents in any order

    Last, weak pairs that contradict the dataflow are dropped.

    Raises NotSupported if the operators differ and rapidfuzz is not installed.

    parts: a tensor of one side may be a part of a tensor of the other side, so that shapes are no evidence. Operators
    of modules that run the same operators on both sides are paired first
    """
    if not mapping and len(actual) == len(reference) and all(map(_is_same, actual, reference)):
        return [Match(a, b, "content", 1.0) for a, b in zip(actual, reference)]
    matches: list[Match] = _mapped(actual, reference, mapping or {})
    is_graph = not any("::" in operator.op_type for operator in reference)
    _unordered(actual, reference, _KEYS_IN_GRAPHS if is_graph else _KEYS_OF_UPDATES, matches)
    _unordered(*_called_as_often(actual, reference), ((_name_of_module, "name", 0.9),), matches)
    free_a, free_b = _unmatched(actual, reference, matches)
    equal = _patience([_contents(operator) for operator in free_a], [_contents(operator) for operator in free_b])
    row = [Match(free_a[i], free_b[j], "content", 1.0) for i, j in equal]
    flows = None if parts or not has_storages(actual, reference) else (DataFlow(actual), DataFlow(reference))
    row += _by_flow(flows, [*matches, *row])
    if parts:
        matches += _in_same_modules(actual, reference, [*matches, *row])
    else:
        row += _anchors(free_a, free_b, row, flows, matches)
        row += _by_flow(flows, [*matches, *row])
    keys = (*_keys_of_placements(actual, reference), *_KEYS_OF_PARTS) if parts else _keys_in_gaps(actual, reference)
    # Ranks may update different parameters. So pairs by parameter are anchors: operators between belong to an update.
    anchors = [*matches, *row] if parts else row
    matches += row
    for gap_a, gap_b in _gaps(free_a, free_b, anchors):
        _sequence(gap_a, gap_b, keys, matches)
    if parts:
        matches = _without_other_names(actual, reference, matches)
    _unordered(free_a, free_b, _KEYS_ANYWHERE, matches)
    matches = _in_one_order(flows, _settled(flows, matches))
    return sorted(matches, key=lambda match: match.reference.position)


def _in_same_modules(
    actual: Sequence[Operator], reference: Sequence[Operator], matches: Sequence[Match]
) -> Iterator[Match]:
    """Yield further matches of operators in modules that run the same operators on both sides, pass by pass.

    For example, stages of a pipeline and one rank run the passes of micro-batches in other orders.
    """
    sides: list[dict[tuple[str, str], list[Operator]]] = [{}, {}]
    for operators, by_pass in zip((actual, reference), sides):
        for operator in operators:
            by_pass.setdefault((operator.module_path, operator.phase), []).append(operator)
    taken = {match.actual.position for match in matches}, {match.reference.position for match in matches}
    for (module, phase), of_actual in sides[0].items():
        of_reference = sides[1].get((module, phase), [])
        if module and [*map(_call, of_actual)] == [*map(_call, of_reference)]:
            for a, b in zip(of_actual, of_reference):
                if a.position not in taken[0] and b.position not in taken[1]:
                    yield Match(a, b, "place", 0.9)


def _called_as_often(*sides: Sequence[Operator]) -> tuple[list[Operator], list[Operator]]:
    """Return the calls of modules that both programs call equally often, and the updates of parameters, of both sides.

    Names number the calls of a module. If one program makes a call less, the numbers of later calls are moved.
    """
    calls = [[operator for operator in side if _name_of_module(operator) is not None] for side in sides]
    here, there = (Counter(map(_pass_of_module, side)) for side in calls)
    actual, reference = (
        [call for call in side if _is_update(call) or here[_pass_of_module(call)] == there[_pass_of_module(call)]]
        for side in calls
    )
    return actual, reference


def _pass_of_module(call: Operator) -> Hashable:
    return call.module_path, call.op_name.rpartition("/")[2].partition("_")[0]


def _keys_in_gaps(*sides: Sequence[Operator]) -> Sequence[tuple[_Key, str, float]]:
    """Return the keys for gaps. Module calls of other names are paired in one module of both programs only.

    Layers are alike, so a call in one layer would be paired with a call in the next layer.
    """
    calls = [{operator.module_path for operator in side if _name_of_module(operator)} for side in sides]
    paths = calls[0] & calls[1]
    if not paths:
        return _KEYS_IN_GAPS

    def within(key: _Key) -> _Key:
        return lambda operator: (key(operator), _module_around(operator, paths), _all_shapes(operator))

    return [(within(key) if how == "order" else key, how, confidence) for key, how, confidence in _KEYS_IN_GAPS]


def _module_around(operator: Operator, paths: Collection[str]) -> str:
    """Return the innermost of some module paths around the module of an operator; "" if there is none."""
    path = operator.module_path.rpartition(".")[0]
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path


def _all_shapes(operator: Operator) -> Hashable:
    return tuple([_sorted(record.shape) for record in operator.records])


def _keys_of_placements(*sides: Sequence[Operator]) -> Sequence[tuple[_Key, str, float]]:
    """Return the key by shapes of whole tensors, if exactly one of two sides records the placement of parts."""
    placed = [{id(operator) for operator in side if any(map(_whole_shape, operator.records))} for side in sides]
    if bool(placed[0]) == bool(placed[1]):
        return ()
    divided = {id(operator) for side, of_side in zip(sides, placed) if of_side for operator in side}
    known = placed[0] | placed[1]

    def key(operator: Operator) -> Hashable:
        if id(operator) in divided and id(operator) not in known:
            return id(operator)
        return _call(operator), tuple([_whole_shape(record) or record.shape for record in operator.records])

    return ((key, "place", 0.9),)


def _whole_shape(record: Record) -> Optional[tuple[int, ...]]:
    placement = Placement.of(record.attrs)
    return None if placement is None else placement.shape


def _mapped(actual: Sequence[Operator], reference: Sequence[Operator], mapping: Mapping[str, str]) -> list[Match]:
    by_name = {operator.op_name: operator for operator in reference}
    matches = []
    for operator in actual if mapping else ():
        partner = by_name.pop(mapping.get(operator.op_name, ""), None)
        if partner is not None:
            matches.append(Match(operator, partner, "mapping", 1.0))
    return matches


def _by_flow(flows: Optional[Flows], matches: Sequence[Match]) -> list[Match]:
    pairs = [] if flows is None else pairs_by_flow(flows, map(_positions, matches), _kind)
    return [
        Match(flows[0].operators[i], flows[1].operators[j], "dataflow", 0.95) for i, j in pairs if flows is not None
    ]


def _anchors(
    a: Sequence[Operator], b: Sequence[Operator], row: Sequence[Match], flows: Optional[Flows], matches: Sequence[Match]
) -> list[Match]:
    """Return matches of operators whose call is unique between two pairs of the row.

    row: pairs that do not cross. matches: the other pairs so far
    """
    anchors = []
    for gap_a, gap_b in _gaps(a, b, row):
        unique = _patience([_call_site(operator) for operator in gap_a], [_call_site(operator) for operator in gap_b])
        anchors += [Match(gap_a[i], gap_b[j], "place", 0.95) for i, j in unique]
    known = set(map(_positions, (*matches, *row)))
    return [match for match in _settled(flows, [*matches, *row, *anchors]) if _positions(match) not in known]


def _settled(flows: Optional[Flows], matches: Sequence[Match]) -> list[Match]:
    """Return the matches that dataflow does not contradict, and further matches of operators with paired readers."""
    if flows is None:
        return [*matches]
    certain = [match for match in matches if match.how not in ("place", "order")]
    uncertain = {_positions(match): match for match in matches if match.how in ("place", "order")}
    kept, read = settled(flows, map(_positions, certain), uncertain, _kind)
    by_readers = [Match(flows[0].operators[i], flows[1].operators[j], "dataflow", 0.9) for i, j in read]
    return [*certain, *(match for pair, match in uncertain.items() if pair in kept), *by_readers]


def _in_one_order(flows: Optional[Flows], matches: Sequence[Match]) -> list[Match]:
    """Return the matches, with `is_crossed` set if inputs of a commutative operator are in opposite orders."""
    partners = Partners(map(_positions, matches))
    return [
        match._replace(is_crossed=is_crossed(flows, *_positions(match), partners))
        if flows is not None and commutes(match.reference)
        else match
        for match in matches
    ]


def _without_other_names(
    actual: Sequence[Operator], reference: Sequence[Operator], matches: Sequence[Match]
) -> list[Match]:
    """Return the matches without weak ones outside of modules whose first inputs are tensors of other names.

    For example, a gradient that only several ranks divide is no moment that an optimizer divides. A name counts only if
    operators of both sides read the tensor of this name.
    """
    names = [
        {record.parameter for operator in side for record in operator.records if record.parameter}
        for side in (actual, reference)
    ]
    common_names = names[0] & names[1]

    def first_name(operator: Operator) -> Optional[str]:
        name = operator.inputs[0].parameter if operator.inputs and not operator.module else None
        return name if name in common_names else None

    return [
        match
        for match in matches
        if match.how not in ("place", "order") or first_name(match.actual) == first_name(match.reference)
    ]


def _positions(match: Match) -> tuple[int, int]:
    return match.actual.position, match.reference.position


def _gaps(
    a: Sequence[Operator], b: Sequence[Operator], pairs: Sequence[Match]
) -> Iterator[tuple[list[Operator], list[Operator]]]:
    """Yield the unpaired operators of both sides in each gap: between two pairs that do not cross, and at the ends."""
    ordered = sorted(pairs, key=lambda match: match.reference.position)
    row = [ordered[index] for index in _longest_increasing([match.actual.position for match in ordered])]
    free_a, free_b = _unmatched(a, b, pairs)
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


def _unmatched(
    a: Sequence[Operator], b: Sequence[Operator], matches: Sequence[Match]
) -> tuple[list[Operator], list[Operator]]:
    taken_a, taken_b = {match.actual.position for match in matches}, {match.reference.position for match in matches}
    return [x for x in a if x.position not in taken_a], [y for y in b if y.position not in taken_b]


def _unordered(
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[_Key, str, float]], matches: list[Match]
) -> None:
    """Pair operators whose key is unique on both sides, in any order.

    Each key is used for the operators that are unpaired after the keys before it.
    """
    for key, how, confidence in keys:
        sides = [[(key(operator), operator) for operator in side] for side in _unmatched(a, b, matches)]
        counts = [Counter(name for name, _ in side) for side in sides]
        unique = {name: operator for name, operator in sides[1] if name is not None and counts[1][name] == 1}
        for name, operator in sides[0]:
            if name in unique and counts[0][name] == 1:
                matches.append(Match(operator, unique[name], how, confidence))


def _patience(a: Sequence[Optional[Hashable]], b: Sequence[Optional[Hashable]]) -> list[tuple[int, int]]:
    """Return the index pairs of the longest sequence of keys that are unique on each side and in the same order."""
    count_a, count_b = Counter(a), Counter(b)
    index = {key: j for j, key in enumerate(b) if key is not None and count_b[key] == 1}
    pairs = [(i, index[key]) for i, key in enumerate(a) if key in index and count_a[key] == 1]
    return [pairs[position] for position in _longest_increasing([j for _, j in pairs])]


def _longest_increasing(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the longest increasing subsequence."""
    tails: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for index, j in enumerate(numbers):
        length = bisect_left(tails, j)
        before.append(heads[length - 1] if length else -1)
        if length == len(tails):
            tails.append(j)
            heads.append(index)
        else:
            tails[length] = j
            heads[length] = index
    row = []
    index = heads[-1] if heads else -1
    while index >= 0:
        row.append(index)
        index = before[index]
    return row[::-1]


def _sequence(
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[_Key, str, float]], matches: list[Match]
) -> None:
    """Pair the operators of the longest common subsequence of keys; in its gaps, use the next, looser key."""
    if not a or not b or not keys:
        return
    (key, how, confidence), *looser = keys
    i0 = j0 = 0
    for i, j in [*common([key(operator) for operator in a], [key(operator) for operator in b]), (len(a), len(b))]:
        if i > i0 and j > j0:
            _sequence(a[i0:i], b[j0:j], looser, matches)
        if i < len(a) and j < len(b):
            matches.append(Match(a[i], b[j], how, confidence))
        i0, j0 = i + 1, j + 1


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the index pairs of the longest common subsequence. Long sequences are searched window by window."""
    if len(a) == len(b) and all(x == y for x, y in zip(a, b)):
        return [(i, i) for i in range(len(a))]
    number: dict[Hashable, int] = {}
    x = [number.setdefault(key, len(number)) for key in a]
    y = [number.setdefault(key, len(number)) for key in b]
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(x) and j < len(y):
        if len(x) - i <= 2 * _WINDOW and len(y) - j <= 2 * _WINDOW:
            pairs += [(i + k, j + m) for k, m in _indel(x[i:], y[j:])]
            break
        piece = x[i : i + _WINDOW]
        row = _indel(piece, y[j : j + _partner_length(piece, y[j : j + 2 * _WINDOW])])
        # Pairs near the end of a window are not used, because they may change with what follows.
        settled = [(i + k, j + m) for k, m in row if k < _WINDOW // 2]
        pairs += settled
        i, j = (settled[-1][0] + 1, settled[-1][1] + 1) if settled else (i + _WINDOW // 2, j + _WINDOW // 2)
    return pairs


def _partner_length(piece: Sequence[int], candidates: Sequence[int]) -> int:
    """Return the number of leading candidates that correspond to the piece with the fewest insertions and deletions.

    With more or fewer candidates, layers that are all alike would be paired with their neighbours.
    """
    distance = _indel_module().distance
    distances: dict[int, int] = {}

    def edits(length: int) -> int:
        if length not in distances:
            distances[length] = distance(piece, candidates[:length])
        return distances[length]

    best, step = min(len(piece), len(candidates)), _WINDOW // 4
    while step:
        best = min((best, best - step, best + step), key=lambda length: edits(min(max(length, 0), len(candidates))))
        best = min(max(best, 0), len(candidates))
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
    # Of several longest subsequences, Indel returns that which agrees at the ends. Here the beginnings are known to
    # agree, so both sides are reversed.
    return [
        (len(x) - op.src_end + k, len(y) - op.dest_end + k)
        for op in reversed(_indel_module().opcodes(x[::-1], y[::-1]))
        if op.tag == "equal"
        for k in range(op.src_end - op.src_start)
    ]


def _contents(operator: Operator) -> Optional[Hashable]:
    """Return class, module and bytes of all inputs and outputs; None without outputs, or if a hash is missing."""
    inputs, outputs = ([record.content for record in side] for side in (operator.inputs, operator.outputs))
    if not outputs or None in inputs or None in outputs:
        return None
    return (_class(operator), operator.module_path, in_any_order(operator, inputs), tuple(outputs))


def _is_same(actual: Operator, reference: Operator) -> bool:
    """Return True if name, module and bytes are the same. Missing values must be missing for the same reason."""
    names = [(x.op_type, x.op_name, x.phase, x.module, len(x.inputs), len(x.broken)) for x in (actual, reference)]
    records_a, records_b = ((*x.inputs, *x.outputs) for x in (actual, reference))
    return (
        names[0] == names[1]
        and not actual.broken
        and len(records_a) == len(records_b)
        and all(a.io == b.io and a.index == b.index and _has_same_value(a, b) for a, b in zip(records_a, records_b))
    )


def _has_same_value(a: Record, b: Record) -> bool:
    content = a.content
    if content is not None:
        return content == b.content
    same = (a.dtype, a.shape, a.attrs.get("skipped")) == (b.dtype, b.shape, b.attrs.get("skipped"))
    return same and b.content is None and is_no_value(a) and is_no_value(b)


def _class(operator: Operator) -> Hashable:
    """Return the class of an operator, with the kernel's name for a kernel, so that it differs from its API call."""
    name = operator_class(operator.op_type)
    return name if operator.kernel is None else (name, operator.kernel)


@functools.lru_cache(maxsize=4096)
def _sorted(shape: Optional[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(shape or ()))


def _shapes(operator: Operator) -> Hashable:
    """Return the shapes of the outputs, with sorted axes; of the inputs if there are no outputs."""
    records = operator.outputs or operator.inputs
    return tuple([_sorted(shape_in_model(record)) for record in records])


def _call_site(operator: Operator) -> Optional[Hashable]:
    return (_class(operator), operator.module_path, operator.phase, _shapes(operator))


def _update(operator: Operator) -> Optional[Hashable]:
    """Return the class, the phase and the names of optimizer tensors that an operator uses; None if it uses none."""
    names = tuple([record.parameter for record in (*operator.inputs, *operator.outputs)])
    return (_class(operator), operator.phase, names) if any(names) else None


def _kind(operator: Operator) -> Hashable:
    return (_class(operator), operator.phase, _shapes(operator))


def _call(operator: Operator) -> Hashable:
    """Return class, module and phase, and True if the result is integers, such as positions instead of values."""
    records = operator.outputs or operator.inputs
    makes_integers = bool(records) and (records[0].dtype or "").startswith("int")
    return (_class(operator), operator.module_path, operator.phase, makes_integers)


def _call_and_axes(operator: Operator) -> Hashable:
    """Return the call with the numbers of axes of its tensors, for operators that may have other shapes on a side."""
    axes = [None if record.shape is None else len(record.shape) for record in (*operator.inputs, *operator.outputs)]
    return (_call(operator), tuple(axes))


def _effect(operator: Operator) -> Hashable:
    """Return the phase, True if the operator computes, for each output True if it has floats, and the shapes.

    So views are not paired with operators that compute, nor flags with numbers.
    """
    are_floats = tuple([float_kind(record.dtype or "") is not None for record in operator.outputs])
    return (operator.phase, computes(operator), are_floats, _shapes(operator))


def _name(operator: Operator) -> Optional[Hashable]:
    return (operator.op_name, _call_site(operator)) if _is_named(operator) and not _is_update(operator) else None


def _name_of_module(operator: Operator) -> Optional[Hashable]:
    """Return the name of a module call, without the levels of wrappers.

    Its tensors may differ: a module may get no gradient in one program. Its class may differ: it may be replaced.
    """
    record = next(operator.records, None)
    if record is None or not is_of_module(record):
        return None
    if is_update(record):
        return _update_of_parameter(operator)
    return operator.module_path, operator.op_name.rpartition("/")[2]


def _update_of_parameter(operator: Operator) -> Optional[Hashable]:
    """Return the name of the parameter that an optimizer updates, without the levels of wrappers."""
    name = next((record.parameter for record in operator.records if record.parameter), None)
    return None if name is None else ("update", module_of(name))


def _name_and_contents(operator: Operator) -> Optional[Hashable]:
    contents = _contents(operator)
    return (operator.op_name, contents) if _is_named(operator) and contents is not None else None


def _is_update(operator: Operator) -> bool:
    record = next(operator.records, None)
    return record is not None and is_update(record)


def _is_named(operator: Operator) -> bool:
    """Return True if the name identifies the operator. Names of API calls and kernels on an NPU only number calls."""
    return bool(operator.op_name) and operator.kernel is None and not operator.op_type.startswith("aclnn")


_KEYS_ANYWHERE: Sequence[tuple[_Key, str, float]] = ((_contents, "content", 0.9),)
#: Operators of a graph have unique names, and branches run in any order. Eager operators are numbered in execution
#: order, so that an additional operator renames all later ones.
_KEYS_IN_GRAPHS: Sequence[tuple[_Key, str, float]] = (
    (_name_and_contents, "content", 1.0),
    (_contents, "content", 0.95),
    (_name, "name", 0.9),
)
#: Parameters are updated in any order.
_KEYS_OF_UPDATES: Sequence[tuple[_Key, str, float]] = ((_update, "parameter", 0.95),)
_KEYS_IN_GAPS: Sequence[tuple[_Key, str, float]] = (
    (_call_site, "place", 0.9),
    (_kind, "order", 0.7),
    (_call_and_axes, "place", 0.6),
    (_effect, "order", 0.5),
)
_KEYS_OF_PARTS: Sequence[tuple[_Key, str, float]] = (
    (_call, "place", 0.9),
    (lambda operator: (_class(operator), operator.phase), "order", 0.7),
)
