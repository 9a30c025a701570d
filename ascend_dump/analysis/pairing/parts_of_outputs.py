"""Pair operators by the parts of an output that both programs read, such as the gates of a recurrent cell.

Several operators of one type may read parts of equal size. The other framework runs them in another order, so only the
values tell which of them read the same part.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence

from ascend_dump.analysis.pairing.paired_operators import PairedOperator, PairedOperators, paired_in_actual, partners
from ascend_dump.analysis.pairing.program_graph import Output, ProgramGraph, Read, output_of, part_of_memory

__all__ = ["numbered_sources", "pair_by_parts", "part_numbers", "source_of"]

_Numbers = dict[tuple[int, Hashable], int]


def part_numbers(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> tuple[_Numbers, _Numbers]:
    """Return the numbers of parts of both sides, by position of the operator that made them, and identity of the part.

    Only outputs with the same values on both sides have numbered parts.
    """
    numbers: tuple[_Numbers, _Numbers] = ({}, {})
    parts_a, parts_b = _parts(a, paired_in_actual(pairs)), _parts(b, pairs)
    for position_b, pair in pairs.items():
        free = list(parts_a.get(pair.position, ())) if pair.how == "value" else []
        for number, (identity, part) in enumerate(parts_b.get(position_b, ()) if free else ()):
            same = next((other for other in free if other[1].is_same(part)), None)
            if same is not None:
                free = [other for other in free if other is not same]
                numbers[0][pair.position, same[0]] = numbers[1][position_b, identity] = number
    return numbers


def _parts(side: ProgramGraph, paired: Collection[int]) -> dict[int, Sequence[tuple[Hashable, Output]]]:
    """Return the parts of each output that unpaired operators read."""
    parts: dict[int, dict[Hashable, Output]] = {}
    for position in side.computing:
        for read in side.reads(position) if position not in paired else ():
            size = math.prod(read.record.shape or ())
            if read.maker is not None and 1 < size < side.tensors[read.maker][0].size:
                of_maker, memory = parts.setdefault(read.maker, {}), part_of_memory(read.record)
                part = None if memory in of_maker else output_of(read.maker, read.record)
                if part is not None:
                    of_maker[memory] = part
    return {maker: [*of_maker.items()] for maker, of_maker in parts.items()}


def pair_by_parts(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair operators of an operation that alone read a part of an output, such as a gate, whatever else they read."""
    keys_a = _readers_of_parts(a, partners(pairs))
    keys_b = _readers_of_parts(b, {position: position for position in pairs})
    taken = paired_in_actual(pairs)
    for key in keys_a.keys() & keys_b.keys():
        if len(keys_a[key]) == len(keys_b[key]) == 1:
            [position_a], [position_b] = keys_a[key], keys_b[key]
            if position_b not in pairs and position_a not in taken:
                pairs[position_b] = PairedOperator(position_a, "inputs", 0.85)
                taken.add(position_a)


def _readers_of_parts(side: ProgramGraph, partner: Mapping[int, int]) -> dict[Hashable, list[int]]:
    """Return the unpaired operators that read a numbered part, by operation, part, and the size of the output."""
    by_key: dict[Hashable, list[int]] = {}
    for position in side.computing:
        if position not in partner:
            for source in numbered_sources(side, position, partner):
                by_key.setdefault((side.does(position), source, side.tensors[position][0].size), []).append(position)
    return by_key


def numbered_sources(side: ProgramGraph, position: int, partner: Mapping[int, int]) -> frozenset[Hashable]:
    """Return the labels of the numbered parts that an operator reads."""
    return frozenset(source_of(side, read, partner) for read in side.reads(position) if side.part_of(read) is not None)


def source_of(side: ProgramGraph, read: Read, partner: Mapping[int, int]) -> Hashable:
    """Return the label of what is read from a paired operator; None for another operator."""
    if read.maker is None or read.maker not in partner:
        return None
    return partner[read.maker], side.part_of(read)
