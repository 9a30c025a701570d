"""Track tensors with other orders of axes between two frameworks, such as NHWC and NCHW, or swapped query and key.

Another order is no difference as long as the operators that read the tensor agree. If an operator that reads two
tensors of one shape does not agree, their order of axes is the cause.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.names import operation
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["MovedAxes"]


class MovedAxes:
    """The outputs of the reference with another order of axes, each with the pair where this order begins."""

    def __init__(self) -> None:
        self._first: dict[Hashable, Pair] = {}
        #: Orders of axes in which the other framework has all images or sequences, as other shapes prove.
        self._layouts: set[str] = set()

    def add(self, match: Match, inputs: Sequence[Pair], outputs: Sequence[Pair]) -> None:
        """Note the outputs of two paired operators.

        A product has the order of its operands, so the order begins there, even if an operand is transposed.
        """
        if match.tensors is None:
            return
        is_product = operation(match.reference.op_type) == "matmul"
        if not is_product:  # one side may transpose an operand, where the other side calls another product
            self._layouts.update(pair.transformation for pair in (*inputs, *outputs) if _is_layout(pair))
        earlier = None if is_product else next(filter(None, map(self.first, inputs)), None)
        for pair in outputs:
            if pair.verdict in ("equal", "noise") and _is_moved(pair) and pair.reference is not None:
                identity = identity_of(pair.reference)
                if identity is not None:
                    self._first[identity] = earlier or pair

    def first(self, pair: Pair) -> Optional[Pair]:
        """Return the pair where the order of axes of an input begins; None if that is not known."""
        if pair.reference is None or not _is_moved(pair):
            return None
        return self._first.get(identity_of(pair.reference))

    def cause(self, match: Match, inputs: Sequence[Pair]) -> Optional[Pair]:
        """Return the pair where an order of axes begins that explains why two operators do not agree.

        The shapes of the input have to be equal, or another order would be only another layout. If all sizes of an
        image are equal, the other tensors of the program show that it is one.
        """
        if match.tensors is None:
            return None
        firsts = (
            self.first(pair) for pair in inputs if pair.has_one_shape and pair.transformation not in self._layouts
        )
        return next((first for first in firsts if first is not None), None)


def _is_layout(pair: Pair) -> bool:
    """Return True if two tensors of more than two axes have these in another order, so that their shapes differ.

    Matrices prove nothing: frameworks have their weights in two orders.
    """
    return _is_moved(pair) and not pair.has_one_shape and len(pair.record.shape or ()) > 2


def _is_moved(pair: Pair) -> bool:
    return "permute" in pair.transformation
