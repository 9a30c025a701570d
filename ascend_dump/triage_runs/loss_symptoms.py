"""Find a loss that spikes, is zero or does not fall, by the series of numbers that an outline has of each step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Optional

from ascend_dump.analysis.judging.spikes import FEWEST, find_spikes
from ascend_dump.dump_format import Outline

__all__ = [
    "SYMPTOMS",
    "THRESHOLDS",
    "LossSymptom",
    "SettingsChange",
    "Symptom",
    "changes_before",
    "is_divergence",
    "is_learning_rate_zero",
    "is_without_gradients",
    "loss_symptom",
]

Symptom = Literal["spike", "zero", "stuck"]
SYMPTOMS: tuple[Symptom, ...] = ("spike", "zero", "stuck")

#: Bounds of the rules, besides those of `find_spikes`.
#:
#: zeros         losses in a row that are exactly 0
#: fall          of the median loss, from the first third to the last one, below which a loss does not fall
#: still         steps in a row in which nothing moves
#: growth        of a tensor on the way to the loss, against the step before, that makes it the reason of a spike
#: factor        by which a setting of an optimizer changes before a spike
#: nearby        steps before a spike in which a setting changes
THRESHOLDS: Mapping[str, float] = {
    "zeros": 3,
    "fall": 0.02,
    "still": 3,
    "growth": 10,
    "factor": 5,
    "nearby": 2,
}


class LossSymptom(NamedTuple):
    """A symptom in the series of a run.

    step   where it begins; what: the symptom in words
    loss   of that step
    """

    kind: Symptom
    step: int
    what: str
    loss: Optional[float] = None


class SettingsChange(NamedTuple):
    """A number among the settings of an optimizer that changes. source: the line of the optimizer step."""

    name: str
    step: int
    before: float
    after: float
    source: str

    @property
    def words(self) -> str:
        factor = f", x{self.after / self.before:.4g}" if self.before else ""
        return f"{self.name} of the optimizer is {self.after:g} in step {self.step}, {self.before:g} before{factor}"


def loss_symptom(outline: Outline, asked: Optional[Symptom] = None) -> Optional[LossSymptom]:
    """Return the symptom in the losses of a process; asked: look for this one only."""
    found = _zero(outline, is_asked=asked == "zero") if asked in (None, "zero") else None
    if found is None and asked in (None, "stuck"):
        found = _stuck(outline) or (_still(outline) or _level(outline) if asked is not None else None)
    return found or (_spike(outline, is_asked=asked == "spike") if asked in (None, "spike") else None)


def changes_before(outline: Outline, step: int) -> Iterator[SettingsChange]:
    """Yield the settings that change to a value of a new size shortly before a step."""
    before: dict[str, float] = {}
    largest: dict[str, float] = {}
    for changed_at, settings, source in outline.settings:
        for name, value in settings.items():
            old = before.get(name)
            is_near = step - THRESHOLDS["nearby"] <= changed_at <= step
            # Schedules that begin again return to a value that the program had before.
            is_new = abs(value) > THRESHOLDS["factor"] * largest.get(name, math.inf)
            if old is not None and is_near and is_new:
                yield SettingsChange(name, changed_at, old, value, source)
            largest[name] = max(largest.get(name, 0.0), abs(value))
        before = settings


def is_divergence(outline: Outline, spike: LossSymptom) -> bool:
    """Return True if no loss after a spike is smaller than the one of the spike."""
    for series in _series(outline):
        later = [value for step, value in series if step >= spike.step]
        if later and later[0] == spike.loss and min(later) == spike.loss:
            return True
    return False


def _series(outline: Outline) -> Iterator[list[tuple[int, float]]]:
    """Yield the series of each loss of a step: a step may have several, always in the same order."""
    most = max((len(losses) for losses in outline.losses.values()), default=0)
    for position in range(most):
        yield [
            (step, value)
            for step, losses in sorted(outline.losses.items())
            if position < len(losses) and (value := losses[position]) is not None
        ]


def _spike(outline: Outline, *, is_asked: bool) -> Optional[LossSymptom]:
    spikes = [spike for series in _series(outline) if (spike := _spike_in(series, is_asked)) is not None]
    return min(spikes, key=lambda spike: spike.step, default=None)


def _spike_in(series: Sequence[tuple[int, float]], is_asked: bool) -> Optional[LossSymptom]:
    """Return the first spike. is_asked: count those that the loss returns from, as a noisy one does."""
    for spike in find_spikes([value for _, value in series]):
        if is_asked or spike.stays:
            step = series[spike.position][0]
            what = f"the loss rises to {spike.value:.4g} in step {step}, from a median of {spike.median:.4g} before"
            return LossSymptom("spike", step, what, spike.value)
    return None


def _zero(outline: Outline, *, is_asked: bool) -> Optional[LossSymptom]:
    """Return the first of several losses in a row that are exactly 0, up to the last one.

    is_asked: count losses that have been others before; a loss with a margin, such as hinge loss, may end with 0
    """
    for series in _series(outline):
        begin = len(series)
        while begin and series[begin - 1][1] == 0:
            begin -= 1
        if len(series) - begin >= THRESHOLDS["zeros"] and (is_asked or not begin):
            step = series[begin][0]
            return LossSymptom("zero", step, f"the loss is exactly 0 from step {step} on")
    return None


def _stuck(outline: Outline) -> Optional[LossSymptom]:
    """Return the loss of parameters that do not move: they are the same after the optimizer, or have no gradient."""
    # In the first step gradients are looked at before they are clipped: no optimizer is known.
    norms = sorted(outline.norms.items())[1:]
    # A sample that does not change proves nothing by itself: rows of an embedding change when they are used.
    if not any(norm for _, norm in norms) or is_learning_rate_zero(outline) or is_without_gradients(outline):
        still = _still(outline)
        if still is not None:
            return still._replace(what=f"no parameter changes in {len(outline.changes)} optimizer steps")
    if outline.losses and len(norms) >= THRESHOLDS["still"] and all(norm == 0 for _, norm in norms):
        return LossSymptom("stuck", norms[0][0], f"all gradients are 0 in {len(norms)} steps")
    for series in _series(outline):
        if len(series) >= FEWEST and all(value == series[0][1] for _, value in series):
            return LossSymptom("stuck", series[0][0], f"the loss is {series[0][1]:g} in all {len(series)} steps")
    return None


def is_learning_rate_zero(outline: Outline) -> bool:
    """Return True if the only optimizer has a learning rate of 0 in all steps."""
    rates = [settings.get("lr") for _, settings, _ in outline.settings]
    return outline.optimizers == 1 and bool(rates) and not any(rate != 0 for rate in rates)


def is_without_gradients(outline: Outline) -> bool:
    """Return True if no parameter of an optimizer has a gradient in the first steps."""
    mine, without = (outline.parameters.get(kind, ("0",))[0] for kind in ("of all optimizers", "without gradient"))
    return mine != "0" and mine == without


def _still(outline: Outline) -> Optional[LossSymptom]:
    """Return the loss of parameters of which no sampled element changes."""
    changes = sorted(outline.changes.items())
    if outline.optimizers != 1 or not outline.losses or len(changes) < THRESHOLDS["still"]:
        return None
    if any(change for _, change in changes):
        return None
    what = f"no element in a sample of the parameters changes in {len(changes)} optimizer steps"
    return LossSymptom("stuck", changes[0][0], what)


def _level(outline: Outline) -> Optional[LossSymptom]:
    """Return a loss that is about as large at the end as at the begin."""
    for series in _series(outline):
        third = len(series) // 3
        if third < 2:
            continue
        first, last = (statistics.median(value for _, value in part) for part in (series[:third], series[-third:]))
        if last > first - THRESHOLDS["fall"] * abs(first):
            what = f"the median loss is {first:.4g} in the first third of the steps, and {last:.4g} in the last third"
            return LossSymptom("stuck", series[0][0], what)
    return None
