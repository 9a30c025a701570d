"""The floating-point types, and the rounding of each type."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from ascend_dump.reading import Record

__all__ = ["FloatKind", "float_kind", "is_float_tensor", "narrower"]


class FloatKind(NamedTuple):
    """The rounding of a type.

    mantissa    explicit bits of the significand
    lowest      exponent of the smallest normal number
    """

    mantissa: int
    lowest: int

    @property
    def unit(self) -> float:
        """Return the unit of rounding: half the distance between 1 and the next number."""
        return math.ldexp(0.5, -self.mantissa)


_FLOATS = {
    "float64": FloatKind(52, -1022),
    "float32": FloatKind(23, -126),
    "bfloat16": FloatKind(7, -126),
    "float16": FloatKind(10, -14),
    "float8_e4m3fn": FloatKind(3, -6),
    "float8_e4m3": FloatKind(3, -6),
    "float8_e4m3b11fnuz": FloatKind(3, -10),
    "float8_e4m3fnuz": FloatKind(3, -7),
    "float8_e3m4": FloatKind(4, -2),
    "float8_e5m2": FloatKind(2, -14),
    "float8_e5m2fnuz": FloatKind(2, -15),
    "float6_e2m3fn": FloatKind(3, 0),
    "float6_e3m2fn": FloatKind(2, -2),
    "float4_e2m1fn": FloatKind(1, 0),
    # Types of CANN that numpy lacks. Their values are stored as float32. The significand of hifloat8 has three bits for
    # numbers near 1, and fewer for others: one bit at 2**-15 and 2**15.
    "hifloat8": FloatKind(1, -15),
    "float4_e1m2": FloatKind(2, 0),
    "complex64": FloatKind(23, -126),
    "complex128": FloatKind(52, -1022),
    "complex32": FloatKind(10, -14),
    "bcomplex32": FloatKind(7, -126),
}


def float_kind(dtype: str) -> Optional[FloatKind]:
    """Return the rounding of a type by its numpy or ml_dtypes name; None for exact types."""
    return _FLOATS.get(dtype)


def narrower(dtype: str, other: str) -> str:
    """Return the type of the two with the coarser rounding; `dtype` itself if one of them is no type of floats."""
    kind, other_kind = float_kind(dtype), float_kind(other)
    if kind is None or other_kind is None:
        return dtype
    return dtype if kind.mantissa <= other_kind.mantissa else other


def is_float_tensor(record: Record) -> bool:
    """Return True for floating-point values, unless they are a single number."""
    return float_kind(record.dtype or "") is not None and math.prod(record.shape or ()) > 1
