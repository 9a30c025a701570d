"""The curves of a page: a row of small SVG pictures for each quantity, drawn without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ascend_dump.report.page._content import PageCurve
from ascend_dump.report.page._static import text

__all__ = ["MOST_CURVES", "MOST_POINTS", "strip_of"]

#: Maximum number of curves per quantity, and of points per curve, so that all curves take less than 200 kB.
MOST_CURVES, MOST_POINTS = 8, 100
#: Width and height of a picture in SVG units, and width of the empty edge that keeps marks from being cut off.
_WIDTH, _HEIGHT, _EDGE = 200, 48, 4
#: Ratio of the largest to the smallest value from which the vertical axis is logarithmic.
_LOGARITHMIC = 100.0
#: Maximum number of marks of one kind in a picture, and maximum number of characters of a name.
_MOST_MARKS, _LONGEST_NAME = 20, 200


def strip_of(curves: Iterable[PageCurve]) -> str:
    """Return the HTML section with the curves, "" if there are none.

    curves: of each quantity the most interesting first. Only the first MOST_CURVES are drawn, the others are counted.
    """
    groups: dict[str, list[PageCurve]] = {}
    counts: dict[str, int] = {}
    for curve in curves:
        counts[curve.quantity] = counts.get(curve.quantity, 0) + 1
        if counts[curve.quantity] <= MOST_CURVES:
            groups.setdefault(curve.quantity, []).append(curve)
    if not groups:
        return ""
    parts = []
    for quantity, group in groups.items():
        pictures = "".join(_picture(curve) for curve in group)
        more = f" <span class='soft'>{len(group)} of {counts[quantity]}</span>" if counts[quantity] > len(group) else ""
        parts.append(f"<h4>{text(quantity)}{more}</h4>\n<div class='curves'>\n{pictures}</div>\n")
    compared = any(curve.reference for group in groups.values() for curve in group)
    dashed = "; dashed: the reference, and the step where the runs part" if compared else ""
    legend = (
        f"<p class='legend'>Marks below: spikes; at the top: NaN or Inf{dashed}. `ascend-dump trends` has all.</p>\n"
    )
    return f"<section id='curves'>\n<h2>Curves</h2>\n{''.join(parts)}{legend}</section>\n"


def _picture(curve: PageCurve) -> str:
    steps, values = _thinned(curve.steps, curve.values, {*curve.spikes, curve.parts})
    reference_steps = [step for step in steps if step in curve.reference]
    scale = _Scale(steps, [*values, *(curve.reference[step] for step in reference_steps)])
    marks = _marks(curve, scale)
    dashed = ""
    if reference_steps:
        line = scale.line(reference_steps, [curve.reference[step] for step in reference_steps])
        dashed = f"<path class='reference' d='{line}'/>"
    words = _words(curve, scale.is_logarithmic)
    return (
        f"<figure><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' preserveAspectRatio='none' role='img' "
        f"aria-label='{text(words)}'>{dashed}<path d='{scale.line(steps, values)}'/>{marks}</svg>\n"
        f"<figcaption><span class='name'>{text(_name(curve))}</span><br>{text(words)}</figcaption></figure>\n"
    )


def _name(curve: PageCurve) -> str:
    name = curve.name or "the model"
    short = name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"
    return f"{curve.place} {short}".strip()


def _words(curve: PageCurve, is_logarithmic: bool) -> str:
    finite = [value for value in curve.values if math.isfinite(value)]
    ends = f"{min(finite):.4g} to {max(finite):.4g}, last {curve.values[-1]:.4g}" if finite else "NaN or Inf"
    facts = [f"{ends}{' (logarithmic)' if is_logarithmic else ''}"]
    if curve.parts is not None:
        facts.append(f"parts in step {curve.parts}")
    if curve.spikes:
        more = f" and {len(curve.spikes) - 1} more" if len(curve.spikes) > 1 else ""
        facts.append(f"spike in step {curve.spikes[0]}{more}")
    broken = [step for step, value in zip(curve.steps, curve.values) if not math.isfinite(value)]
    if broken and finite:
        facts.append(f"NaN or Inf first in step {broken[0]}")
    return "; ".join(facts)


def _marks(curve: PageCurve, scale: _Scale) -> str:
    """Return the marks as SVG: ticks at the bottom for spikes, at the top for NaN and Inf; a line where runs part."""
    bottom, top = _HEIGHT - 1, 1
    broken = [step for step, value in zip(curve.steps, curve.values) if not math.isfinite(value)]
    lines = [
        *(("spike", step, bottom, bottom - 6) for step in list(curve.spikes)[:_MOST_MARKS]),
        *(("nonfinite", step, top, top + 5) for step in broken[:_MOST_MARKS]),
        *(("parts", step, top, bottom) for step in (curve.parts,) if step is not None),
    ]
    return "".join(f"<path class='{kind}' d='M{scale.x(step)} {a}V{b}'/>" for kind, step, a, b in lines)


class _Scale:
    """The conversion of steps and values to coordinates of a picture."""

    def __init__(self, steps: Sequence[int], values: Sequence[float]) -> None:
        finite = [value for value in values if math.isfinite(value)]
        self._first, self._last = steps[0], max(steps[-1], steps[0] + 1)
        self.is_logarithmic = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOGARITHMIC
        heights = [self._height(value) for value in finite]
        self._low, self._high = min(heights, default=0.0), max(heights, default=0.0)

    def _height(self, value: float) -> float:
        # Half of the value, because the difference of two doubles may overflow to Inf.
        return math.log(value) if self.is_logarithmic else value / 2

    def x(self, step: int) -> str:
        part = (step - self._first) / (self._last - self._first)
        return f"{_EDGE + part * (_WIDTH - 2 * _EDGE):.1f}"

    def line(self, steps: Sequence[int], values: Sequence[float]) -> str:
        """Return an SVG path through the finite values, with gaps at NaN and Inf."""
        return "".join(self._commands(steps, values))

    def _commands(self, steps: Sequence[int], values: Sequence[float]) -> Iterator[str]:
        pen = "M"
        for step, value in zip(steps, values):
            if not math.isfinite(value):
                pen = "M"
                continue
            spread = self._high - self._low
            part = (self._height(value) - self._low) / spread if spread > 0 else 0.5
            x, y = self.x(step), f"{_HEIGHT - _EDGE - part * (_HEIGHT - 2 * _EDGE):.1f}"
            # A short horizontal line, so that a single point is visible.
            yield f"M{x} {y}h0.1" if pen == "M" else f"L{x} {y}"
            pen = "L"


def _thinned(steps: Sequence[int], values: Sequence[float], kept: set[object]) -> tuple[Sequence[int], Sequence[float]]:
    """Reduce the points to about `MOST_POINTS`: of each group of neighbours keep the smallest and the largest value.

    kept: steps that are kept in preference to the smallest and the largest value
    """
    if len(steps) <= MOST_POINTS:
        return steps, values
    # Two points remain of each group of this width.
    width = 2 * math.ceil(len(steps) / MOST_POINTS)
    chosen: list[int] = []
    for begin in range(0, len(steps), width):
        group = range(begin, min(begin + width, len(steps)))
        marked = [index for index in group if steps[index] in kept]
        finite = [index for index in group if math.isfinite(values[index])] or list(group[:1])
        ends = [min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)]
        chosen += sorted({*marked[:2], *ends[: 2 - len(marked[:2])]} or ends)
    return [steps[index] for index in chosen], [values[index] for index in chosen]
