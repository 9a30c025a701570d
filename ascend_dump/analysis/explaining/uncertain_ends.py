"""Find agreement that does not show that a difference ends.

The rounding of a coarse type, such as bfloat16, explains large distances too. A loss may hardly depend on a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.differing import Differing, Node, leading_nodes
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import EnteredStretch
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.names import operation
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows

__all__ = ["UncertainEnds"]

#: A difference is large if its relative distance is more than this. The rounding of a coarse type, with at least this
#: unit, may explain a large distance too. Then a difference remains in a result that is not this many times nearer,
#: and, if it is further off than this many units, rounding alone is unlikely.
_LARGE, _COARSE, _TIMES_NEARER, _UNITS = 0.05, 2.0**-12, 4.0, 8.0
_SUMMING = frozenset({"sum", "mean", "ReduceSum", "ReduceMean", "BiasAddGrad"})


class UncertainEnds:
    """Pairs of operators of one step that read a difference, and whose outputs agree without showing that it ends.

    differing: the pairs of operators with differences, by position in the reference
    """

    def __init__(self, flows: Flows, differing: Mapping[int, Differing]) -> None:
        self._differing = differing
        unit = max(map(_coarsest_unit, flows))
        distances = {number: _remaining_distance(one, unit) for number, one in differing.items()}
        #: Pairs of operators whose outputs agree, and that may still have the difference of an input; and those of them
        #: where rounding alone is unlikely.
        self._remaining = {position for position, distance in distances.items() if distance > 0}
        self._unlikely = {position for position, distance in distances.items() if distance > 1}
        #: In fine types: parts that are built differently and agree, because noise of other inputs seems to explain the
        #: difference of one.
        self._faded: set[Node] = set()
        self._is_fine = unit < _COARSE
        #: Operators of the forward pass that reduce a tensor that differs to a number that agrees, such as a loss.
        self._numbers = {position for position, one in differing.items() if _ends_in_number(one)}

    def __contains__(self, node: Node) -> bool:
        return node in self._remaining or node in self._numbers or node in self._faded

    def __bool__(self) -> bool:
        return bool(self._remaining or self._faded)

    def add_part(self, part: EnteredStretch, before: Sequence[Pair]) -> bool:
        """Return True if a part that is built differently agrees, although a difference which it reads is still there.

        before: pairs that differ, and that it reads
        """
        if self._is_fine and _is_left(_distance(before), part.agreeing):
            self._faded.add(part)
            return True
        return False

    def origins(
        self, origins: Sequence[tuple[OriginNumber, Node]], edges: Sequence[tuple[Node, Optional[Node]]]
    ) -> set[OriginNumber]:
        """Return the origins whose differences lead to results that only the rounding of a coarse type may explain.

        The differences are large, and no tensor of the forward pass that is computed from them agrees, but at most a
        loss. Or the operator is called with other arguments, and no other call makes up for them.
        """
        likely = (self._remaining - self._unlikely) | self._faded
        uncertain = self._remaining | self._faded
        leading = leading_nodes(edge for edge in edges if not self._numbers.intersection(edge))
        coarse = leading_nodes(edge for edge in edges if not (self._numbers | self._faded).intersection(edge))
        unlikely = leading_nodes(edge for edge in edges if not likely.intersection(edge))
        to_numbers = leading_nodes(
            edge
            for edge in edges
            if not uncertain.intersection(edge) and (edge[1] is not None or edge[0] in self._numbers)
        )
        return {
            number
            for number, node in origins
            if (node in unlikely and node in to_numbers and self._is_large(node))
            or (node in leading and self._has_arguments(node))
            or (node in coarse and self._is_replaced(node) and self._is_large(node))
        }

    def _has_arguments(self, node: Node) -> bool:
        """Return True if both sides run one operator with different arguments."""
        if isinstance(node, EnteredStretch):
            return False
        match = self._differing[node].match
        return any(not argument.is_rounding for argument in differing_arguments(match.actual, match.reference))

    def _is_replaced(self, node: Node) -> bool:
        """Return True if one side runs another operator in place of that of the reference."""
        if isinstance(node, EnteredStretch):
            return False
        match = self._differing[node].match
        return operation(match.actual.function) != operation(match.reference.function)

    def _is_large(self, node: Node) -> bool:
        """Return True if the difference at an operator, or at a tensor that leaves a stretch, is large."""
        if isinstance(node, EnteredStretch):
            readers = [self._differing[position] for position in node.readers if position in self._differing]
            return any(_distance(differing.inputs) > _LARGE for differing in readers)
        return _distance(self._differing[node].outputs) > _LARGE


def _distance(pairs: Iterable[Pair]) -> float:
    """Return the largest relative distance of pairs that differ, 0.0 without any."""
    return max((pair.measure.rel_l2 for pair in pairs if pair.differs and pair.measure is not None), default=0.0)


def _is_left(before: float, pairs: Iterable[Pair]) -> bool:
    """Return True if a tensor that agrees is further off than rounding alone, and no nearer than what it is made of."""
    for pair in pairs:
        kind = float_kind(pair.record.dtype or "")
        if kind is None or pair.measure is None or pair.verdict != "noise" or not pair.has_one_shape:
            continue
        if before > 0 and pair.measure.rel_l2 > max(before / _TIMES_NEARER, _UNITS * kind.unit):
            return True
    return False


def _ends_in_number(differing: Differing) -> bool:
    """Return True if an operator of the forward pass computes single numbers, which agree, from tensors that differ."""
    sizes = [math.prod(pair.record.shape or ()) for pair in differing.outputs if pair.record.io == "output"]
    is_backward = differing.match.reference.phase == "backward"
    return not is_backward and not differing.differing_outputs and bool(sizes) and max(sizes) == 1


def _coarsest_unit(flow: DataFlow) -> float:
    """Return the unit of rounding of the coarsest type of floating-point results, 0.0 without any."""
    types = {record.dtype or "" for operator in flow.operators for record in operator.outputs}
    return max((kind.unit for kind in map(float_kind, types) if kind is not None), default=0.0)


def _remaining_distance(differing: Differing, unit: float) -> float:
    """Return how far off an output is that agrees within the rounding of a coarse type, and no nearer than an input.

    Then it is no evidence that the difference ends there. The distance is relative to that which rounding alone seldom
    has. Returns 0.0 for other outputs, and for sums, which may be small by themselves, and all of them rounding.

    unit: the unit of rounding of the coarsest type. Tensors of a finer type may follow from its rounding
    """
    before, output = _distance(differing.inputs), next(iter(differing.outputs), None)
    if differing.differing_outputs or differing.match.reference.function in _SUMMING:
        return 0.0
    if output is None or output.verdict != "noise" or output.measure is None or not output.has_one_shape:
        return 0.0
    distance = output.measure.rel_l2
    if unit < _COARSE or before <= unit or distance <= before / _TIMES_NEARER:
        return 0.0
    return distance / (_UNITS * unit) if before > _LARGE else min(1.0, distance / (_UNITS * unit))
