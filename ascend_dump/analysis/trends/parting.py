"""Find the step at which two runs part: the first step at which a curve differs from the curve of the reference.

The distance of two values is the magnitude of the logarithm of their ratio, since curves range over powers of ten.
With another run of the reference, a curve parts at the first step at which its distance is larger than `TIMES` times
the noise, and stays larger in most of the following steps. The noise of a curve is the largest distance between the two
runs of the reference, but at least as large as the noise of nine in ten similar curves, and as `ROUNDING`. Similar
curves are needed because the distance of two runs is nearly the same in every step if a norm hardly changes: its steps
together are only one sample of the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.judging.second_run import TIMES
from ascend_dump.analysis.trends.curves import Curve
from ascend_dump.analysis.trends.quantities import execution_order, least_change

__all__ = ["ROUNDING", "CurvePair", "Parting", "find_partings", "pair_curves"]

#: Distance up to which two runs of the same program may differ by the order of sums in single precision.
ROUNDING = 1e-5
#: This part of the median magnitude of the reference is added to both values before they are compared, so that
#: differences of much smaller values hardly count.
_LEAST_PART = 1e-3
#: Number of steps after a difference, of which more than half have to differ too.
_LATER = 3
#: Minimum number of curves of the same name in other layers whose noise is used; with fewer, all curves of the quantity
#: are used. And the quantile of the noise of these curves that is taken.
_FEWEST, _MOST = 8, 0.9


class Parting(NamedTuple):
    """The first step at which a curve differs from the curve of the reference.

    distance  magnitude of the logarithm of the ratio of the two values; Inf if one of them is not finite
    noise     the distance that two runs of the reference may have here; None if no noise was measured
    """

    curve: Curve
    step: int
    actual: float
    reference: float
    distance: float
    noise: Optional[float]

    @property
    def percent(self) -> str:
        """Return the difference as text: `+12 %`, `x40`; `-` if the reference is 0 or a value is not finite."""
        if not self.reference or not math.isfinite(self.actual) or not math.isfinite(self.reference):
            return "-"
        ratio = self.actual / self.reference
        return f"{(ratio - 1) * 100:+.3g} %" if 0.1 < ratio < 10 else f"x{ratio:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the parting as plain values, for JSON."""
        names = ("kind", "name", "quantity", "run", "rank", "model")
        fields: dict[str, Any] = {name: getattr(self.curve, name) for name in names}
        fields.update(step=self.step, actual=self.actual, reference=self.reference)
        return {**fields, "distance": self.distance, "noise": self.noise}


class CurvePair(NamedTuple):
    """The values of a curve on both sides and in a second run of the reference, at the steps that both sides have.

    second_run  None if the second run has no such curve, or if there is no second run. A value is None at a step that
                the second run lacks
    """

    curve: Curve
    steps: Sequence[int]
    actual: Sequence[float]
    reference: Sequence[float]
    second_run: Optional[Sequence[Optional[float]]]

    @property
    def is_equal(self) -> bool:
        return all(value == expected or (value != value and expected != expected) for value, expected in self._values)

    @property
    def _values(self) -> Iterable[tuple[float, float]]:
        return zip(self.actual, self.reference)

    def distances(self) -> list[float]:
        """Return the distance at each step."""
        least = self._least
        return [_distance(value, expected, least) for value, expected in self._values]

    def noise(self) -> Optional[float]:
        """Return the largest finite distance between the runs of the reference; None if there is none."""
        pairs = [] if self.second_run is None else zip(self.second_run, self.reference)
        least = self._least
        distances = (_distance(value, expected, least) for value, expected in pairs if value is not None)
        # A distance is Inf if one of the values is NaN or Inf. It says nothing about the noise of numbers.
        return max((distance for distance in distances if math.isfinite(distance)), default=None)

    @property
    def _least(self) -> float:
        sizes = [abs(value) for value in self.reference if math.isfinite(value)]
        return max(least_change(self.curve.quantity), _LEAST_PART * statistics.median(sizes) if sizes else 0.0)


def pair_curves(
    actual: Sequence[Curve], reference: Sequence[Curve], second_run: Optional[Sequence[Curve]]
) -> tuple[list[CurvePair], int]:
    """Return the pairs of curves with steps in common, and the number of curves of both sides without such a partner.

    Runs are paired in their order. If one side has several ranks or models, these are paired by name.
    """
    sides = [side for side in (actual, reference, second_run) if side is not None]
    several = {name: any(len({getattr(curve, name) for curve in side}) > 1 for side in sides) for name in _PLACES}
    keyed = [_by_key(side, several) for side in sides]
    pairs = []
    for key, curve in keyed[0].items():
        partner = keyed[1].get(key)
        second = keyed[2].get(key) if len(keyed) > 2 else None
        pair = None if partner is None else _pair(curve, partner, second)
        if pair is not None:
            pairs.append(pair)
    return pairs, len(keyed[0]) + len(keyed[1]) - 2 * len(pairs)


_PLACES = ("rank", "model")


def _by_key(curves: Sequence[Curve], several: Mapping[str, bool]) -> dict[Any, Curve]:
    runs: dict[Any, list[Any]] = {}
    for curve in curves:
        of_rank = runs.setdefault(curve.rank, [])
        if curve.run not in of_rank:
            of_rank.append(curve.run)
    keyed = {}
    for curve in curves:
        places = tuple(getattr(curve, name) if is_several else None for name, is_several in several.items())
        number = runs[curve.rank].index(curve.run)
        key = (number, *places, curve.kind, curve.name, curve.quantity)
        keyed[key] = curve
    return keyed


def _pair(actual: Curve, reference: Curve, second_run: Optional[Curve]) -> Optional[CurvePair]:
    of_reference = dict(zip(reference.steps, reference.values))
    shared = [(step, value) for step, value in zip(actual.steps, actual.values) if step in of_reference]
    if not shared:
        return None
    steps, values = zip(*shared)
    again = None if second_run is None else dict(zip(second_run.steps, second_run.values))
    in_second_run = None if again is None else [again.get(step) for step in steps]
    return CurvePair(actual, steps, values, [of_reference[step] for step in steps], in_second_run)


def find_partings(pairs: Sequence[CurvePair], *, has_noise: bool) -> list[Parting]:
    """Return the first parting of each curve, sorted by step; within a step in the order of execution.

    has_noise: False if no noise was measured: then each difference above `ROUNDING` is a parting
    """
    noises = _noises(pairs) if has_noise else [None] * len(pairs)
    partings = []
    for pair, noise in zip(pairs, noises):
        bound = ROUNDING if noise is None else max(TIMES * noise, ROUNDING)
        distances = pair.distances()
        for position, distance in enumerate(distances):
            later = distances[position + 1 : position + 1 + _LATER]
            stays = not later or 2 * sum(other > bound for other in later) > len(later)
            if distance > bound and (stays or not has_noise):
                numbers = (pair.steps[position], pair.actual[position], pair.reference[position])
                partings.append(Parting(pair.curve, *numbers, distance, noise))
                break
    order = {id(pair.curve): number for number, pair in enumerate(pairs)}
    return sorted(
        partings,
        key=lambda parting: (parting.step, *execution_order(parting.curve.quantity, order[id(parting.curve)])),
    )


def _noises(pairs: Sequence[CurvePair]) -> list[float]:
    """Return the noise of each pair."""
    own = [pair.noise() for pair in pairs]
    like: dict[Any, list[float]] = {}
    for pair, noise in zip(pairs, own):
        if noise is not None:
            for key in _likeness(pair.curve):
                like.setdefault(key, []).append(noise)
    noises = []
    for pair, noise in zip(pairs, own):
        exact, broad = (like.get(key, []) for key in _likeness(pair.curve))
        usual = exact if len(exact) >= _FEWEST else broad
        noises.append(max(noise or 0.0, _quantile(usual)))
    return noises


def _likeness(curve: Curve) -> tuple[Any, Any]:
    """Return two keys of a curve: one for curves of the same name in other layers, one for curves of its quantity."""
    leaf = ".".join(curve.name.split(".")[-2:])
    return (curve.kind, curve.quantity, leaf), (curve.kind, curve.quantity)


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(_MOST * len(values)) - 1] if values else 0.0


def _distance(value: float, expected: float, least: float) -> float:
    if not math.isfinite(value) or not math.isfinite(expected):
        return 0.0 if value == expected or (value != value and expected != expected) else math.inf
    if value == expected:
        return 0.0
    least = least or min(abs(value) or math.inf, abs(expected) or math.inf) * _LEAST_PART
    return abs(math.log((abs(value) + least) / (abs(expected) + least)))
