"""Judge the own errors of layers: rounding to fewer bits, a layer that stands out, or a fault.

The error of a healthy layer depends on its number of bits, which a dump does not always tell. So the error of a layer
is compared with the median of the quantised layers. Faults are recognised by the pattern of the error: a factor or a
shift is no rounding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.quantised.layer_error import LayerError

__all__ = ["judged"]

#: A layer stands out if its error is more than this multiple of the median.
_TIMES = 3.0
#: Minimum number of layers for a median.
_FEWEST = 3
#: Relative errors. A layer stands out only above `_LEAST`; without quantisation it is wrong above `_UNQUANTISED`. The
#: output is mostly error above `_NOISE`.
_LEAST, _UNQUANTISED, _NOISE = 0.02, 0.02, 0.5
#: A layer is wrong if its gain (see `ErrorNumbers`) differs from 1 by more than `_GAIN`. It is also wrong if it stands
#: out and its channels are shifted by more than `_SHIFT`, relative to the output.
_GAIN, _SHIFT = 0.1, 0.05
_ORDER = ("wrong", "stands out", "ok")


def judged(layers: Sequence[LayerError]) -> list[LayerError]:
    """Return the layers with verdicts and reasons, sorted by verdict, the worst first, and then by error."""
    errors = [
        layer.numbers.relative for layer in layers if layer.is_quantised and math.isfinite(layer.numbers.relative)
    ]
    median = statistics.median(errors) if len(errors) >= _FEWEST else None
    verdicts = [_judge(layer, median) for layer in layers]
    with_verdicts = [replace(layer, verdict=verdict, reason=text) for layer, (verdict, text) in zip(layers, verdicts)]
    return sorted(with_verdicts, key=lambda layer: (_ORDER.index(layer.verdict), -layer.numbers.relative))


def _judge(layer: LayerError, median: Optional[float]) -> tuple[str, str]:
    numbers = layer.numbers
    if math.isnan(numbers.snr):
        return "wrong", "its output has NaN or Inf where that of the reference's layer has none"
    size = f"relative error {numbers.relative:.2g}"
    if not layer.is_quantised:
        if numbers.relative > _UNQUANTISED:
            return "wrong", f"nothing quantises it, but its output differs: {size}"
        return "ok", ""
    times = 0.0 if not median else numbers.relative / median
    stands_out = numbers.relative > _LEAST and (numbers.relative > _NOISE if median is None else times > _TIMES)
    if times:
        size += f", {times:.3g} times the median of the quantised layers"
    fault = "; ".join(_faults(layer, stands_out=stands_out))
    if fault:
        return "wrong", f"{fault} ({size})"
    if not stands_out:
        return "ok", size
    return "stands out", "; ".join([size, *_explanations(layer)])


def _faults(layer: LayerError, *, stands_out: bool) -> Iterator[str]:
    """Yield a sentence for the pattern of the error that rounding cannot cause, if there is one."""
    numbers = layer.numbers
    if abs(numbers.gain - 1) > _GAIN:
        yield f"its output is {numbers.gain:.3g} times as large as it should be: a wrong scale"
    elif numbers.shift > _SHIFT and stands_out:
        yield f"its channels are shifted by {numbers.shift:.2g} of the output: a wrong zero point or bias"
    elif numbers.channels and stands_out and numbers.relative > 2 * _SHIFT:
        yield f"{_named_channels(numbers.channels)} most of the error: a wrong scale of a channel"
    elif numbers.relative > _NOISE and stands_out:
        yield "its output is mostly error: a wrong scale"


def _named_channels(channels: Sequence[int]) -> str:
    names = ", ".join(map(str, channels[:4]))
    return f"output channel {names} has" if len(channels) == 1 else f"output channels {names} have"


def _explanations(layer: LayerError) -> Iterator[str]:
    if layer.outliers:
        outlier = layer.outliers[0]
        yield (
            f"channel {outlier.channel} of its input reaches {outlier.largest:.3g}, {outlier.times:.3g} times the "
            "median channel: one scale for all channels leaves few bits for the others"
        )
