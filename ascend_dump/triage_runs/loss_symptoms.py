"""Find a loss that spikes, is zero or does not fall, in the numbers that an outline contains for each step."""

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

#: Thresholds of the rules, in addition to those of `find_spikes`.
#:
#: zeros         minimum number of consecutive losses that are exactly 0
#: fall          relative decrease of the median loss from the first to the last third of the steps, below which the
#:               loss counts as not falling
#: still         minimum number of steps in which no parameter changes, or all gradients are 0
#: growth        ratio of a tensor's size to that in the step before, from which the tensor is the reason of a spike
#: factor        ratio of a changed setting of an optimizer to its largest earlier value, from which the change may
#:               cause a spike
#: nearby        maximum number of steps between such a change and the spike
THRESHOLDS: Mapping[str, float] = {
    "zeros": 3,
    "fall": 0.02,
    "still": 3,
    "growth": 10,
    "factor": 5,
    "nearby": 2,
}


class LossSymptom(NamedTuple):
    """A symptom in the losses of a run.

    step   the step in which the symptom begins
    what   the symptom in words
    loss   the loss of that step, for a spike
    """

    kind: Symptom
    step: int
    what: str
    loss: Optional[float] = None


class SettingsChange(NamedTuple):
    """A change of a numeric setting of an optimizer, such as lr. source: the line of the optimizer step."""

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
    """Return the symptom in the losses of a process, None if there is none.

    asked: look for this symptom only, and accept weaker signs of it
    """
    symptom = _zero(outline, is_asked=asked == "zero") if asked in (None, "zero") else None
    if symptom is None and asked in (None, "stuck"):
        symptom = _stuck(outline) or (
            _unchanged_parameters(outline) or _not_falling(outline) if asked is not None else None
        )
    return symptom or (_spike(outline, is_asked=asked == "spike") if asked in (None, "spike") else None)


def changes_before(outline: Outline, step: int) -> Iterator[SettingsChange]:
    """Yield the settings that change, in a step or shortly before it, to a value much larger than any before."""
    before: dict[str, float] = {}
    largest: dict[str, float] = {}
    for changed_at, settings, source in outline.settings:
        for name, value in settings.items():
            old = before.get(name)
            is_near = step - THRESHOLDS["nearby"] <= changed_at <= step
            # The value is compared with the largest one so far, because a schedule that restarts returns to an earlier
            # value.
            is_new = abs(value) > THRESHOLDS["factor"] * largest.get(name, math.inf)
            if old is not None and is_near and is_new:
                yield SettingsChange(name, changed_at, old, value, source)
            largest[name] = max(largest.get(name, 0.0), abs(value))
        before = settings


def is_divergence(outline: Outline, spike: LossSymptom) -> bool:
    """Return True if no loss after a spike is smaller than the loss in the spike's step."""
    for series in _series(outline):
        later = [value for step, value in series if step >= spike.step]
        if later and later[0] == spike.loss and min(later) == spike.loss:
            return True
    return False


def _series(outline: Outline) -> Iterator[list[tuple[int, float]]]:
    """Yield a list of (step, value) for each loss. A step may have several losses, always in the same order."""
    max_losses = max((len(losses) for losses in outline.losses.values()), default=0)
    for position in range(max_losses):
        yield [
            (step, value)
            for step, losses in sorted(outline.losses.items())
            if position < len(losses) and (value := losses[position]) is not None
        ]


def _spike(outline: Outline, *, is_asked: bool) -> Optional[LossSymptom]:
    spikes = [spike for series in _series(outline) if (spike := _spike_in(series, is_asked)) is not None]
    return min(spikes, key=lambda spike: spike.step, default=None)


def _spike_in(series: Sequence[tuple[int, float]], is_asked: bool) -> Optional[LossSymptom]:
    """Return the first spike. is_asked: accept also spikes after which the loss falls back, as a noisy loss does."""
    for spike in find_spikes([value for _, value in series]):
        if is_asked or spike.stays:
            step = series[spike.position][0]
            what = f"the loss rises to {spike.value:.4g} in step {step}, from a median of {spike.median:.4g} before"
            return LossSymptom("spike", step, what, spike.value)
    return None


def _zero(outline: Outline, *, is_asked: bool) -> Optional[LossSymptom]:
    """Return the symptom of a loss that is exactly 0 from some step on, up to the last step.

    is_asked: accept a loss that was not 0 in the first steps. By default it is not accepted, because a loss with a
              margin, such as hinge loss, may fall to 0
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
    """Return the symptom of a training without progress: unchanged parameters, zero gradients or a constant loss."""
    # The first step is left out: no optimizer is known then, so its gradients are measured before they are clipped.
    norms = sorted(outline.norms.items())[1:]
    # Unchanged samples prove nothing by themselves, because unused rows of an embedding never change.
    if not any(norm for _, norm in norms) or is_learning_rate_zero(outline) or is_without_gradients(outline):
        still = _unchanged_parameters(outline)
        if still is not None:
            return still._replace(what=f"no parameter changes in {len(outline.changes)} optimizer steps")
    if outline.losses and len(norms) >= THRESHOLDS["still"] and all(norm == 0 for _, norm in norms):
        return LossSymptom("stuck", norms[0][0], f"all gradients are 0 in {len(norms)} steps")
    for series in _series(outline):
        if len(series) >= FEWEST and all(value == series[0][1] for _, value in series):
            return LossSymptom("stuck", series[0][0], f"the loss is {series[0][1]:g} in all {len(series)} steps")
    return None


def is_learning_rate_zero(outline: Outline) -> bool:
    """Return True if there is one optimizer, and its learning rate is 0 in all steps."""
    rates = [settings.get("lr") for _, settings, _ in outline.settings]
    return outline.optimizers == 1 and bool(rates) and not any(rate != 0 for rate in rates)


def is_without_gradients(outline: Outline) -> bool:
    """Return True if no parameter of the optimizers has a gradient."""
    optimized, without = (outline.parameters.get(kind, ("0",))[0] for kind in ("of all optimizers", "without gradient"))
    return optimized != "0" and optimized == without


def _unchanged_parameters(outline: Outline) -> Optional[LossSymptom]:
    """Return the symptom of parameters that no optimizer step changes, judged by a sample of their elements."""
    changes = sorted(outline.changes.items())
    if outline.optimizers != 1 or not outline.losses or len(changes) < THRESHOLDS["still"]:
        return None
    if any(change for _, change in changes):
        return None
    what = f"no element in a sample of the parameters changes in {len(changes)} optimizer steps"
    return LossSymptom("stuck", changes[0][0], what)


def _not_falling(outline: Outline) -> Optional[LossSymptom]:
    """Return the symptom of a loss that is about as large in the last third of the steps as in the first third."""
    for series in _series(outline):
        third = len(series) // 3
        if third < 2:
            continue
        first, last = (statistics.median(value for _, value in part) for part in (series[:third], series[-third:]))
        if last > first - THRESHOLDS["fall"] * abs(first):
            what = f"the median loss is {first:.4g} in the first third of the steps, and {last:.4g} in the last third"
            return LossSymptom("stuck", series[0][0], what)
    return None
