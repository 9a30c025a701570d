"""Run compiled code operator by operator while a step is recorded."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import torch

from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet

__all__ = ["can_force_eager", "force_eager"]


def can_force_eager() -> bool:
    """Whether PyTorch can run compiled code eagerly: since 2.6."""
    return hasattr(torch.compiler, "set_stance")


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Run compiled code eagerly, if there is any in this process."""
    if "torch._dynamo" not in sys.modules or not can_force_eager():
        yield
        return
    keep_hooks_quiet()
    entry = warnings.filters[0]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        with contextlib.suppress(ValueError):  # the user has replaced the filters
            warnings.filters.remove(entry)  # type: ignore[attr-defined]  # typed as a Sequence
