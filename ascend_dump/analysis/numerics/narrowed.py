"""Recognise values that were rounded to a narrower type, although their own type is wider."""

from __future__ import annotations

from typing import Optional

from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["is_rounded", "why_narrowed"]

_TYPES = ("bfloat16", "float16")
#: Fewest elements by which a rounding is recognised, and the largest share of elements of the other side that may be
#: numbers of the narrower type by chance.
_FEWEST, _BY_CHANCE = 8, 0.5
#: Smallest share of elements that are those of the other side, rounded. Noise may round a few to the next number.
_ROUNDED = 0.9


def why_narrowed(actual: Optional[Record], reference: Optional[Record]) -> list[str]:
    """Return a sentence if the values of one side are those of the other side, rounded to a narrower type.

    They may be in another order. Empty if that is not so, or if a tensor cannot be read: zeros and other constants are
    numbers of each type, but not rounded ones.
    """
    if actual is None or reference is None or not (actual.dtype == reference.dtype == "float32"):
        return []
    try:
        sides = [record.numpy().reshape(-1) for record in (actual, reference)]
    except AscendDumpError:
        return []
    if sides[0].size != sides[1].size or sides[0].size < _FEWEST:
        return []
    import ml_dtypes  # noqa: F401  # registers bfloat16
    import numpy as np

    for name in _TYPES:
        with np.errstate(all="ignore"):
            rounded = [side.astype(name).astype(side.dtype) for side in sides]
            shares = [float((values == side).mean()) for values, side in zip(rounded, sides)]
        for number, side in enumerate(("actual", "the reference")):
            if shares[number] < 1.0 or shares[1 - number] >= _BY_CHANCE:
                continue
            # Rounding keeps the order of values.
            if float((np.sort(rounded[1 - number]) == np.sort(sides[number])).mean()) >= _ROUNDED:
                return [f"all elements of {side} are numbers of {name}: it was rounded to that type"]
    return []


def is_rounded(a: Record, b: Record, dtype: str) -> bool:
    """Return True if the values of one side are those of the other side, rounded to a narrower type."""
    try:
        sides = [record.numpy().reshape(-1) for record in (a, b)]
    except AscendDumpError:
        return False
    if sides[0].size != sides[1].size:
        return False
    import ml_dtypes  # noqa: F401  # registers bfloat16
    import numpy as np

    with np.errstate(all="ignore"):
        return any((wide.astype(dtype) == narrow).all() for narrow, wide in (sides, sides[::-1]))
