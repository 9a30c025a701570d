"""Turn matched weights into findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Optional

from ascend_dump.analysis.weights.comparison import WeightFinding
from ascend_dump.analysis.weights.matching import Matches
from ascend_dump.analysis.weights.names import parsed
from ascend_dump.analysis.weights.row_maps import RowMap
from ascend_dump.analysis.weights.sides import Side
from ascend_dump.analysis.weights.weight_group import WeightGroup, cast_text

__all__ = ["findings_of"]


def findings_of(actual: Side, reference: Side, matches: Matches) -> Iterator[WeightFinding]:
    """Yield a finding for each group of weights that belong together, in no particular order."""
    yield from _whole(actual, reference, matches)
    for members in _groups(matches.maps):
        finding = WeightGroup(actual, reference, members, matches.maps).finding()
        equal_to = matches.equal_to.get(members[0][0]) if len(members[0]) == 1 else None
        if equal_to is not None and finding.verdict == "different":
            finding = finding._replace(relation="misplaced", text=f"has the values of {reference.names[equal_to]}")
        yield finding
    for merged in matches.merged:
        apart = (actual, reference)[1 - merged.side]
        names = ((actual, reference)[merged.side].names[merged.number],), tuple(apart.names[i] for i in merged.parts)
        yield WeightFinding("merged", "noise", names[merged.side], names[1 - merged.side], merged.text)
    for side, number, partner in matches.copies:
        pair = (number, partner) if side == 0 else (partner, number)
        yield WeightFinding(
            "equal", "equal", (actual.names[pair[0]],), (reference.names[pair[1]],), "a copy, as tied weights are"
        )
    for number in matches.alone[0]:
        lone = "added" if reference.weights.is_complete else "unrecorded"
        yield _lone(actual, number, lone, _type_text(actual, number), is_actual=True)
    for number in matches.alone[1]:
        lone = "missing" if actual.weights.is_complete else "unrecorded"
        yield _lone(reference, number, lone, _type_text(reference, number), is_actual=False)
    for is_actual, of_side in ((True, actual), (False, reference)):
        for number, error in of_side.unreadable.items():
            yield _lone(of_side, number, "unreadable", error.message, is_actual=is_actual)


def _lone(side: Side, number: int, relation: str, text: str, *, is_actual: bool) -> WeightFinding:
    verdict = {"unrecorded": "equal", "unreadable": "unreadable"}.get(relation, "unmatched")
    names = (side.names[number],)
    return WeightFinding(relation, verdict, names if is_actual else (), () if is_actual else names, text)


def _type_text(side: Side, number: int) -> str:
    tensor = side.tensors[number]
    return f"{tensor.dtype} {list(tensor.shape)}"


def _whole(actual: Side, reference: Side, matches: Matches) -> Iterator[WeightFinding]:
    """Yield findings of weights with the same bytes."""
    usual = _usual_distances(actual, reference, matches)
    for number, partner_number, _ in matches.whole:
        tensor, partner = actual.tensors[number], reference.tensors[partner_number]
        names = (tensor.name,), (partner.name,)
        name, partner_name = parsed(tensor.name), parsed(partner.name)
        distance = _distance(name.numbers, partner_name.numbers)
        if distance != usual.get((name.template, partner_name.template), distance):
            yield WeightFinding("misplaced", "different", *names, f"has the values of {partner.name}")
        elif tensor.dtype != partner.dtype:
            yield WeightFinding("cast", "noise", *names, cast_text(tensor.dtype, partner.dtype))
        elif tensor.shape != partner.shape:
            shapes = f"{list(partner.shape)} in the reference, {list(tensor.shape)} here"
            yield WeightFinding("reshaped", "equal", *names, shapes)
        else:
            yield WeightFinding("equal", "equal", *names)


def _distance(numbers: tuple[int, ...], partner_numbers: tuple[int, ...]) -> Optional[tuple[int, ...]]:
    if len(numbers) != len(partner_numbers):
        return None
    return tuple(partner - number for number, partner in zip(numbers, partner_numbers))


def _usual_distances(actual: Side, reference: Side, matches: Matches) -> dict[tuple[str, str], Any]:
    """Return the usual distance between the numbers in the names of two partners, by the templates of these names."""
    distances: dict[tuple[str, str], Counter[Any]] = {}
    for number, partner, _ in matches.whole:
        name, partner_name = parsed(actual.names[number]), parsed(reference.names[partner])
        distance = _distance(name.numbers, partner_name.numbers)
        distances.setdefault((name.template, partner_name.template), Counter())[distance] += 1
    return {templates: _usual(counts, templates[0] == templates[1]) for templates, counts in distances.items()}


def _usual(counts: Counter[Any], are_same_names: bool) -> Any:
    [(distance, most)] = counts.most_common(1)
    same = (0,) * len(distance or ())
    # The same names on both sides mean the same weights.
    return same if are_same_names or counts[same] == most else distance


def _groups(maps: dict[int, RowMap]) -> list[tuple[list[int], list[int]]]:
    """Return groups of weights that share rows: for each group its weights of actual and its weights of the reference.

    A weight is given by its number in its `Side`.
    """
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(node: tuple[int, int]) -> tuple[int, int]:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for number, rows in maps.items():
        for partner in {*rows.targets.tolist()} - {-1}:
            parent[root((1, partner))] = root((0, number))
    groups: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for node in sorted(parent):
        groups.setdefault(root(node), ([], []))[node[0]].append(node[1])
    return [*groups.values()]
