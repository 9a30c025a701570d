"""Pair the results of stretches of unpaired operators that read the same tensors, between two frameworks.

One side may run a single operator where the other side runs several, and after a fault their values differ. If both
read the same paired tensors and the same parameters, the last operators of both stretches make the same tensor. An
operator before a pair with equal values is left out, because the programs may compute these values in other ways.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Callable, Optional

from ascend_dump.analysis.pairing.paired_operators import PairedOperator, PairedOperators, paired_in_actual, partners
from ascend_dump.analysis.pairing.program_graph import ProgramGraph, Read, output_of

__all__ = ["agreeing_pairs", "pair_by_indices", "pair_by_sources"]

#: A stretch that reads more tensors than this is no unit of a program.
_MOST_SOURCES = 16
#: Maximum number of rounds in which pairs by sources are made.
_MOST_ROUNDS = 256
#: The sources of an operator: labels of paired tensors, and labels of parameters.
_Sources = tuple[frozenset[Hashable], frozenset[Hashable]]
_Pass = Callable[[ProgramGraph, ProgramGraph, PairedOperators], None]


def pair_by_indices(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair operators of one operation that alone read the same integers: lookups in a table whose values differ."""
    taken = paired_in_actual(pairs)
    sides = []
    for side, paired in ((a, taken), (b, set(pairs))):
        positions: dict[Hashable, list[int]] = {}
        for position in side.computing:
            integers = None if position in paired else side.integers(position)
            if integers is not None:
                key = (side.does(position), integers, side.tensors[position][0].size)
                positions.setdefault(key, []).append(position)
        sides.append(positions)
    for shared in sides[0].keys() & sides[1].keys():
        if len(sides[0][shared]) == len(sides[1][shared]) == 1:
            pairs[sides[1][shared][0]] = PairedOperator(sides[0][shared][0], "inputs", 0.85)


def pair_by_sources(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators, by_inputs: _Pass) -> None:
    """Pair the last operators of stretches that read the same tensors; first those that read the same parameters.

    by_inputs: the pass that runs after each round, because new pairs are evidence for the operators that read them
    """
    agreeing = agreeing_pairs(a, b, pairs)
    if not (_has_free(a, partners(pairs), agreeing) and _has_free(b, pairs, agreeing.values())):
        return
    parameters = _Parameters(a, b)
    labels: tuple[Optional[_Parameters], ...] = (parameters, None)
    for _ in range(_MOST_ROUNDS):
        settled = set(agreeing), set(agreeing.values())
        paired = partners(pairs), {position: position for position in pairs}
        ends: list[tuple[int, int]] = []
        for label in labels:
            ends = ends or _ends_of_stretches((a, b), paired, settled, label)
        if not ends:
            break
        for position_a, position_b in ends:
            pairs[position_b] = PairedOperator(position_a, "inputs", 0.8)
        by_inputs(a, b, pairs)


def agreeing_pairs(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> dict[int, int]:
    """Return the pairs whose first outputs have the same values, from position in actual to position in the reference.

    Operators before them are no evidence, because one program may compute the same values in another way.
    """
    return {
        pair.position: position
        for position, pair in pairs.items()
        if pair.how == "value" or a.tensors[pair.position][0].is_same(b.tensors[position][0])
    }


def _has_free(graph: ProgramGraph, paired: Collection[int], agreeing: Collection[int]) -> bool:
    """Return True if there are unpaired operators that do not lead to pairs with equal values."""
    inner = graph.leading_to(agreeing, paired)
    return any(x not in paired and x not in inner and not graph.is_of_optimizer(x) for x in graph.computing)


class _Parameters:
    """Labels of tensors that no operator made, which are the same for equal tensors of both sides.

    Tensors without an equal one on the other side are labelled by their size.
    """

    def __init__(self, a: ProgramGraph, b: ProgramGraph) -> None:
        self._contents = _contents(a), _contents(b)
        self._shared = set(self._contents[0].values()) & set(self._contents[1].values())

    def label(self, side: int, read: Read) -> Optional[Hashable]:
        """Return the label of a read; None for a single number, and for a tensor of unknown values."""
        contents = self._contents[side].get(read.root)
        if contents is None or contents[0] < 2:
            return None
        return contents if contents in self._shared else contents[0]


def _contents(side: ProgramGraph) -> dict[Hashable, tuple[int, float, float, str]]:
    contents: dict[Hashable, tuple[int, float, float, str]] = {}
    for position in side.computing:
        for read in side.reads(position):
            if read.maker is None and read.root not in contents:
                tensor = output_of(position, read.record)
                if tensor is not None:
                    contents[read.root] = (tensor.size, tensor.low, tensor.high, f"{tensor.norm:.9g}")
    return contents


def _ends_of_stretches(
    sides: tuple[ProgramGraph, ProgramGraph],
    partners: tuple[Mapping[int, int], Mapping[int, int]],
    agreeing: tuple[Collection[int], Collection[int]],
    parameters: Optional[_Parameters],
) -> list[tuple[int, int]]:
    """Return positions in actual and in the reference of operators that end stretches with the same sources.

    partners    for each side: the paired operators, each with a label that both sides share
    agreeing    for each side: the paired operators whose outputs agree
    parameters  None to compare only the paired tensors that the stretches read
    """
    ends_a, ends_b = (_ends(sides[side], side, partners[side], agreeing[side], parameters) for side in (0, 1))
    readers_a, readers_b = (_paired_readers(graph, partner) for graph, partner in zip(sides, partners))
    pairs: list[tuple[int, int]] = []
    for key in ends_a.keys() & ends_b.keys():
        stretch_a, stretch_b = ends_a[key], ends_b[key]
        if _have_one_reader(readers_a.get(stretch_a[-1]), readers_b.get(stretch_b[-1])):
            waists = [_waists(*each) for each in zip(sides, (stretch_a, stretch_b), partners)]
            pairs += zip(*waists) if len(waists[0]) == len(waists[1]) else [(stretch_a[-1], stretch_b[-1])]
    return sorted(pairs)


def _waists(graph: ProgramGraph, stretch: Sequence[int], partner: Mapping[int, int]) -> list[int]:
    """Return the operators of a stretch whose output is all that the later operators of the stretch read."""
    waists = [stretch[-1]]
    for position in reversed(stretch[:-1]):
        reads = graph.reads_outside(stretch[-1], {*partner, position})
        large = [read for read in reads if read.maker is not None or math.prod(read.record.shape or ()) > 1]
        if all(read.maker == position for read in large):
            waists.append(position)
    return waists[::-1]


def _paired_readers(graph: ProgramGraph, partner: Mapping[int, int]) -> dict[int, set[int]]:
    """Return the labels of the paired operators of the same pass that read an output, by position of its operator."""
    readers: dict[int, set[int]] = {}
    for position, label in partner.items():
        for fused in (position, *graph.before(position)):
            for read in graph.reads(fused):
                if read.maker is not None and graph.is_backward(read.maker) == graph.is_backward(position):
                    readers.setdefault(read.maker, set()).add(label)
    return readers


def _have_one_reader(a: Optional[set[int]], b: Optional[set[int]]) -> bool:
    """Return True if a paired operator reads the outputs of both sides, or none reads one of them."""
    return bool(a & b) if a and b else not a and not b


def _ends(
    graph: ProgramGraph,
    side: int,
    partner: Mapping[int, int],
    agreeing: Collection[int],
    parameters: Optional[_Parameters],
) -> dict[Hashable, list[int]]:
    """Return the stretches, each as the operators whose outputs have the size of its result, in order of the run."""
    stretches: dict[Hashable, list[int]] = {}
    sources: dict[int, Optional[_Sources]] = {}
    inner = graph.leading_to(agreeing, partner)
    for position in graph.computing:
        if position not in partner and not graph.is_of_optimizer(position):
            read = sources[position] = _sources(graph, side, position, partner, parameters, sources)
            if (
                read is not None
                and _is_evidence(read)
                and position not in inner
                and not graph.is_inside_linear(position)
            ):
                key = (*read, graph.tensors[position][0].size, graph.is_backward(position))
                stretches.setdefault(key, []).append(position)
    return {
        key: positions
        for key, positions in stretches.items()
        if graph.leading_to(positions[-1:], partner).issuperset(positions[:-1])
    }


def _is_evidence(sources: _Sources) -> bool:
    """Return True if an operator reads a paired tensor, or a parameter that the other side has too."""
    tensors, labels = sources
    return bool(tensors) or any(isinstance(label, tuple) for label in labels)


def _sources(
    graph: ProgramGraph,
    side: int,
    position: int,
    partner: Mapping[int, int],
    parameters: Optional[_Parameters],
    earlier: Mapping[int, Optional[_Sources]],
) -> Optional[_Sources]:
    """Return what an operator reads together with the unpaired operators before it; None if that is too much.

    earlier: the sources of the operators before it
    """
    tensors: set[Hashable] = set()
    labels: set[Hashable] = set()
    for read in graph.reads(position):
        if read.maker is None:
            label = None if parameters is None else parameters.label(side, read)
            labels.update(() if label is None else (label,))
        elif read.maker in partner:
            tensors.add(partner[read.maker])
        else:
            before = earlier.get(read.maker)
            if before is None:
                return None
            tensors |= before[0]
            labels |= before[1]
    return None if len(tensors) + len(labels) > _MOST_SOURCES else (frozenset(tensors), frozenset(labels))
