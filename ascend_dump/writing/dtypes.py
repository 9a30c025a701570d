"""Names of element types in host dumps, and numpy's type for each."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ascend_dump._errors import NotSupported

__all__ = ["numpy_dtype"]

#: Types numpy has no arithmetic for, by the type their elements are read as. complex32 is a
#: pair of float16; the quantised types read as the integers they store.
_STORED_AS = {
    "complex32": "2float16",
    "qint8": "int8",
    "quint8": "uint8",
    "qint32": "int32",
    "quint4x2": "uint8",
    "quint2x4": "uint8",
}


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy or ml_dtypes type for a name. Raises NotSupported for an unknown one."""
    name = _STORED_AS.get(name, name)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        try:
            return np.dtype(getattr(ml_dtypes, name))
        except (AttributeError, TypeError):
            raise NotSupported(
                f"the installed ml_dtypes has no type {name!r}", hint="pip install -U ml-dtypes"
            ) from None
