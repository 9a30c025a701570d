"""Pair the operators of two runs of one framework: the certain pairs first, then alignment in the gaps between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Optional

from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.by_dataflow import pairs_by_flow
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows, has_storages
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.operator_keys import (
    KEYS_ANYWHERE,
    KEYS_IN_GRAPHS,
    KEYS_OF_PARTS,
    KEYS_OF_UPDATES,
    Key,
    call_site,
    called_as_often,
    contents_of,
    is_same,
    keys_in_gaps,
    keys_of_placements,
    keys_of_viewed_parameters,
    kind_of,
    name_of_module,
    place_of_call,
)
from ascend_dump.analysis.pairing.sequences import common, longest_increasing, unique_in_order
from ascend_dump.analysis.pairing.weak_pairs import Partners, is_crossed, settled

__all__ = ["align"]


def align(
    actual: Sequence[Operator],
    reference: Sequence[Operator],
    mapping: Optional[Mapping[str, str]] = None,
    *,
    parts: bool = False,
    agreeing: Optional[Mapping[str, str]] = None,
    apart: Collection[tuple[str, str]] = (),
) -> list[Match]:
    """Pair the operators of one step, in the order of the reference; operators that are left out have no partner.

    If every operator equals the operator at its index on the other side, these are the pairs. Else there are passes,
    the strongest evidence first:

    - the user's mapping, from names of actual to names of the reference; then results that agree
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
    agreeing, apart: names of operators of actual and of the reference whose results agree, and of such that are no pair
    """
    if not mapping and len(actual) == len(reference) and all(map(is_same, actual, reference)):
        return [Match(a, b, "content", 1.0) for a, b in zip(actual, reference)]
    matches = _mapped(actual, reference, mapping or {}, "mapping", 1.0)
    matches += _mapped(*_unmatched(actual, reference, matches), agreeing or {}, "value", 0.9)
    is_graph = not any("::" in operator.op_type for operator in reference)
    _unordered(actual, reference, KEYS_IN_GRAPHS if is_graph else KEYS_OF_UPDATES, matches)
    _unordered(*called_as_often(actual, reference), ((name_of_module, "name", 0.9),), matches)
    free_a, free_b = _unmatched(actual, reference, matches)
    equal = unique_in_order(
        [contents_of(operator) for operator in free_a], [contents_of(operator) for operator in free_b]
    )
    row = [Match(free_a[i], free_b[j], "content", 1.0) for i, j in equal]
    flows = None if parts or not has_storages(actual, reference) else (DataFlow(actual), DataFlow(reference))
    row += _by_flow(flows, [*matches, *row])
    if parts:
        matches += _in_same_modules(actual, reference, [*matches, *row])
    else:
        row += _anchors(free_a, free_b, row, flows, matches)
        row += _by_flow(flows, [*matches, *row])
    keys = (*keys_of_placements(actual, reference), *KEYS_OF_PARTS) if parts else keys_in_gaps(actual, reference)
    # Ranks may update different parameters. So pairs by parameter are anchors: operators between belong to an update.
    anchors = [*matches, *row] if parts else row
    matches += row
    for gap_a, gap_b in _gaps(free_a, free_b, anchors):
        _sequence(gap_a, gap_b, keys, matches)
    if parts:
        matches = _without_other_names(actual, reference, matches)
        _unordered(actual, reference, keys_of_viewed_parameters(actual, reference), matches)
    matches = [match for match in matches if (match.actual.op_name, match.reference.op_name) not in apart]
    _unordered(free_a, free_b, KEYS_ANYWHERE, matches)
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
        if module and [*map(place_of_call, of_actual)] == [*map(place_of_call, of_reference)]:
            for a, b in zip(of_actual, of_reference):
                if a.position not in taken[0] and b.position not in taken[1]:
                    yield Match(a, b, "place", 0.9)


def _mapped(
    actual: Sequence[Operator], reference: Sequence[Operator], mapping: Mapping[str, str], how: str, confidence: float
) -> list[Match]:
    by_name = {operator.op_name: operator for operator in reference}
    matches = []
    for operator in actual if mapping else ():
        partner = by_name.pop(mapping.get(operator.op_name, ""), None)
        if partner is not None:
            matches.append(Match(operator, partner, how, confidence))
    return matches


def _by_flow(flows: Optional[Flows], matches: Sequence[Match]) -> list[Match]:
    pairs = [] if flows is None else pairs_by_flow(flows, map(_positions, matches), kind_of)
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
        unique = unique_in_order(
            [call_site(operator) for operator in gap_a], [call_site(operator) for operator in gap_b]
        )
        anchors += [Match(gap_a[i], gap_b[j], "place", 0.95) for i, j in unique]
    known = set(map(_positions, (*matches, *row)))
    return [match for match in _settled(flows, [*matches, *row, *anchors]) if _positions(match) not in known]


def _settled(flows: Optional[Flows], matches: Sequence[Match]) -> list[Match]:
    """Return the matches that dataflow does not contradict, and further matches of operators with paired readers."""
    if flows is None:
        return [*matches]
    certain = [match for match in matches if match.how not in ("place", "order")]
    uncertain = {_positions(match): match for match in matches if match.how in ("place", "order")}
    kept, read = settled(flows, map(_positions, certain), uncertain, kind_of)
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
    row = [ordered[index] for index in longest_increasing([match.actual.position for match in ordered])]
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
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[Key, str, float]], matches: list[Match]
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


def _sequence(
    a: Sequence[Operator], b: Sequence[Operator], keys: Sequence[tuple[Key, str, float]], matches: list[Match]
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
