"""The pairs of operators of two programs while the passes find them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PairedOperator", "PairedOperators", "paired_in_actual", "partners"]


class PairedOperator(NamedTuple):
    """The position of an operator of actual, and the evidence that an operator of the reference is its partner."""

    position: int
    how: str
    confidence: float


#: The pairs, by the position of the operator of the reference.
PairedOperators = dict[int, PairedOperator]


def paired_in_actual(pairs: PairedOperators) -> set[int]:
    return {pair.position for pair in pairs.values()}


def partners(pairs: PairedOperators) -> dict[int, int]:
    """Return the pairs from position in actual to position in the reference."""
    return {pair.position: position for position, pair in pairs.items()}
