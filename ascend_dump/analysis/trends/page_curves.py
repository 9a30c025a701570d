"""Select the curves that a report page shows. They are read from recorded statistics: no tensor is read for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from ascend_dump.analysis.trends.curves import Curve, read_curves
from ascend_dump.analysis.trends.parting import Parting, find_partings, pair_curves
from ascend_dump.analysis.trends.quantities import QUANTITIES
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record
from ascend_dump.report.page import PageCurve

__all__ = ["page_curves", "ranked_curves"]

#: Minimum number of steps of a curve on a page.
_FEWEST = 3
#: Quantities whose curves are always shown, in this order. A curve of another quantity is shown only if it has a spike,
#: NaN or Inf.
_SHOWN = ("gradient_norm", "weight_norm", "update_ratio", "activation_max")
_PLACES = ("run", "rank", "model")


def page_curves(actual: Iterable[Record], reference: Optional[Iterable[Record]] = None) -> Iterator[PageCurve]:
    """Yield the curves of a page, sorted by quantity; `ranked_curves` sorts the curves of one quantity.

    Yields nothing if the dump has less than 3 steps.

    actual, reference: the records of a dump, or of one side of a comparison. The records of a step need not be
    neighbours
    """
    curves = [curve for curve in _recorded(actual) if len(curve.steps) >= _FEWEST]
    if not curves:
        return
    against = [] if reference is None else _recorded(reference)
    pairs, _ = pair_curves(curves, against, None)
    partings = {id(parting.curve): parting for parting in find_partings(pairs, has_noise=False)}
    values = {id(pair.curve): dict(zip(pair.steps, pair.reference)) for pair in pairs}
    several = [name for name in _PLACES if len({getattr(curve, name) for curve in curves}) > 1]
    # The noise of the curves is not measured here. So only the curves that part in the first such step are ranked
    # first: later partings may follow from these.
    first = min((parting.step for parting in partings.values()), default=None)
    ranked = ranked_curves(curves, [parting for parting in partings.values() if parting.step == first])
    for quantity in sorted(QUANTITIES, key=lambda name: _SHOWN.index(name) if name in _SHOWN else len(_SHOWN)):
        of_quantity = [curve for curve in ranked if curve.quantity == quantity]
        if quantity not in _SHOWN:
            of_quantity = [curve for curve in of_quantity if curve.spikes or curve.first_nonfinite is not None]
        for curve in of_quantity:
            parting = partings.get(id(curve))
            yield PageCurve(
                *(curve.quantity, curve.name, _place(curve, several), curve.steps, curve.values),
                spikes=[spike.step for spike in curve.spikes],
                parts=None if parting is None else parting.step,
                reference=values.get(id(curve), {}),
            )


def ranked_curves(curves: Sequence[Curve], partings: Sequence[Parting]) -> list[Curve]:
    """Return the sorted curves: curves that part, in the order of `partings`, then curves with spikes, then the others.

    Curves with spikes are sorted by the step of their first spike, the others by `Curve.moved`, largest first.
    """
    spiking = sorted((curve for curve in curves if curve.spikes), key=lambda curve: curve.spikes[0].step)
    front = [parting.curve for parting in partings] + spiking
    ranks = {id(curve): number for number, curve in reversed(list(enumerate(front)))}
    return sorted(curves, key=lambda curve: (ranks.get(id(curve), len(front)), -curve.moved))


def _recorded(records: Iterable[Record]) -> Sequence[Curve]:
    """Return the curves of the records that have recorded statistics, each step once."""
    usable = [record for record in records if record.step is not None and _has_statistics(record)]
    if len({record.step for record in usable}) < _FEWEST:
        return ()
    usable.sort(key=_step_key)
    return read_curves(usable).curves


def _step_key(record: Record) -> tuple[Any, ...]:
    return (record.run or "", -1 if record.rank is None else record.rank, record.model or "", record.step)


def _has_statistics(record: Record) -> bool:
    if record.error is not None:
        return False
    try:
        return record.recorded_statistics() is not None
    except AscendDumpError:
        return False  # the page lists what cannot be read


def _place(curve: Curve, several: Sequence[str]) -> str:
    return " ".join(f"{name} {getattr(curve, name)}" for name in several if getattr(curve, name) is not None)
