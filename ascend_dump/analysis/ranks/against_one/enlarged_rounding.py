"""Drop origins at parameters that differ only because an optimizer enlarged rounding on another rank.

If a gradient consists of rounding errors alone, Adam turns it into a full-size update. If each rank updates a shard,
the rank that gathers the shards knows only the rounding of its own updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Origin, Pair

__all__ = ["without_enlarged_rounding"]

_Shape = Optional[tuple[int, ...]]
#: Factor on the sum of the noise in earlier updates, up to which the difference of a parameter is explained by them.
_MOST = 2.0


def without_enlarged_rounding(origins: Sequence[Origin], pairs: Iterable[Pair]) -> Sequence[Origin]:
    """Return the origins without those at parameters whose difference is explained by noise in earlier updates.

    pairs: the pairs of all ranks
    """
    shapes = {_shape(origin.pair) for origin in origins if origin.kind == "parameter"}
    if not shapes:
        return origins
    largest: dict[_Shape, dict[int, float]] = {}
    for pair in pairs:
        record = pair.record
        # Only noise counts here: an update that is wrong is an origin of its own.
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
    """Return the shape of the whole parameter, by which it is identified: shards of FSDP have no names."""
    shapes = [record.shape for record in (pair.actual, pair.reference) if record is not None and record.shape]
    return max(shapes, key=math.prod, default=None)
