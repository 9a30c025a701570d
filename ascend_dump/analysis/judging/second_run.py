"""The distance of a second run of the reference from the first one: no difference is more than noise within that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Differences
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.reading import Record

__all__ = ["Spread"]

#: Two runs are weak evidence of the distance of a third.
_TIMES = 4.0


class Spread:
    """The second run of one step; its tensors are read only if there is something to judge."""

    def __init__(self, second_run: Sequence[Operator], reference: Sequence[Operator]) -> None:
        self._partners: dict[Any, Record] = {}
        self._differences = Differences()
        for match in align(second_run, reference):
            records = {(member.io, member.index): member for member in (*match.actual.inputs, *match.actual.outputs)}
            for record in (*match.reference.inputs, *match.reference.outputs):
                partner = records.get((record.io, record.index))
                if partner is not None:
                    self._partners[id(record)] = partner

    def covers(self, measured: Measure, reference: Record) -> Optional[str]:
        """Return why a difference is noise; None if two runs of the reference differ less."""
        partner = self._partners.get(id(reference))
        if partner is None:
            return None
        spread = self._differences.between(partner, reference).measure
        if spread is None:
            return None
        within = (
            measured.nonfinite <= spread.nonfinite
            and measured.rmse <= _TIMES * spread.rmse
            and measured.max_abs <= 2 * _TIMES * spread.max_abs
            and measured.unequal <= _TIMES * spread.unequal
        )
        if not within:
            return None
        return (
            f"two runs of the reference differ as much (relative error {measured.rel_l2:.2g} and {spread.rel_l2:.2g})"
        )
