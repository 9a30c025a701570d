"""Plots made of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["histogram"]

#: Elements looked at in one go, so that a large mapped tensor is not copied as a whole.
_CHUNK = 1 << 20


def histogram(array: np.ndarray, *, bins: int = 16, width: int = 50) -> list[str]:
    """Lines of a horizontal histogram of the finite values, complex ones by their magnitude.

    Bars are in proportion to the fullest bin; a bin that is not empty shows at least one mark.
    """
    import numpy as np

    if not _is_number(array.dtype):
        return [f"no histogram of {array.dtype} values"]
    flat = array.reshape(-1)
    low, high, finite = np.inf, -np.inf, 0
    for values in _finite_chunks(flat):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        finite += values.size
    if not finite:
        return [f"no finite value among {flat.size}"]
    if low == high:
        bins = 1
    # Halves, because high - low overflows where the values span the whole range of a double.
    edges = np.linspace(low / 2, high / 2, bins + 1) * 2
    edges[0], edges[-1] = low, high
    counts = np.zeros(bins, dtype=np.int64)
    for values in _finite_chunks(flat):
        places = np.searchsorted(edges, values, side="right") - 1
        counts += np.bincount(np.clip(places, 0, bins - 1), minlength=bins)
    top = int(counts.max())
    labels = [f"{edge:.4g}" for edge in edges]
    pad = max(map(len, labels))
    lines = [
        f"{labels[at].rjust(pad)} .. {labels[at + 1].rjust(pad)} |{_bar(int(count), top, width)} {count}"
        for at, count in enumerate(counts)
    ]
    if finite < flat.size:
        lines.append(f"{flat.size - finite} of {flat.size} values are NaN or Inf")
    return lines


def _is_number(dtype: np.dtype[Any]) -> bool:
    import numpy as np

    if dtype.kind == "O":
        return False
    try:  # the only question that bfloat16 and raw bytes, both of kind V, answer differently
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
