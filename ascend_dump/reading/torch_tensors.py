"""Convert recorded values to tensors of PyTorch."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ascend_dump.errors import FrameworkMissing, NotSupported

if TYPE_CHECKING:
    import numpy as np

__all__ = ["as_torch"]

#: Integer types by their size in bytes. Types that numpy lacks are passed to PyTorch as integers of the same size.
_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def as_torch(array: np.ndarray[Any, Any], *, writable: bool) -> Any:
    """Return a tensor of PyTorch with the values of an array: a copy if `writable`, else it shares the array's memory.

    Raises FrameworkMissing without PyTorch, NotSupported for a type that PyTorch lacks.
    """
    import numpy as np

    try:
        torch: Any = import_module("torch")
    except ImportError:
        raise FrameworkMissing(
            "torch() returns a tensor of PyTorch, which is not installed", hint="use numpy(), or install torch"
        ) from None
    if writable or any(stride < 0 for stride in array.strides):
        array = np.array(array)
    name = array.dtype.name
    torch_dtype = None
    if array.dtype.isbuiltin != 1:  # a type of ml_dtypes; `dtype.kind` cannot tell, because numpy calls some floats
        torch_dtype = getattr(torch, name, None)
        if torch_dtype is None or array.dtype.itemsize not in _WORDS or not isinstance(torch_dtype, torch.dtype):
            raise NotSupported(f"PyTorch has no type {name}", hint="use numpy(), and convert the values")
        array = array.view(_WORDS[array.dtype.itemsize])
    try:
        with warnings.catch_warnings():
            # PyTorch has no read-only tensors and warns about read-only arrays.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
            tensor = torch.from_numpy(array)
    except TypeError:
        raise NotSupported(f"this PyTorch has no type {name}", hint="use numpy(), and convert the values") from None
    return tensor if torch_dtype is None else tensor.view(torch_dtype)
