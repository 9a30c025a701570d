"""Take a difference for noise if two runs of the reference differ about as much from each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Differences
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.errors import ConfigError
from ascend_dump.reading import Dump, Record

__all__ = ["TIMES", "Spread", "refuse_same_dump"]

#: A difference may be this many times as large as the difference of the two runs, which shows the usual size only
#: roughly.
TIMES = 4.0


class Spread:
    """The second run of one step of the reference. Its tensors are read only when a difference has to be judged."""

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
        """Return why a difference is noise; None if two runs of the reference differ less, or by an unknown amount."""
        partner = self._partners.get(id(reference))
        if partner is None:
            return None
        spread = self._differences.between(partner, reference).measure
        if spread is None:
            return None
        within = (
            measured.nonfinite <= spread.nonfinite
            and measured.rmse <= TIMES * spread.rmse
            and measured.max_abs <= 2 * TIMES * spread.max_abs
            and measured.unequal <= TIMES * spread.unequal
        )
        if not within:
            return None
        return (
            f"two runs of the reference differ as much (relative error {measured.rel_l2:.2g} and {spread.rel_l2:.2g})"
        )


def refuse_same_dump(actual: Dump, reference: Dump, second_run: Dump) -> None:
    """Raise ConfigError if the second run is the dump of actual or of the reference itself.

    If the second run were the dump of actual, every difference would be noise. If it were the dump of the reference,
    no difference would be noise.
    """
    for name, dump in (("actual", actual), ("the reference", reference)):
        if _share_steps(dump, second_run):
            raise ConfigError(
                f"noise= is {second_run.root}, the same dump as {name}, expected one of another run of the reference",
                hint="run the program of the reference a second time: differences between its two runs are noise",
            )


def _share_steps(first: Dump, second: Dump) -> bool:
    """Return True if two selections are of the same dump, and both include a step of the same rank."""
    if os.path.realpath(first.root) != os.path.realpath(second.root):
        return False
    steps, second_steps = ({(record.run, record.rank, record.step) for record in dump} for dump in (first, second))
    return not steps.isdisjoint(second_steps)
