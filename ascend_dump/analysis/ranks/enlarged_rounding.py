"""Find parameters that differ by rounding which an optimizer enlarged on another rank.

Adam turns a gradient that is rounding alone into steps of full length. If ranks update shards, the rank that gathers
them knows only its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Origin, Pair

__all__ = ["without_enlarged_rounding"]

_Shape = Optional[tuple[int, ...]]
#: A parameter may differ by so many times the largest difference that was noise in its updates.
_MOST = 2.0


def without_enlarged_rounding(origins: Sequence[Origin], pairs: Iterable[Pair]) -> Sequence[Origin]:
    """Return the origins without parameters whose difference is noise in the updates of all ranks before.

    pairs: of all ranks
    """
    shapes = {_shape(origin.pair) for origin in origins if origin.kind == "parameter"}
    if not shapes:
        return origins
    largest: dict[_Shape, dict[int, float]] = {}
    for pair in pairs:
        record = pair.record
        # An update that is wrong is an origin by itself.
        is_update = record.io == "output" and record.phase == "other" and not record.module
        if is_update and pair.verdict == "noise" and pair.measure is not None and _shape(pair) in shapes:
            steps = largest.setdefault(_shape(pair), {})
            steps[record.step or 0] = max(steps.get(record.step or 0, 0.0), pair.measure.max_abs)
    return [origin for origin in origins if not _is_enlarged(origin, largest)]


def _is_enlarged(origin: Origin, largest: dict[_Shape, dict[int, float]]) -> bool:
    measure = origin.pair.measure
    if origin.kind != "parameter" or measure is None:
        return False
    before = [size for step, size in largest.get(_shape(origin.pair), {}).items() if step < (origin.step or 0)]
    return bool(before) and not measure.nonfinite and measure.max_abs <= _MOST * sum(before)


def _shape(pair: Pair) -> _Shape:
    """Return the shape of the whole parameter; shards of FSDP have no names."""
    shapes = [record.shape for record in (pair.actual, pair.reference) if record is not None and record.shape]
    return max(shapes, key=math.prod, default=None)
