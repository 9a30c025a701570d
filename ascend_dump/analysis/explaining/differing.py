"""The graph of the differences of one step: paired operators that differ, and parts that are built differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional, Union

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import EnteredStretch
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["Differing", "Node", "leading_nodes"]

#: A node of the graph of differences: a pair of operators, as its position in the reference, or a stretch, which is
#: a part of the programs that is built differently.
Node = Union[int, EnteredStretch]


class Differing(NamedTuple):
    """Two paired operators with an input or output that differs. causes: the origins of these differences."""

    match: Match
    inputs: Sequence[Pair]
    outputs: Sequence[Pair]
    causes: frozenset[OriginNumber]

    @property
    def differing_outputs(self) -> list[Pair]:
        """The outputs that differ, or that could not be compared."""
        agreeing = ("equal", "noise", "undecided")
        return [pair for pair in self.outputs if pair.verdict not in agreeing]


def leading_nodes(edges: Iterable[tuple[Node, Optional[Node]]]) -> set[Node]:
    """Return the nodes that lead to a result. edges: a node and a node that follows it, or None for a result."""
    sources: dict[Node, list[Node]] = {}
    leading: set[Node] = set()
    for node, follower in edges:
        if follower is None:
            leading.add(node)
        else:
            sources.setdefault(follower, []).append(node)
    waiting = list(leading)
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in leading:
                leading.add(source)
                waiting.append(source)
    return leading
