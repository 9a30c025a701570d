"""The names of element types in the dump format, and the type of numpy or ml_dtypes for each name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import NotSupported

if TYPE_CHECKING:
    import numpy as np

__all__ = ["has_values", "memory_of", "numpy_dtype"]

_NUMPY = (
    "bool",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "complex32",
)
#: Quantised types are read as the integers that they store.
_QUANTISED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
#: Types without numbers as elements: several values are packed into one element, or its meaning is undefined. They are
#: read as unsigned integers of the same size.
_RAW = {
    **dict.fromkeys(("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "float4_e2m1fn_x2"), "uint8"),
    **dict.fromkeys((f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)), "uint8"),
    "bits16": "uint16",
}


def has_values(name: str) -> bool:
    """Return True if an element of this type is one number."""
    return name not in _RAW


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the type of numpy or ml_dtypes for a name. Raises NotSupported for an unknown name.

    Only the names above are accepted, because numpy would interpret others as pointers, dates or structures. ml_dtypes
    has complex32 from 0.6 on. With older versions an element is a pair of float16, so arrays have an additional last
    axis of length 2.
    """
    import numpy as np  # imported here, because listing records does not need numpy

    name = _QUANTISED.get(name) or _RAW.get(name) or name
    if name in _NUMPY:
        return np.dtype(name)
    if name in _ML_DTYPES:
        import ml_dtypes

        element_type = getattr(ml_dtypes, name, None)
        if element_type is not None:
            kind: np.dtype[Any] = np.dtype(element_type)
            return kind
        if name == "complex32":
            return np.dtype("2float16")
        raise NotSupported(f"the installed ml_dtypes has no type {name!r}", hint="pip install -U ml-dtypes")
    raise NotSupported(
        f"{name[:100]!r} is no element type known to this version", hint="a newer version of ascend-dump may read it"
    )


def memory_of(
    address: int, dtype: str, shape: Sequence[int], stride: Sequence[int], storage_offset: int
) -> Optional[tuple[int, int, int]]:
    """Return (address of the storage, first byte, end) of the memory that a tensor covers; None if it is unknown.

    First byte and end are counted from the address.
    """
    if not address:
        return None
    try:
        size = numpy_dtype(dtype).itemsize
    except NotSupported:
        return None
    begin = storage_offset * size
    elements = sum((length - 1) * step for length, step in zip(shape, stride)) + 1
    return address, begin, begin + max(elements, 1) * size
