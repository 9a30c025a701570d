"""Find spikes in a series of numbers, by a robust bound on the numbers before each."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["FEWEST", "Spike", "find_spikes"]

#: Numbers before a spike that it is compared with, and the fewest of them.
_WINDOW, FEWEST = 32, 6
#: A spike rises above their median by the largest of three bounds: this multiple of their deviation (1.4826 times the
#: median absolute deviation), of the distance of their largest from the median, and of the median itself.
_DEVIATIONS, _RANGES, _RELATIVE = 12, 3, 2
#: The deviation that is assumed at least, as a part of the median.
_LEAST_DEVIATION = 0.01
#: Numbers after a spike whose median decides whether the series stays high.
_LATER = 3


class Spike(NamedTuple):
    """A number far above those before it.

    position  in the series
    median    of the numbers before
    stays     the median of the numbers after it, of which there are enough, is as high
    """

    position: int
    value: float
    median: float
    stays: bool


def find_spikes(values: Sequence[float], least: float = 0.0) -> Iterator[Spike]:
    """Yield the spikes of a series of finite numbers, in order. least: smaller rises are none."""
    for position in range(FEWEST, len(values)):
        window = values[max(0, position - _WINDOW) : position]
        value, median = values[position], statistics.median(window)
        if value <= median:
            continue
        deviation = 1.4826 * statistics.median(abs(other - median) for other in window)
        deviation = max(deviation, _LEAST_DEVIATION * abs(median))
        bound = max(_DEVIATIONS * deviation, _RANGES * (max(window) - median), _RELATIVE * abs(median), least)
        if value - median > bound:
            later = values[position + 1 :]
            stays = len(later) >= _LATER and statistics.median(later) - median > bound
            yield Spike(position, value, median, stays)
