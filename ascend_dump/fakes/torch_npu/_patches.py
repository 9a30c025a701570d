"""The changes that the fake `torch_npu` makes to PyTorch while it is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ascend_dump.fakes.torch_npu import _backend
from ascend_dump.fakes.torch_npu._distributed import register_hccl
from ascend_dump.fakes.torch_npu._kernels import KernelLauncher
from ascend_dump.fakes.torch_npu._replace import replace
from ascend_dump.fakes.torch_npu._types import Generator

if TYPE_CHECKING:
    from ascend_dump.fakes.torch_npu._modules import Process

__all__ = ["patched"]

#: Functions of `torch.accelerator` that PyTorch cannot run for a device written in Python.
_ACCELERATOR = (
    *("synchronize", "empty_cache", "memory_allocated", "max_memory_allocated"),
    *("memory_reserved", "max_memory_reserved", "memory_stats", "reset_peak_memory_stats"),
)
#: The classes of PyTorch that get methods such as `npu` and `is_npu`.
_OWNERS = (
    *(torch.Tensor, torch.nn.Module, torch.nn.utils.rnn.PackedSequence),
    *(torch.storage._StorageBase, torch.UntypedStorage, torch.TypedStorage),
)


class _Devices:
    """The devices of a process. All are the same simulated device, which gets the number of the device in use."""

    def __init__(self, process: Process, current_stream: Callable[[int], Any]) -> None:
        self._npu = process.runtime.npu
        self._process = process
        self._launcher = KernelLauncher(self._npu)
        self._current_stream = current_stream

    def use(self, index: Optional[int]) -> int:
        runtime = self._process.runtime
        runtime.lazy_init()
        # PyTorch passes 0 for a device without a number. So 0 means the current device here.
        number = index or runtime.current
        runtime.check_device(number)
        return number

    def allocated(self, tensor: torch.Tensor) -> None:
        self._process.memory_of(tensor.device).add(tensor.untyped_storage())

    def launch(self, index: int, operands: Sequence[torch.Tensor], func: Any, args: Any, kwargs: Any) -> Any:
        if self._npu.device_id != index:
            self._npu.use_device(index)
        return self._launcher(func, args, kwargs, operands, stream=self._current_stream(index).stream_id)


@contextlib.contextmanager
def patched(process: Process, torch_npu_npu: Any) -> Iterator[None]:
    """Install the device in PyTorch, as importing torch_npu does, and undo all changes at the end of the block.

    torch_npu_npu: the module `torch_npu.npu`, which becomes `torch.npu`.
    """
    register_hccl()
    if not hasattr(torch, "npu"):
        torch.npu = _without_devices()
    devices = _Devices(process, torch_npu_npu.current_stream)
    names = (name for name in _ACCELERATOR if hasattr(torch.accelerator, name))
    with contextlib.ExitStack() as undo:
        undo.callback(torch._C._set_multithreading_enabled, torch._C._is_multithreading_enabled())
        undo.enter_context(replace((torch, "npu", torch_npu_npu), (torch, "Generator", Generator)))
        undo.enter_context(replace(*((torch.accelerator, name, getattr(torch_npu_npu, name)) for name in names)))
        # The function caches the module of each device.
        torch.get_device_module.cache_clear()
        undo.callback(torch.get_device_module.cache_clear)
        sys.modules["torch.npu"] = torch_npu_npu
        undo.callback(sys.modules.pop, "torch.npu", None)
        undo.enter_context(_methods())
        undo.enter_context(_pinned_memory())
        _backend.installations.append(devices)
        undo.callback(_backend.installations.remove, devices)
        undo.push(process.imported)
        yield


def _without_devices() -> ModuleType:
    """Return the module `torch.npu` for the time when no fake is installed. It reports that there is no device.

    It is needed because PyTorch keeps the device type `npu`, and `torch.compile` asks the module of each device type.
    """
    module = ModuleType("torch.npu")
    functions: dict[str, Any] = {"is_available": bool, "device_count": int, "is_initialized": bool}
    # PyTorch does not seed the device of a process for which `_is_in_bad_fork` returns True.
    functions.update(_is_in_bad_fork=lambda: True, manual_seed_all=lambda seed: None)
    vars(module).update(functions)
    return module


@contextlib.contextmanager
def _pinned_memory() -> Iterator[None]:
    """Let pinned memory be ordinary host memory, because PyTorch cannot pin memory for a device written in Python."""
    pinned = WeakTensorKeyDictionary()

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        copied = self if self in pinned else self.clone()
        pinned[copied] = True
        return copied

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return self in pinned

    with replace((torch.Tensor, "pin_memory", pin_memory), (torch.Tensor, "is_pinned", is_pinned)):
        yield


@contextlib.contextmanager
def _methods() -> Iterator[None]:
    """Add the methods for the device, such as `Tensor.npu` and `Module.npu`, and remove them at the end."""
    before = {owner: dict(vars(owner)) for owner in _OWNERS}
    try:
        if not hasattr(torch.Tensor, "is_npu"):  # an outer installation may have added them
            torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        with replace(
            (torch.UntypedStorage, "__new__", _new_storage),
            (torch.UntypedStorage, "resize_", _resize_storage),
            (torch.UntypedStorage, "resizable", lambda self: True),
        ):
            yield
    finally:
        for owner, names in before.items():
            for name in vars(owner).keys() - names:
                delattr(owner, name)


_plain_resize = torch.UntypedStorage.resize_
_plain_new = torch.UntypedStorage.__new__


def _new_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Return a new storage. On the device it is made of a host tensor: PyTorch cannot allocate memory there."""
    if device is None or torch.device(device).type != "npu":
        return _plain_new(cls, *args, **kwargs, **({} if device is None else {"device": device}))
    size = args[0] if args else kwargs.get("size", 0)
    bytes_ = torch.empty(size, dtype=torch.uint8) if isinstance(size, int) else torch.tensor(size, dtype=torch.uint8)
    return bytes_.to(device).untyped_storage()


def _resize_storage(self: torch.UntypedStorage, size: int) -> Any:
    return _backend.resize_storage(self, size) if self.device.type == "npu" else _plain_resize(self, size)
