"""Measure the error of a layer: its size, its pattern, and outliers of the activations that the layer reads."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np

__all__ = ["ErrorNumbers", "Outlier", "error_numbers", "outliers_of"]

#: An error has a pattern if the pattern explains more than this share of it.
_EXPLAINS = 0.5
#: A channel is an outlier if its largest value is at least this multiple of the median over all channels.
_OUTLIER = 10.0
#: Maximum number of outliers that are listed.
_MOST = 5
#: Minimum number of channels for a median.
_FEWEST = 8


class Outlier(NamedTuple):
    """A channel of the last axis with much larger values than others.

    largest  the largest magnitude in the channel
    times    `largest` divided by the median of the largest magnitudes of all channels
    """

    channel: int
    largest: float
    times: float


class ErrorNumbers(NamedTuple):
    """The error of a layer's output, compared with the output of the reference's layer for the same inputs.

    snr       ratio of signal to error, in dB; Inf without an error, -Inf if the reference's output is 0, NaN if the
              output is not finite
    cosine    cosine similarity of the output and the output of the reference's layer; None if one of them is 0
    relative  L2 norm of the error, divided by that of the reference's output
    gain      the factor by which the output is larger; 1 if a factor does not explain most of the error
    shift     root mean square of the shifts of the channels, relative to the output; 0 if they do not explain most of
              the error
    channels  channels that contain most of the error, if these are few
    """

    snr: float
    cosine: Optional[float]
    relative: float
    gain: float = 1.0
    shift: float = 0.0
    channels: tuple[int, ...] = ()


def error_numbers(actual: np.ndarray, expected: np.ndarray) -> ErrorNumbers:
    """Return the error of `actual` compared with `expected`, two float64 arrays of the same shape.

    Channels are along the last axis.
    """
    if not np.isfinite(actual).all() and np.isfinite(expected).all():
        return ErrorNumbers(math.nan, None, math.inf)
    with np.errstate(all="ignore"):
        error = actual - expected
        energy, signal = float(np.sum(error * error)), float(np.sum(expected * expected))
        norms = math.sqrt(float(np.sum(actual * actual)) * signal)
        cosine = float(np.sum(actual * expected)) / norms if norms > 0 else None
    if not energy:
        return ErrorNumbers(math.inf, cosine, 0.0)
    if not signal:
        return ErrorNumbers(-math.inf, cosine, math.inf)
    relative = math.sqrt(energy / signal)
    rows = _rows(error)
    gain = _gain(actual, expected, energy)
    shift = 0.0 if gain != 1.0 else _shift(rows, energy, signal)
    return ErrorNumbers(-20 * math.log10(relative), cosine, relative, gain, shift, _few_channels(rows, energy))


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1] if array.ndim else 1)


def _gain(actual: np.ndarray, expected: np.ndarray, energy: float) -> float:
    """Return the factor that fits best; 1 if it does not explain most of the error."""
    centred = expected - expected.mean()
    spread = float(np.sum(centred * centred))
    if not spread:
        return 1.0
    factor = float(np.sum((actual - actual.mean()) * centred)) / spread
    remainder = actual - factor * expected
    explained = 1 - float(np.sum(remainder * remainder)) / energy
    return factor if explained > _EXPLAINS else 1.0


def _shift(rows: np.ndarray, energy: float, signal: float) -> float:
    """Return the root mean square of shifts of the channels, relative to the output; 0 if they explain little."""
    means = rows.mean(axis=0)
    shifted = len(rows) * float(np.sum(means * means))
    # With few rows, shifts explain a part of any error by chance.
    if len(rows) < 4 or shifted / energy < max(_EXPLAINS, 4 / len(rows)):
        return 0.0
    return math.sqrt(shifted / signal)


def _few_channels(rows: np.ndarray, energy: float) -> tuple[int, ...]:
    """Return the channels that contain 80 % of the error, if they are 1 in 20 or fewer."""
    count = rows.shape[1]
    if count < 2 * _FEWEST:
        return ()
    by_channel = np.sum(rows * rows, axis=0)
    order = np.argsort(by_channel)[::-1][: max(1, count // 20)]
    sums = np.cumsum(by_channel[order])
    enough = np.flatnonzero(sums > 0.8 * energy)
    return tuple(int(channel) for channel in order[: enough[0] + 1]) if len(enough) else ()


def outliers_of(values: np.ndarray) -> tuple[Outlier, ...]:
    """Return the channels of the last axis with the largest values, if they are outliers; the largest first."""
    if not values.ndim or values.shape[-1] < _FEWEST or not values.size:
        return ()
    largest = np.abs(_rows(values)).max(axis=0)
    usual = float(np.median(largest))
    if not usual or not math.isfinite(usual):
        return ()
    order = np.argsort(largest)[::-1][:_MOST]
    outliers = (Outlier(int(channel), float(largest[channel]), float(largest[channel] / usual)) for channel in order)
    return tuple(outlier for outlier in outliers if outlier.times >= _OUTLIER)
