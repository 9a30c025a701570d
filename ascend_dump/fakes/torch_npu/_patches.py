"""Changes of the fake `torch_npu` to the real PyTorch, for the duration of its installation."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable

import torch

from ascend_dump.fakes.torch_npu._kernels import KernelMode
from ascend_dump.fakes.torch_npu._memory import DeviceMemory, DeviceMode, is_npu

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["patched"]

_ABSENT = object()


@contextlib.contextmanager
def patched(npu: Npu, torch_npu_npu: ModuleType) -> Iterator[None]:
    """Register the backend as torch_npu does, and enter the modes that report operators to the device."""
    memory = DeviceMemory()
    lazy_init: Callable[[], None] = torch_npu_npu._lazy_init
    with contextlib.ExitStack() as undo:
        for owner, name, value in (
            (torch, "npu", torch_npu_npu),
            (torch.Tensor, "is_npu", property(memory.holds)),
            (torch.Tensor, "npu", _to_npu(memory, lazy_init)),
            (torch.nn.Module, "npu", _module_to_npu(memory, lazy_init)),
            (torch.nn.Module, "to", _module_to(memory, lazy_init)),
            (torch.nn.Module, "cpu", _module_to_host(memory)),
        ):
            undo.callback(_put, owner, name, owner.__dict__.get(name, _ABSENT))
            setattr(owner, name, value)
        _rename_hccl(undo)
        undo.enter_context(DeviceMode(memory, lazy_init))
        undo.enter_context(KernelMode(npu, memory))
        yield


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _to_npu(memory: DeviceMemory, lazy_init: Callable[[], None]) -> Any:
    def npu(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
        """Return a copy on the NPU."""
        lazy_init()
        return memory.to_npu(self)

    return npu


def _module_to_npu(memory: DeviceMemory, lazy_init: Callable[[], None]) -> Any:
    def npu(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        """Move parameters and buffers to the NPU."""
        lazy_init()
        return self._apply(memory.to_npu)

    return npu


def _module_to(memory: DeviceMemory, lazy_init: Callable[[], None]) -> Any:
    plain = torch.nn.Module.to

    @functools.wraps(plain)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device = kwargs.get("device", args[0] if args else None)
        options = args[1:] if args and args[0] is device else args
        keywords = {name: value for name, value in kwargs.items() if name != "device"}
        if is_npu(device):
            lazy_init()
            if options or keywords:
                plain(self, *options, **keywords)
            return self._apply(memory.to_npu)
        plain(self, *args, **kwargs)
        if device is not None and str(device) == "cpu":
            self._apply(memory.to_host)
        return self

    return to


def _module_to_host(memory: DeviceMemory) -> Any:
    def cpu(self: torch.nn.Module) -> torch.nn.Module:
        return self._apply(memory.to_host)

    return cpu


def _rename_hccl(undo: contextlib.ExitStack) -> None:
    """Let torch.distributed accept "hccl" for "gloo"."""
    import torch.distributed as distributed

    if not distributed.is_available():
        return
    for name in ("init_process_group", "new_group"):
        plain = getattr(distributed, name)
        undo.callback(setattr, distributed, name, plain)
        setattr(distributed, name, _with_gloo(plain))


def _with_gloo(plain: Any) -> Any:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_gloo(value) for value in args)
        kwargs = {name: _gloo(value) for name, value in kwargs.items() if not (name == "device_id" and is_npu(value))}
        return plain(*args, **kwargs)

    return call


def _gloo(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("hccl", "npu:hccl", "cpu:gloo,npu:hccl"):
        return "gloo"
    return value
