"""Drop pairs whose only evidence is names, shapes and order, where the two programs are built differently.

Two operators are the same if they read the same tensors. If that is not known, their module decides: in a module that
runs the same operators on both sides, each operator has its partner. All other pairs are kept only if the operators
around them have partners too; one side may have additional operators there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Optional

from ascend_dump.analysis.operators.arguments import are_other_updates, commutes
from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, Flows, InputSource, Made
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["Node", "Partners", "computes", "exits", "is_crossed", "settled", "stored_names", "unpaired_components"]

#: The relative distance of weights that are not the same.
_FAR = 0.5
_Kind = Callable[[Operator], Hashable]
#: Side (0: actual) and position of an operator.
Node = tuple[int, int]


class Partners:
    """The positions of paired operators, for each side."""

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.of_actual: dict[int, int] = {}
        self.of_reference: dict[int, int] = {}
        for position_a, position_b in pairs:
            self.add(position_a, position_b)

    def add(self, position_a: int, position_b: int) -> None:
        self.of_actual[position_a] = position_b
        self.of_reference[position_b] = position_a

    def are_free(self, position_a: int, position_b: int) -> bool:
        """Return True if neither of the two operators has a partner."""
        return position_a not in self.of_actual and position_b not in self.of_reference

    def of(self, side: int) -> dict[int, int]:
        return self.of_reference if side else self.of_actual


class Components:
    """Sets of operators that belong together: a union-find structure."""

    def __init__(self) -> None:
        self._parents: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        root = node
        while root in self._parents:
            root = self._parents[root]
        while node != root:
            self._parents[node], node = root, self._parents[node]
        return root

    def join(self, first: Node, second: Node) -> None:
        roots = sorted((self.find(first), self.find(second)))
        if roots[0] != roots[1]:
            self._parents[roots[1]] = roots[0]


def relation(a: InputSource, b: InputSource, partners: Partners) -> Optional[bool]:
    """Return True if two inputs are the same tensor of the program, False if they are not, None if this is unknown."""
    if a.maker is not None and b.maker is not None and partners.of_actual.get(a.maker.position) == b.maker.position:
        return a.maker.output == b.maker.output
    if a.root is None or b.root is None or a.root.position == b.root.position == OUTSIDE:
        content, is_number = a.record.content, math.prod(a.record.shape or ()) == 1
        return True if content is not None and content == b.record.content and not is_number else None
    partner_a, partner_b = (
        partners.of(side).get(source.root.position) for side, source in enumerate((a, b)) if source.root is not None
    )
    if partner_a == b.root.position and partner_a is not None:
        return a.root.output == b.root.output and not _are_other_parts(a, b)
    if OUTSIDE in (a.root.position, b.root.position):
        # One side reads a parameter or an input of the program, the other one a result.
        return False if partner_a is not None or partner_b is not None else None
    return False if partner_a is not None and partner_b is not None else None


def is_crossed(flows: Flows, position_a: int, position_b: int, partners: Partners) -> bool:
    """Return True if two paired commutative operators have their inputs in opposite orders.

    Where dataflow does not show the order, the shapes may.
    """
    a, b = flows[0].sources[position_a], flows[1].sources[position_b]
    if not (commutes(flows[0].operators[position_a]) and commutes(flows[1].operators[position_b])):
        return False

    def agreements(sources: Sequence[InputSource]) -> tuple[int, int]:
        pairs = list(zip(sources, b))
        related = sum(relation(*pair, partners) is True for pair in pairs)
        return related, sum(one.record.shape == other.record.shape for one, other in pairs)

    return agreements(a[::-1]) > agreements(a)


def input_pairs(
    flows: Flows, position_a: int, position_b: int, partners: Partners
) -> list[tuple[InputSource, InputSource]]:
    """Return the pairs of corresponding inputs of two operators, even if commutative inputs are in opposite orders."""
    step = -1 if is_crossed(flows, position_a, position_b, partners) else 1
    return list(zip(flows[0].sources[position_a][::step], flows[1].sources[position_b]))


def _are_other_parts(a: InputSource, b: InputSource) -> bool:
    """Return True if two inputs are different parts of one tensor."""
    parts = [(record.shape, record.attrs.get("stride")) for record in (a.record, b.record)]
    return parts[0] == parts[1] and a.record.attrs.get("storage_offset") != b.record.attrs.get("storage_offset")


def _same_modules(flows: Flows, kind: _Kind) -> set[tuple[str, str]]:
    """Return (module path, phase) of modules that run the same operators on both sides; inner modules do not count."""
    sides: list[dict[tuple[str, str], list[Hashable]]] = []
    for flow in flows:
        sides.append({})
        for operator in flow.operators:
            if operator.module_path:
                sides[-1].setdefault((operator.module_path, operator.phase), []).append(kind(operator))
    return {module for module, operators in sides[0].items() if sides[1].get(module) == operators}


Pair = tuple[int, int]


def settled(
    flows: Flows, certain: Iterable[Pair], uncertain: Iterable[Pair], kind: _Kind
) -> tuple[set[Pair], list[Pair]]:
    """Return the uncertain pairs that are kept, and further pairs of operators, whose readers are paired.

    certain, uncertain: positions of both operators. kind: returns the properties that both operators of a pair share
    """
    partners = Partners(certain)
    candidates = _Candidates(flows, partners, kind)
    ordered = sorted(uncertain, key=lambda pair: pair[1])
    kept = {pair for pair in ordered if candidates.add(*pair)}
    read = list(candidates.read_by_pairs())
    # Some operators of uncertain pairs have got another partner by now.
    left = [pair for pair in ordered if partners.are_free(*pair) and not candidates.are_of_other_parameters(*pair)]
    kept.update(pair for pair in left if candidates.add(*pair))
    kept.update(_between_pairs(flows, partners, [pair for pair in left if pair not in kept]))
    return kept, read


class _Candidates:
    """Decides about pairs by the tensors that their operators read."""

    def __init__(self, flows: Flows, partners: Partners, kind: _Kind) -> None:
        self._flows = flows
        self._partners = partners
        self._kind = kind
        self._same_modules = _same_modules(flows, kind)
        #: The paths of modules that run operators in both programs.
        self._modules_of_both = set.intersection(
            *({operator.module_path for operator in flow.operators if operator.module_path} for flow in flows)
        )
        self._names = [
            {record.parameter for operator in flow.operators for record in operator.records} for flow in flows
        ]
        #: For each side, by the number of a storage: the name of the parameter in it. Views of it have no name.
        self._stored = [stored_names(flow) for flow in flows]

    def add(self, position_a: int, position_b: int) -> bool:
        """Add a pair to the partners if its inputs or its module confirm it; return True if they do."""
        a, b = self._flows[0].operators[position_a], self._flows[1].operators[position_b]
        is_in_place = (a.module_path, a.phase) in self._same_modules and a.module_path == b.module_path
        relations = self._relations(position_a, position_b)
        reads_same = True in relations and False not in relations
        if operator_class(a.op_type) != operator_class(b.op_type):
            reads_same = bool(relations) and all(relations)
        if not (is_in_place or reads_same) or self.are_of_other_parameters(position_a, position_b):
            return False
        if are_other_updates(a, b):
            return False
        self._partners.add(position_a, position_b)
        return True

    def read_by_pairs(self) -> Iterator[Pair]:
        """Find, add and yield more pairs: unpaired operators of one kind that made corresponding inputs of a pair."""
        waiting = list(self._partners.of_actual.items())
        while waiting:
            position_a, position_b = waiting.pop()
            if commutes(self._flows[1].operators[position_b]) and True not in self._relations(position_a, position_b):
                continue  # it is unknown which inputs of the two correspond
            for a, b in input_pairs(self._flows, position_a, position_b, self._partners):
                for made_a, made_b in ((a.maker, b.maker), (a.root, b.root)):
                    if made_a is None or made_b is None or not self._may_be_pair(made_a, made_b):
                        continue
                    pair = made_a.position, made_b.position
                    self._partners.add(*pair)
                    waiting.append(pair)
                    yield pair

    def _may_be_pair(self, made_a: Made, made_b: Made) -> bool:
        if OUTSIDE in (made_a.position, made_b.position) or made_a.output != made_b.output:
            return False
        if not self._partners.are_free(made_a.position, made_b.position):
            return False
        a, b = self._flows[0].operators[made_a.position], self._flows[1].operators[made_b.position]
        return (
            self._kind(a) == self._kind(b)
            and not (a.module_path != b.module_path and {a.module_path, b.module_path} <= self._modules_of_both)
            and not are_other_updates(a, b)
            and False not in self._relations(made_a.position, made_b.position)
            and not self.are_of_other_parameters(made_a.position, made_b.position)
        )

    def _name(self, side: int, record: Record) -> str:
        """Return the name of the parameter that a record is, or is a view of; "" for other tensors."""
        return record.parameter or self._stored[side].get((storage_of(record) or (-1,))[0], "")

    def are_of_other_parameters(self, position_a: int, position_b: int) -> bool:
        """Return True if two operators update different parameters.

        Names decide if both programs have a parameter of this name; else shapes and values. Weights that have other
        names and the same values have got the same names before.
        """
        records = [
            [record for record in flow.operators[position].records if self._name(side, record)]
            for side, (flow, position) in enumerate(zip(self._flows, (position_a, position_b)))
        ]
        names = [{self._name(side, record) for record in of_side} for side, of_side in enumerate(records)]
        if not all(names) or names[0] & names[1]:
            return False
        both_have = names[0] & self._names[1] or names[1] & self._names[0]
        if both_have or [record.shape for record in records[0]] != [record.shape for record in records[1]]:
            return True
        weights = [next((record for record in of_side if _is_read_weight(record)), None) for of_side in records]
        a, b = weights
        return a is not None and b is not None and a.content != b.content and _are_far_apart(a, b)

    def _relations(self, position_a: int, position_b: int) -> list[Optional[bool]]:
        counts = [len(flow.sources[position]) for flow, position in zip(self._flows, (position_a, position_b))]
        pairs = input_pairs(self._flows, position_a, position_b, self._partners) if counts[0] == counts[1] else ()
        return [relation(a, b, self._partners) for a, b in pairs]


def _are_far_apart(a: Record, b: Record) -> bool:
    """Return True if the values of two weights have little in common. Rounding, or a few updates, change less."""
    import numpy as np

    try:
        x, y = (record.numpy().astype(np.float64) for record in (a, b))
    except (AscendDumpError, TypeError, ValueError):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        return x.shape != y.shape or bool(np.linalg.norm(x - y) > _FAR * np.linalg.norm(y))


def _is_read_weight(record: Record) -> bool:
    """Return True for a parameter that an operator reads: no gradient, no state of an optimizer, and no view."""
    name = record.parameter or ""
    return bool(name) and record.io == "input" and not (" of " in name or name.endswith(".grad"))


def _between_pairs(flows: Flows, partners: Partners, weak: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the weak pairs of equal class around which at most one side has operators without a partner.

    weak: pairs of positions. Operators around a pair pass tensors to each other, without a paired operator between
    """
    # Operators of two classes are no pair, so they have no partner.
    classes = [[operator_class(flow.operators[pair[side]].op_type) for side, flow in enumerate(flows)] for pair in weak]
    weak = [pair for pair, (class_a, class_b) in zip(weak, classes) if class_a == class_b]
    components = unpaired_components(flows, partners)
    for position_a, position_b in weak:
        components.join((0, position_a), (1, position_b))
    paired = [{pair[side] for pair in weak} for side in (0, 1)]
    alone = [
        {
            components.find((side, position))
            for position, operator in enumerate(flow.operators)
            if position not in partners.of(side) and position not in paired[side] and computes(operator)
        }
        for side, flow in enumerate(flows)
    ]
    yield from (pair for pair in weak if components.find((0, pair[0])) not in alone[0] & alone[1])


def unpaired_components(flows: Flows, partners: Partners) -> Components:
    """Return the sets of operators without partners that pass tensors to each other, or to the same paired reader.

    Each is of one pass. Gradients of weights may be computed from other products, so that in place of a gradient the
    other side reads a tensor of the forward pass.
    """
    components = Components()
    for side, flow in enumerate(flows):
        for position, sources in enumerate(flow.sources):
            if position not in partners.of(side):
                for maker in _unpaired_makers(flow, sources, partners.of(side)):
                    if _is_backward(flows, (side, maker)) == _is_backward(flows, (side, position)):
                        components.join((side, maker), (side, position))
    for makers, _ in exits(flows, partners):
        for nodes in ([node for node in makers if _is_backward(flows, node) == later] for later in (False, True)):
            for node in nodes[1:]:
                components.join(nodes[0], node)
    return components


def _is_backward(flows: Flows, node: Node) -> bool:
    side, position = node
    return flows[side].operators[position].phase == "backward"


def stored_names(flow: DataFlow) -> dict[int, str]:
    """Return the names of parameters, gradients and optimizer states by the numbers of their storages.

    Flat memory of several parameters is left out.
    """
    names: dict[int, set[str]] = {}
    for record in (record for operator in flow.operators for record in operator.records if record.parameter):
        storage = storage_of(record)
        if storage is not None:
            names.setdefault(storage[0], set()).add(record.parameter or "")
    return {storage: of_storage.pop() for storage, of_storage in names.items() if len(of_storage) == 1}


def exits(flows: Flows, partners: Partners) -> Iterator[tuple[list[Node], tuple[int, int]]]:
    """Yield (unpaired operators that made an input of a pair, (position of the pair in the reference, input index))."""
    for position_a, position_b in partners.of_actual.items():
        for a, b in input_pairs(flows, position_a, position_b, partners):
            makers = [
                (side, maker)
                for side, source in enumerate((a, b))
                for maker in _unpaired_makers(flows[side], [source], partners.of(side))
            ]
            if makers:
                yield makers, (position_b, b.record.index)


def _unpaired_makers(flow: DataFlow, sources: Iterable[InputSource], partners: dict[int, int]) -> list[int]:
    """Return the positions of the unpaired operators, views included, that made these inputs."""
    makers = {
        made.position
        for source in sources
        for made in (source.maker, source.root)
        if made is not None and made.position != OUTSIDE
    }
    return sorted(maker for maker in makers if maker not in partners)


def computes(operator: Operator) -> bool:
    """Return True if an operator has outputs and is no view, copy or source of data, such as a constant."""
    return bool(operator.outputs) and not is_view(operator.op_type) and not is_source(operator.op_type)
