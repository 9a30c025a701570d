"""A base class for adapters of PyTorch on any device. This module does not import PyTorch."""

from __future__ import annotations

import sys
from typing import Any

from ascend_dump.adapter._contract import Adapter

__all__ = ["PyTorchAdapter", "is_torchrun"]


class PyTorchAdapter(Adapter):
    """An adapter that captures a module, or a whole process: its modules, and functions compiled by `torch.compile`."""

    def accepts(self, target: Any) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or self.framework not in sys.modules:
            return False
        return target is None or isinstance(target, torch.nn.Module)

    def only_starts_others(self) -> bool:
        return is_torchrun()

    def wait(self) -> None:
        from ascend_dump.adapter.pytorch.compiled import keep_compiled

        keep_compiled()


def is_torchrun() -> bool:
    """Return True if this process is torchrun, which imports torch, but starts other processes to run the model."""
    # With `python -m torch.distributed.run` the module is only known as `__main__`.
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "torch.distributed.run" in sys.modules or getattr(main, "name", "") == "torch.distributed.run"
