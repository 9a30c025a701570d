"""Find spikes in a series of numbers: numbers far above the median of the numbers before them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["FEWEST", "Spike", "find_spikes"]

#: A number is compared with up to _WINDOW numbers before it, and only if there are at least FEWEST of them.
_WINDOW, FEWEST = 32, 6
#: A spike exceeds the median of the numbers before it by more than each of three bounds. These are multiples of the
#: deviation of these numbers (1.4826 times their median absolute deviation), of the distance between their largest and
#: the median, and of the median itself.
_DEVIATIONS, _RANGES, _RELATIVE = 12, 3, 2
#: The smallest deviation that is assumed, relative to the median.
_LEAST_DEVIATION = 0.01
#: Numbers after a spike whose median decides whether the series stays high.
_LATER = 3


class Spike(NamedTuple):
    """A number far above those before it.

    position  its index in the series
    median    the median of the numbers before it
    stays     True if the series stays high: the median of the numbers after the spike exceeds the same bound
    """

    position: int
    value: float
    median: float
    stays: bool


def find_spikes(values: Sequence[float], least: float = 0.0) -> Iterator[Spike]:
    """Yield the spikes of a series of finite numbers, in order. least: minimum distance of a spike from the median."""
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
