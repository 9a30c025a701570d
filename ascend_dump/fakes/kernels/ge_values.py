"""Conversions between numbers of GE's types, tensors of PyTorch, and numpy arrays of the simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.native.cann import dtypes

if TYPE_CHECKING:
    from ascend_dump.fakes.kernels.ge_model import RawTensor

    _Array = np.ndarray[Any, Any]

__all__ = ["constant", "from_array", "ge_number", "to_array", "to_tensor", "torch_dtype"]

#: Types that numpy has only with ml_dtypes -> the integer type under which their bits are converted.
_BITS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e8m0fnu": "uint8",
}


def torch_dtype(number: int) -> Any:
    """Return the torch.dtype for a number of ge::DataType. Raises NotSupported for a type that torch lacks."""
    return _torch_dtype(dtypes.from_ge(number))


def _torch_dtype(number: int) -> Any:
    """Return the torch.dtype for a type number as in headers of dump files. Raises NotSupported if torch lacks it."""
    import torch

    kind = dtypes.data_type(number)
    dtype = getattr(torch, kind.numpy, None) if kind.storage == "plain" else None
    if not isinstance(dtype, torch.dtype):
        raise NotSupported(f"torch has no type for GE's {kind.name}", hint="the simulated device computes with torch")
    return dtype


def ge_number(dtype: Any) -> int:
    """Return the number in ge::DataType for a torch.dtype. Raises NotSupported for a type that GE lacks."""
    name = str(dtype).rpartition(".")[2]
    for number in range(1, 42):
        kind = dtypes.data_type(number)
        if kind.storage == "plain" and kind.numpy == name:
            return dtypes.to_ge(number)
    raise NotSupported(f"GE has no type for {dtype}", hint="cast the tensor before it enters the graph")


def constant(value: RawTensor) -> Any:
    """Return the value of an operator Const as a tensor. Raises NotSupported for a type that torch lacks."""
    import torch

    dtype = _torch_dtype(value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)


def to_array(tensor: Any) -> _Array:
    """Return the values of a tensor as an array.

    The array shares the memory of a contiguous tensor. So read it before the tensor changes, or copy it.
    """
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    bits = _BITS.get(str(plain.dtype).rpartition(".")[2])
    if bits is None:
        array: _Array = plain.numpy()
        return array
    import ml_dtypes  # noqa: F401  (its import lets numpy accept names such as "bfloat16")

    return np.asarray(plain.view(getattr(torch, bits)).numpy()).view(str(plain.dtype).rpartition(".")[2])


def from_array(array: _Array) -> Any:
    """Return a tensor with the values of an array. It shares the memory of a writeable, contiguous array."""
    import torch

    plain = np.ascontiguousarray(array).reshape(-1)
    raw = torch.from_numpy((plain if plain.flags.writeable else plain.copy()).view(np.uint8))
    return raw.view(getattr(torch, array.dtype.name)).reshape(array.shape)


def to_tensor(array: _Array, like: Any) -> Any:
    """Return a new tensor with the type and shape of `like`, and the bytes of an array."""
    import torch

    raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return raw.view(like.dtype).reshape(like.shape)
