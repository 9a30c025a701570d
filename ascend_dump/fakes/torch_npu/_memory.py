"""Marks of the tensors on the simulated NPU, whose bytes stay on the host.

A storage is marked when a tensor is moved or created there, and when it is the output of an operator on marked ones.
Views, parameters and the tensors that autograd saves share storages, so they need no marks of their own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

__all__ = ["DeviceMemory", "DeviceMode", "is_npu"]

_NPU = re.compile(r"npu(?::(\d{1,3}))?", re.ASCII)
#: Marks of freed storages are dropped after so many new marks.
_PURGE = 4096


def is_npu(device: Any) -> bool:
    """Return True for a `device=` argument that means the NPU."""
    return isinstance(device, str) and _NPU.fullmatch(device) is not None


class DeviceMemory:
    """The marks of one installation."""

    def __init__(self) -> None:
        # The weak reference keeps the handle's address from being used again.
        self._marked: dict[int, StorageWeakRef] = {}
        self._purge_at = _PURGE
        #: Operators without tensor inputs create their outputs on the NPU.
        self.creating = False
        #: Operators are copies between host and NPU, no kernels.
        self.copying = False

    def holds(self, tensor: Any) -> bool:
        storage = _storage(tensor)
        mark = None if storage is None else self._marked.get(storage._cdata)
        return mark is not None and not mark.expired()

    def mark(self, tensor: Any) -> None:
        storage = _storage(tensor)
        if storage is None:
            return
        self._marked[storage._cdata] = StorageWeakRef(storage)
        if len(self._marked) > self._purge_at:
            self._marked = {cdata: ref for cdata, ref in self._marked.items() if not ref.expired()}
            self._purge_at = len(self._marked) + _PURGE

    def to_npu(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the NPU, or the tensor itself if it is there already."""
        if self.holds(tensor):
            return tensor
        with self.copies():
            copied = tensor.clone()
        self.mark(copied)
        return copied

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host."""
        with self.copies():
            return tensor.clone() if self.holds(tensor) else tensor

    @contextlib.contextmanager
    def copies(self) -> Iterator[None]:
        before, self.copying = self.copying, True
        try:
            yield
        finally:
            self.copying = before


class DeviceMode(TorchFunctionMode):
    """Handle `device="npu:0"`, `.to("npu")`, `.cpu()` and functions that accept host tensors only."""

    def __init__(self, memory: DeviceMemory, lazy_init: Callable[[], None]) -> None:
        super().__init__()
        self._memory = memory
        self._lazy_init = lazy_init

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        memory = self._memory
        name = getattr(func, "__name__", "")
        if name in ("numpy", "__array__") and args and memory.holds(args[0]):
            raise TypeError(
                "can't convert npu:0 device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        if name == "cpu" and args and isinstance(args[0], torch.Tensor):
            return memory.to_host(func(*args, **kwargs))
        device = kwargs.get("device")
        if name in ("to", "new_tensor") and device is None and len(args) > 1:
            device = args[1]
        if is_npu(device):
            self._lazy_init()
            kwargs = {key: "cpu" if is_npu(value) else value for key, value in kwargs.items()}
            args = tuple("cpu" if is_npu(value) else value for value in args)
            if name == "to":
                return memory.to_npu(func(*args, **kwargs))
            return self._create(func, args, kwargs)
        if name == "to" and _is_host(device) and args and memory.holds(args[0]):
            return memory.to_host(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        memory = self._memory
        before, memory.creating = memory.creating, True
        try:
            created = func(*args, **kwargs)
        finally:
            memory.creating = before
        for tensor in tree_iter(created):
            memory.mark(tensor)
        return created


def _is_host(device: Any) -> bool:
    return device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")


def _storage(tensor: Any) -> Optional[Any]:
    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass that wraps others
        return None
