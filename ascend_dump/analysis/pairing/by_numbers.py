"""Pair operators whose results are single numbers, such as losses, between two frameworks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ascend_dump.analysis.pairing.paired_operators import PairedOperator, PairedOperators, paired_in_actual, partners
from ascend_dump.analysis.pairing.program_graph import ProgramGraph

__all__ = ["pair_by_numbers"]

#: Largest relative difference of two numbers that were summed in other orders.
_SAME_NUMBER = 1e-5


def pair_by_numbers(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair operators that made the same number of the outputs of the same paired operators, such as a loss.

    One side may divide a sum where the other side takes a mean. Other numbers may be equal by chance.
    """
    taken = paired_in_actual(pairs)
    numbers = [
        {
            position: _sources(side, position, partner)
            for position in side.computing
            if _is_number(side, position, partner)
        }
        for side, partner in ((a, partners(pairs)), (b, {position: position for position in pairs}))
    ]
    for position_b, sources in numbers[1].items():
        number = b.tensors[position_b][0].total
        for position_a in sorted(numbers[0].keys() - taken):
            is_same = math.isclose(a.tensors[position_a][0].total, number, rel_tol=_SAME_NUMBER)
            is_of_one_pass = a.is_backward(position_a) == b.is_backward(position_b)
            if is_same and is_of_one_pass and not sources.isdisjoint(numbers[0][position_a]):
                taken.add(position_a)
                pairs[position_b] = PairedOperator(position_a, "value", 0.9)
                break


def _sources(side: ProgramGraph, position: int, partner: Mapping[int, int]) -> set[int]:
    """Return the positions, in the reference, of the paired operators whose outputs lead to an operator."""
    return {partner[read.maker] for read in side.reads_outside(position, partner) if read.maker is not None}


def _is_number(side: ProgramGraph, position: int, paired: Mapping[int, int]) -> bool:
    return position not in paired and side.tensors[position][0].size == 1 and side.tensors[position][0].norm > 0
