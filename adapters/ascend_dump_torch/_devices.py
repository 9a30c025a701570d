"""Find the accelerators of this process (CUDA, NPUs and others), which run operators asynchronously.

Copies to the host are waited for before their result is read, and nothing is read while a device captures a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

__all__ = ["BACKENDS", "Devices", "find_devices", "privateuse1"]


def privateuse1() -> str:
    """Return the device type that another package registered: "npu" after torch_npu is imported."""
    name: str = torch._C._get_privateuse1_backend_name()
    return name


#: Dispatch keys by device type, without the type that another package registers (`privateuse1`).
BACKENDS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "mtia": "MTIA", "hpu": "HPU"}


class Devices:
    """The accelerators that this process may use, given by their device types, such as "cuda" and "npu"."""

    def __init__(self, names: Sequence[str]) -> None:
        self._modules: list[Any] = [getattr(torch, name, None) for name in names]
        self._graphs = [
            (name, module)
            for name, module in zip(names, self._modules)
            if hasattr(module, "is_current_stream_capturing")
        ]

    def graph(self) -> str:
        """Return the type of a device that is capturing a graph, else "".

        Reading a tensor of that device would break its capture.
        """
        for name, module in self._graphs:
            if _in_use(module) and module.is_current_stream_capturing():
                return name
        return ""

    def wait_for_copies(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Wait for the devices of the inputs of an operator, if one of its outputs is on the host.

        An operator that copies to the host with `non_blocking=True` returns before its output has the values.
        """
        if any(map(_in_use, self._modules)) and any(tensor.is_cpu for tensor in outputs):
            for tensor in inputs:
                if not (tensor.is_cpu or tensor.is_meta):
                    _wait(tensor.device)


def find_devices() -> Optional[Devices]:
    """Return the accelerators of PyTorch or of another package; None if there is only the CPU."""
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
        except RuntimeError:  # PyTorch 2.6 raises it without an accelerator
            return []
        return [] if current is None else [current.type]
    # Before PyTorch 2.6.
    built = {"xpu": torch.xpu._is_compiled, "mps": torch.backends.mps.is_built}
    return [name for name, is_built in built.items() if is_built()]


def _in_use(module: Any) -> bool:
    """Return True if this process already uses the device. Other queries would initialize an unused device."""
    return not hasattr(module, "is_initialized") or bool(module.is_initialized())


def _wait(device: torch.device) -> None:
    """Synchronize the current stream of a device; nothing to do for a device without streams."""
    modules: list[Any] = [getattr(torch, device.type, None), getattr(torch, "accelerator", None)]
    for module in modules:
        if hasattr(module, "current_stream"):
            module.current_stream(device).synchronize()
            return
        if hasattr(module, "synchronize"):  # MPS, which has only one stream
            module.synchronize()
            return
