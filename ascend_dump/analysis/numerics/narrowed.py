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


def why_narrowed(actual: Optional[Record], reference: Optional[Record]) -> list[str]:
    """Return a sentence if all elements of one side are numbers of a narrower type, and those of the other side not.

    Empty if that is not so, or if a tensor cannot be read.
    """
    if actual is None or reference is None or not (actual.dtype == reference.dtype == "float32"):
        return []
    try:
        sides = [record.numpy().reshape(-1) for record in (actual, reference)]
    except AscendDumpError:
        return []
    if min(side.size for side in sides) < _FEWEST:
        return []
    import ml_dtypes  # noqa: F401  # registers bfloat16
    import numpy as np

    for name in _TYPES:
        with np.errstate(all="ignore"):
            shares = [float((side.astype(name).astype(side.dtype) == side).mean()) for side in sides]
        for number, side in enumerate(("actual", "the reference")):
            if shares[number] == 1.0 and shares[1 - number] < _BY_CHANCE:
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
