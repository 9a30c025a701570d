"""Histograms and curves as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Bins", "bins_of", "histogram", "is_number", "sparkline", "value_limits"]

#: Number of elements processed at once, so that a large memory-mapped tensor is not copied as a whole.
_CHUNK = 1 << 20
#: Characters for the heights of a curve, from lowest to highest.
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=^#"


class Bins(NamedTuple):
    """Counts of values in bins of equal width.

    edges    the edges of the bins, one more than there are bins; the last bin includes its upper edge
    counts   number of values in each bin; edges and counts are empty if no value is finite
    finite   number of finite values
    size     number of all values
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    finite: int
    size: int


def histogram(array: np.ndarray, *, bins: int = 16, width: int = 50) -> list[str]:
    """Return the lines of a horizontal histogram of the finite values. Of complex values the magnitude is counted.

    bins: number of bins. width: number of characters of the longest bar, which belongs to the fullest bin. A bin that
    is not empty has at least one character.
    """
    if not is_number(array.dtype):
        return [f"no histogram of {array.dtype} values"]
    filled = bins_of(array, bins)
    if not filled.finite:
        return [f"no finite value among {filled.size}"]
    edges, counts = filled.edges, filled.counts
    top = max(counts)
    labels = [f"{edge:.4g}" for edge in edges]
    pad = max(map(len, labels))
    lines = [
        f"{labels[index].rjust(pad)} .. {labels[index + 1].rjust(pad)} |{_bar(count, top, width)} {count}"
        for index, count in enumerate(counts)
    ]
    if filled.finite < filled.size:
        lines.append(f"{filled.size - filled.finite} of {filled.size} values are NaN or Inf")
    return lines


def bins_of(array: np.ndarray, bins: int, limits: Optional[tuple[float, float]] = None) -> Bins:
    """Count the finite values of an array in bins of equal width. Of complex values the magnitude is counted.

    limits: the lower end of the first bin and the upper end of the last bin; all values have to lie between them. The
    default are the smallest and the largest value.
    """
    import numpy as np

    flat = array.reshape(-1)
    low, high = value_limits([array]) if limits is None else limits
    if not low <= high:
        return Bins((), (), 0, flat.size)
    if low == high:
        bins = 1
    # Computed with halves, because high - low overflows if the values span the whole range of a double.
    edges = np.linspace(low / 2, high / 2, bins + 1) * 2
    edges[0], edges[-1] = low, high
    half = high / 2 - low / 2
    scale = bins / half if half > bins * 1e-300 else None
    counts = np.zeros(bins, dtype=np.int64)
    for values in _finite_chunks(flat):
        if scale is None:
            indices = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
        else:  # several times faster than searchsorted
            indices = np.clip(((values / 2 - low / 2) * scale).astype(np.int64), 0, bins - 1)
            # The product above is rounded, so the indices are corrected by comparison with the edges.
            indices -= (values < edges[indices]) & (indices > 0)
            indices += (values >= edges[indices + 1]) & (indices < bins - 1)
        counts += np.bincount(indices, minlength=bins)
    return Bins(tuple(edges.tolist()), tuple(counts.tolist()), int(counts.sum()), flat.size)


def value_limits(arrays: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return the smallest and the largest finite value; (Inf, -Inf) if no value is finite."""
    low, high = float("inf"), float("-inf")
    for array in arrays:
        for values in _finite_chunks(array.reshape(-1)):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return low, high


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return True if values of this type can be counted in bins."""
    import numpy as np

    if dtype.kind == "O":
        return False
    try:  # bfloat16 and raw bytes both have the kind V, but only bfloat16 can be converted
        np.zeros(1, dtype).astype(np.complex128)
    except (TypeError, ValueError):
        return False
    return True


def _finite_chunks(flat: np.ndarray) -> Iterator[np.ndarray]:
    import numpy as np

    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        with np.errstate(all="ignore"):
            values = np.abs(part.astype(np.complex128)) if part.dtype.kind == "c" else part.astype(np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            yield values


def _bar(count: int, top: int, width: int) -> str:
    return "#" * max(round(width * count / top), 1 if count else 0)


def sparkline(values: Sequence[float], *, width: int = 24, encoding: str = "utf-8") -> str:
    """Return a curve as one line of at most `width` characters, one for each value or group of neighbouring values.

    The height of a character is the largest value of its group, relative to the range of these largest values; a group
    with NaN or Inf is "!".

    encoding: the encoding of the output. If it has no block characters, ASCII characters are used.
    """
    size = -(-len(values) // width) if values else 1
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    tops = [max(group) if all(map(math.isfinite, group)) else math.nan for group in groups]
    finite = [top for top in tops if math.isfinite(top)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    marks = _BLOCKS
    try:
        _BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        marks = _ASCII_BLOCKS
    # Computed with halves, because high - low overflows if the values span the whole range of a double.
    span = high / 2 - low / 2
    heights = (
        round((top / 2 - low / 2) / span * (len(marks) - 1)) if span and math.isfinite(top) else 0 for top in tops
    )
    return "".join(marks[height] if math.isfinite(top) else "!" for top, height in zip(tops, heights))
