"""Leave out operators of optimizers and gradients without a partner, if later steps prove that they agree.

Two frameworks update parameters by other operators, and compute gradients that nothing reads, such as those of
constants. So these operators have no partner. The parameters that they update are compared where the next step reads
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.common.units import counted

__all__ = ["Updates"]

#: The fewest steps that prove an optimizer: its momentum has an effect from the second update on.
_FEWEST_STEPS = 3


class Updates:
    """The operators without a partner of optimizers and backward passes, in all steps of a rank."""

    def __init__(self) -> None:
        #: Identities (`id`) of the records.
        self._records: set[int] = set()
        self._steps = 0
        #: For each side: tensors that an optimizer wrote in an earlier step, and that no other operator has read yet.
        self._unread: tuple[set[Hashable], set[Hashable]] = (set(), set())
        self._written: tuple[set[Hashable], set[Hashable]] = (set(), set())

    def add_step(
        self,
        sides: Sequence[Sequence[Operator]],
        updates: Sequence[Collection[int]],
        gradients: Sequence[Collection[int]],
    ) -> None:
        """Add a step. updates, gradients: for each side, the positions of operators without a partner."""
        self._steps += any(updates)
        for side, operators in enumerate(sides):
            reads = Counter(identity_of(record) for operator in operators for record in operator.inputs)
            self._unread[side].update(self._written[side])
            self._written[side].clear()
            for operator in operators:
                if operator.position not in updates[side]:
                    self._unread[side].difference_update(map(identity_of, operator.inputs))
                else:
                    large = [record for record in operator.outputs if math.prod(record.shape or ()) > 1]
                    self._written[side].update(x for x in map(identity_of, large) if x is not None and not reads[x])
                if operator.position in updates[side] or operator.position in gradients[side]:
                    self._records.update(map(id, operator.records))

    def without_proven(self, parts: Sequence[Sequence[Pair]]) -> tuple[list[Sequence[Pair]], Optional[str]]:
        """Return the pairs of each step without these operators, and a sentence on them; None if nothing is proven.

        An optimizer is proven if all other tensors of three steps agree, and later operators read all that it wrote.
        A moving average that nothing reads is not proven.
        """
        if self._steps < _FEWEST_STEPS or any(self._unread):
            return list(parts), None
        if not {pair.verdict for pairs in parts for pair in pairs} <= {"equal", "noise", "unmatched"}:
            return list(parts), None
        remaining: list[Sequence[Pair]] = [
            [pair for pair in pairs if id(pair.record) not in self._records] for pairs in parts
        ]
        names: tuple[set[str], set[str]] = (set(), set())
        for pair in (pair for pairs in parts for pair in pairs if id(pair.record) in self._records):
            names[0 if pair.reference is None else 1].add(pair.record.op_name)
        counts = f"{counted(len(names[0]), 'operator')} of actual and {len(names[1])} of the reference"
        return remaining, (
            f"updates and gradients that nothing reads: {counts} have no partner. The parameters agree in the steps "
            "after each update; the updates of the last step are not compared: record a further step to compare them"
        )
