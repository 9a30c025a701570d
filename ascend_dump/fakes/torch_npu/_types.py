"""The tensor types of `torch_npu.npu`, such as `FloatTensor`, and the class that replaces `torch.Generator`."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Generator", "make_tensor_types"]

_TYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


class _TensorType(type):
    """The metaclass of types such as `FloatTensor`.

    Calling the type returns a tensor of its dtype on the device. `isinstance` compares dtype and device.
    """

    dtype: torch.dtype

    def __call__(cls, *values: Any) -> Any:
        if len(values) == 1 and not isinstance(values[0], int):
            return torch.tensor(values[0], dtype=cls.dtype, device="npu")
        return torch.empty(values or (0,), dtype=cls.dtype, device="npu")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "npu" and instance.dtype == cls.dtype


class _StorageType(type):
    """The metaclass of types such as `FloatStorage`. Calling the type returns a storage of its dtype on the device."""

    dtype: torch.dtype

    def __call__(cls, size: int = 0) -> Any:
        storage = torch.UntypedStorage(size * cls.dtype.itemsize, device="npu")
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=cls.dtype, _internal=True)


def make_tensor_types() -> dict[str, Any]:
    """Return the types of tensors and storages in `torch_npu.npu`."""
    types: dict[str, Any] = {}
    for name, dtype in _TYPES.items():
        types[f"{name}Tensor"] = _TensorType(f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.npu"})
        types[f"{name}Storage"] = _StorageType(f"{name}Storage", (), {"dtype": dtype, "__module__": "torch.npu"})
    return types


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]  # the class of a class written in C
    """The metaclass of `Generator`: `isinstance(g, torch.Generator)` is also true for PyTorch's own generators."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(torch._C.Generator, instance)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):  # type: ignore[misc]  # torch is not typed where mypy runs
    """The replacement of `torch.Generator`.

    PyTorch has no generator for a device written in Python. So a generator for the device is one of the host.
    """

    def __new__(cls, device: Any = "cpu") -> Any:
        requested = torch.device(device)
        if requested.type != "npu":
            return torch._C.Generator(requested)
        generator = super().__new__(cls)
        generator._device = torch.device("npu", requested.index or 0)
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        return self._device
