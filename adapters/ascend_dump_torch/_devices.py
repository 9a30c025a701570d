"""CUDA, which works on after an operator has returned."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["HAS_CUDA", "is_recording_graph", "wait_for_copies"]

#: Whether this build of PyTorch knows CUDA or ROCm.
HAS_CUDA: bool = torch.backends.cuda.is_built()


def is_recording_graph() -> bool:
    """Whether operators go into a CUDA graph right now: reading a tensor would spoil the graph."""
    # Asking would create a context where the process has none.
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def wait_for_copies(given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> None:
    """Wait until what an operator copied to the host is there; `non_blocking=True` lets it arrive later."""
    if torch.cuda.is_initialized() and any(tensor.is_cpu for tensor in made):
        for tensor in given:
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
