"""Curves: a number of a module or of a parameter over the recorded steps of a run."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.judging.spikes import find_spikes
from ascend_dump.analysis.trends.quantities import CurvePoint, StepPoints, least_change
from ascend_dump.common.patterns import text_matcher
from ascend_dump.reading import Record

__all__ = ["Curve", "CurveSelection", "CurveSpike", "read_curves"]

#: In `Curve.moved`, a smallest magnitude below this part of the largest magnitude is replaced by this part.
_LEAST_PART = 1e-3


class CurveSpike(NamedTuple):
    """A value far above the values before it, by the rule that `triage --run` uses for losses.

    median  the median of the values before the spike
    stays   True if the values after the spike stay high
    """

    step: int
    value: float
    median: float
    stays: bool

    @property
    def times(self) -> float:
        """Return the value as a multiple of the median; Inf if the median is 0."""
        return self.value / self.median if self.median > 0 else math.inf


@dataclass(frozen=True)
class Curve:
    """One number of a module, an operator or a parameter over the steps of one run on one rank.

    kind      "module", "parameter", or "operator" in dumps without modules
    name      the path of the module, "" for the outermost one; the name of the parameter or operator
    quantity  a key of `QUANTITIES`
    steps     the steps with a value, in ascending order
    values    one value for each of these steps. NaN and Inf are values of the program, not missing ones
    """

    kind: str
    name: str
    quantity: str
    steps: Sequence[int]
    values: Sequence[float]
    run: Optional[str] = None
    rank: Optional[int] = None
    model: Optional[str] = None

    @property
    def label(self) -> str:
        return f"{self.quantity} of {self.name or 'the model'}"

    @cached_property
    def spikes(self) -> tuple[CurveSpike, ...]:
        """The spikes of the finite values, in order."""
        finite = [(step, value) for step, value in zip(self.steps, self.values) if math.isfinite(value)]
        spikes = find_spikes([value for _, value in finite], least_change(self.quantity))
        return tuple(CurveSpike(finite[spike.position][0], spike.value, spike.median, spike.stays) for spike in spikes)

    @property
    def first_nonfinite(self) -> Optional[int]:
        """The first step whose value is NaN or Inf, or that has NaN or Inf among the elements; None without one."""
        counts = self.quantity == "nonfinite"
        pairs = zip(self.steps, self.values)
        return next((step for step, value in pairs if not math.isfinite(value) or (counts and value)), None)

    @property
    def moved(self) -> float:
        """The largest magnitude divided by the smallest one; 1 if the curve does not change.

        The first third of the steps is left out, because every training changes much at its beginning: biases are 0,
        and learning rates are warmed up.
        """
        later = self.values[len(self.values) // 3 :]
        sizes = [abs(value) + least_change(self.quantity) for value in later if math.isfinite(value)]
        largest = max(sizes, default=0.0)
        return largest / max(min(sizes), _LEAST_PART * largest) if largest else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain values, for JSON."""
        return {
            **{name: getattr(self, name) for name in ("kind", "name", "quantity", "run", "rank", "model")},
            "steps": list(self.steps),
            "values": list(self.values),
            "moved": self.moved,
            "spikes": [spike._asdict() for spike in self.spikes],
        }


@dataclass(frozen=True)
class CurveSelection:
    """The curves to read.

    module     glob or `re:` pattern of modules: selects their curves, and the curves of their parameters
    parameter  pattern of parameters; with both patterns, a curve is selected if one of them matches
    """

    module: Optional[str] = None
    parameter: Optional[str] = None

    @cached_property
    def _matchers(self) -> tuple[Optional[Callable[[str], bool]], Optional[Callable[[str], bool]]]:
        module, parameter = (None if text is None else text_matcher(text) for text in (self.module, self.parameter))
        return module, parameter

    def takes(self, kind: str, name: str) -> bool:
        """Return True for a selected module, operator or parameter. Raises ConfigError for a wrong pattern."""
        module, parameter = self._matchers
        if module is None and parameter is None:
            return True
        if kind == "parameter":
            of_module = module is not None and module(name.rpartition(".")[0])
            return of_module or (parameter is not None and parameter(name))
        return module is not None and module(name)


class _Builder(NamedTuple):
    steps: array[int]
    values: array[float]


_Key = tuple[Optional[str], Optional[int], Optional[str]]


@dataclass
class _Curves:
    """The curves read so far, in the order of their first points."""

    selection: CurveSelection
    builders: dict[tuple[_Key, CurvePoint], _Builder] = field(default_factory=dict)
    has_parameters: bool = False
    #: The time of the first record of each step, in microseconds since the epoch.
    times: dict[tuple[_Key, int], int] = field(default_factory=dict)

    def add(self, key_and_step: tuple[_Key, int], points: Mapping[CurvePoint, float]) -> None:
        key, step = key_and_step
        self.has_parameters = self.has_parameters or any(point.kind == "parameter" for point in points)
        for point, value in points.items():
            if self.selection.takes(point.kind, point.name):
                builder = self.builders.get((key, point))
                if builder is None:
                    builder = self.builders[key, point] = _Builder(array("q"), array("d"))
                builder.steps.append(step)
                builder.values.append(value)


class CurvesRead(NamedTuple):
    """The curves of a dump.

    times       the time at which each step began, in seconds since the epoch, by (run, rank, model) and step
    has_parameters  True if the dump has curves of parameters, even if none of them is selected
    unreadable  number of records that cannot be read
    first_error the error message of the first of these records; "" if all can be read
    """

    curves: tuple[Curve, ...]
    times: Mapping[tuple[_Key, int], float]
    has_parameters: bool
    unreadable: int
    first_error: str


def read_curves(
    dump: Iterable[Record],
    selection: Optional[CurveSelection] = None,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = lambda records: records,
) -> CurvesRead:
    """Return the curves of a dump, or of records in the order of a dump.

    watch: receives each record and yields it, for a progress display. Records that belong to no step are left out.
    """
    curves = _Curves(selection or CurveSelection())
    current: Any = None
    points = StepPoints()
    records: Iterable[Record] = watch(dump)
    for record in records:
        if record.step is None:
            continue
        key = (record.run, record.rank, record.model), record.step
        if key != current:
            if current is not None:
                curves.add(current, points.values())
            current, fresh = key, StepPoints()
            fresh.unreadable, fresh.first_error = points.unreadable, points.first_error
            points = fresh
        if record.timestamp is not None:
            curves.times.setdefault(key, record.timestamp)
        points.add(record)
    if current is not None:
        curves.add(current, points.values())
    read = tuple(_curve(key, point, builder) for (key, point), builder in curves.builders.items())
    # A curve of the number of NaN and Inf is left out if it is always 0.
    read = tuple(curve for curve in read if curve.quantity != "nonfinite" or any(curve.values))
    times = {key: time / 1e6 for key, time in curves.times.items()}
    return CurvesRead(read, times, curves.has_parameters, points.unreadable, points.first_error)


def _curve(key: _Key, point: CurvePoint, builder: _Builder) -> Curve:
    # If a step occurs twice, such as on two devices, its last value is kept.
    by_step = dict(sorted(dict(zip(builder.steps, builder.values)).items()))
    return Curve(point.kind, point.name, point.quantity, array("q", by_step), array("d", by_step.values()), *key)
