"""Find what the inputs of two paired operators without a partner prove about the programs in two frameworks.

One side may run an operator that the other side lacks, such as a residual or a bias. Or the two operators read outputs
of operators that are no pair.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Optional

from ascend_dump.analysis.operators.names import operation
from ascend_dump.analysis.pairing.matches import OneSided, OtherSource
from ascend_dump.analysis.pairing.program_graph import ProgramGraph, Read, output_of

__all__ = ["one_sided_read", "other_source"]

#: Operations that bring a parameter into a program, and no constant.
_ADDS = frozenset(("add", "linear"))


def one_sided_read(
    sides: tuple[ProgramGraph, ProgramGraph],
    positions: tuple[int, int],
    unpaired: tuple[Sequence[Read], Sequence[Read]],
    pieces: tuple[Collection[int], Collection[int]],
) -> Optional[OneSided]:
    """Return the operator before a pair of operators that reads a tensor which the other side does not read.

    positions   of the two paired operators
    unpaired    for each side: the tensors that enter the operator, or unpaired operators before it, without a partner
    pieces      for each side: operators that the other side runs as a part of one operator, such as the mean of a norm

    None is returned if both sides read such tensors, or if the paired operator itself reads it.
    """
    candidates = [
        [read for read in reads if read.maker not in parts and _is_evidence(graph, read, reads_across)]
        for graph, reads, reads_across, parts in zip(sides, unpaired, unpaired[::-1], pieces)
    ]
    if bool(candidates[0]) == bool(candidates[1]):
        return None
    side = 0 if candidates[0] else 1
    graph, position = sides[side], positions[side]
    leading = {position, *graph.before(position)}
    for read in candidates[side]:
        reader = graph.reader_of(read.record)
        if reader is not None and reader not in leading and graph.operators[reader].outputs:
            return OneSided(side == 0, graph.operators[reader].outputs[0], read.record)
    return None


def other_source(
    sides: tuple[ProgramGraph, ProgramGraph],
    positions: tuple[int, int],
    unpaired: tuple[Sequence[Read], Sequence[Read]],
    pieces: tuple[Collection[int], Collection[int]],
) -> Optional[OtherSource]:
    """Return the tensors that two paired operators read, if these are outputs of operators that are no pair.

    Arguments: as of `one_sided_read`. None is returned if it is not one tensor on each side, or of another size, or if
    unpaired operators of other operations read it: the programs may compute the input of the paired operators in other
    ways.
    """
    computed = [[read for read in reads if read.maker is not None and _size(read) > 1] for reads in unpaired]
    if not len(computed[0]) == len(computed[1]) == 1:
        return None
    read_a, read_b = computed[0][0], computed[1][0]
    readers = [graph.reader_of(read.record) for graph, read in zip(sides, (read_a, read_b))]
    are_own = [x in (position, *graph.before(position)) for graph, position, x in zip(sides, positions, readers)]
    if not all(are_own) and (any(are_own) or not _do_one(sides, readers)):
        return None
    if _size(read_a) != _size(read_b) or (read_a.maker in pieces[0] and read_b.maker in pieces[1]):
        return None
    names = [
        graph.operators[read.maker].label for graph, read in zip(sides, (read_a, read_b)) if read.maker is not None
    ]
    return OtherSource((read_a.record, read_b.record), (names[0], names[1]))


def _do_one(sides: tuple[ProgramGraph, ProgramGraph], readers: Sequence[Optional[int]]) -> bool:
    """Return True if two operators are of one operation."""
    does = [None if reader is None else graph.does(reader) for graph, reader in zip(sides, readers)]
    return does[0] is not None and does[0] == does[1]


def _is_evidence(graph: ProgramGraph, read: Read, reads_across: Sequence[Read]) -> bool:
    """Return True if the other side has no tensor that may be this one.

    A tensor that no operator made may be a constant, so its reader has to be an addition to a computed tensor.
    """
    size = _size(read)
    if size < 2 or any(_size(read_across) == size for read_across in reads_across):
        return False
    if read.maker is not None:
        return True
    reader = graph.reader_of(read.record)
    if reader is None or operation(graph.operators[reader].op_type) not in _ADDS:
        return False
    tensor = output_of(reader, read.record)
    is_mask = tensor is None or tensor.fills > 0 or not tensor.norm
    return not is_mask and any(operand.maker is not None for operand in graph.reads(reader))


def _size(read: Read) -> int:
    return math.prod(read.record.shape or ())
