"""Devices beside the host, which work on after an operator has returned: CUDA, NPUs and what else PyTorch knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

__all__ = ["BACKENDS", "Devices", "find_devices", "privateuse1"]


def privateuse1() -> str:
    """What devices of other packages are called here: "npu" where torch_npu is imported."""
    name: str = torch._C._get_privateuse1_backend_name()
    return name


#: The dispatch keys of kernels for one kind of device, by its name; that of other packages is `privateuse1`.
BACKENDS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "mtia": "MTIA", "hpu": "HPU"}


class Devices:
    """The kinds of devices beside the CPU that this process may use."""

    def __init__(self, names: Sequence[str]) -> None:
        self._modules: list[Any] = [getattr(torch, name, None) for name in names]
        self._graphs = [
            (name, module)
            for name, module in zip(names, self._modules)
            if hasattr(module, "is_current_stream_capturing")
        ]

    def graph(self) -> str:
        """The kind of device into whose graph operators go right now: reading a tensor would spoil it."""
        for name, module in self._graphs:
            if _in_use(module) and module.is_current_stream_capturing():
                return name
        return ""

    def wait_for_copies(self, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """Wait until what an operator copied to the host is there; `non_blocking=True` lets it arrive later."""
        if any(map(_in_use, self._modules)) and any(tensor.is_cpu for tensor in made):
            for tensor in given:
                if not (tensor.is_cpu or tensor.is_meta):
                    _wait(tensor.device)


def find_devices() -> Optional[Devices]:
    """What this PyTorch is built for or another package has added; None where that is the CPU alone."""
    names = ["cuda"] if torch.backends.cuda.is_built() else []
    if hasattr(torch, privateuse1()):
        names.append(privateuse1())
    if not names:
        names += _accelerators()
    return Devices(names) if names else None


def _accelerators() -> list[str]:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        try:
            current = accelerator.current_accelerator()
        except RuntimeError:  # PyTorch 2.6 says so that there is none
            return []
        return [] if current is None else [current.type]
    # Before PyTorch 2.6.
    built = {"xpu": torch.xpu._is_compiled, "mps": torch.backends.mps.is_built}
    return [name for name, is_built in built.items() if is_built()]


def _in_use(module: Any) -> bool:
    """Whether this process has begun to use such a device: other questions would begin to."""
    return not hasattr(module, "is_initialized") or bool(module.is_initialized())


def _wait(device: torch.device) -> None:
    """Return when the device has done what it was given by this thread; one without streams has done it already."""
    modules: list[Any] = [getattr(torch, device.type, None), getattr(torch, "accelerator", None)]
    for module in modules:
        if hasattr(module, "current_stream"):
            module.current_stream(device).synchronize()
            return
        if hasattr(module, "synchronize"):  # MPS, with one stream
            module.synchronize()
            return
