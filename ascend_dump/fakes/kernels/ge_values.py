"""Conversions between GE's type numbers, PyTorch's tensors and the arrays of the simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_dump import NotSupported
from ascend_dump.native.cann import dtypes

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.fakes.kernels.ge_model import RawTensor

    _Array = np.ndarray[Any, Any]

__all__ = ["constant", "from_array", "ge_number", "to_array", "to_tensor", "torch_dtype"]

#: torch's types that numpy has only through ml_dtypes, and the type of their bits.
_BITS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e8m0fnu": "uint8",
}


def torch_dtype(number: int) -> Any:
    """The torch.dtype of a ge::DataType. Raises NotSupported for a type torch has not."""
    return _torch_dtype(dtypes.from_ge(number))


def _torch_dtype(number: int) -> Any:
    """As `torch_dtype`, by the number of a dump file's header."""
    import torch

    kind = dtypes.data_type(number)
    found = getattr(torch, kind.numpy, None) if kind.storage == "plain" else None
    if not isinstance(found, torch.dtype):
        raise NotSupported(f"torch has no type for GE's {kind.name}", hint="the simulated device computes with torch")
    return found


def ge_number(dtype: Any) -> int:
    """The ge::DataType of a torch.dtype. Raises NotSupported for a type GE has not."""
    name = str(dtype).rpartition(".")[2]
    for number in range(1, 42):
        kind = dtypes.data_type(number)
        if kind.storage == "plain" and kind.numpy == name:
            return dtypes.to_ge(number)
    raise NotSupported(f"GE has no type for {dtype}", hint="cast the tensor before it enters the graph")


def constant(value: RawTensor) -> Any:
    """The tensor of a Const. Raises NotSupported for a type torch has not."""
    import torch

    dtype = _torch_dtype(value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)


def to_array(tensor: Any) -> _Array:
    """The values of a tensor; the same memory where it lies there in order, so it is read at once or copied."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    bits = _BITS.get(str(plain.dtype).rpartition(".")[2])
    if bits is None:
        found: _Array = plain.numpy()
        return found
    import ml_dtypes  # noqa: F401  (numpy knows its types by name from here on)
    import numpy as np

    return np.asarray(plain.view(getattr(torch, bits)).numpy()).view(str(plain.dtype).rpartition(".")[2])


def from_array(array: _Array) -> Any:
    """A tensor with the values of an array, in the same memory where that can be written."""
    import numpy as np
    import torch

    plain = np.ascontiguousarray(array).reshape(-1)
    raw = torch.from_numpy((plain if plain.flags.writeable else plain.copy()).view(np.uint8))
    return raw.view(getattr(torch, array.dtype.name)).reshape(array.shape)


def to_tensor(array: _Array, like: Any) -> Any:
    """A tensor of `like`'s type with the bytes of an array; a copy."""
    import numpy as np
    import torch

    raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return raw.view(like.dtype).reshape(like.shape)
