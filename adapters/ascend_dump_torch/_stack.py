"""Insert a dispatch mode below the user's modes, and remove it from any position.

A step begins inside the target's call. There the user may have entered modes that end before the step does
(`with FlopCounterMode(): model(x)`). PyTorch can only pop the mode at the top of the stack, so our mode must be at the
bottom. To insert or remove it, the user's modes above it are popped and pushed again. This is done with `__enter__` and
`__exit__` of the base class, because the overrides in the user's modes may have side effects.

When a `torch.inference_mode` block ends, PyTorch restores the dispatch keys that the thread had when the block began.
If a step began or ended inside the block, these keys no longer match the active modes: nothing more is recorded, or
operators without tensors fail in the user's program. So the keys are set again from the modes after each such block.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

__all__ = ["align", "follow_inference_mode", "insert", "is_active", "remove"]

#: The dispatch keys that PyTorch includes while a thread has modes.
_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
#: One object per capture that follows `torch.inference_mode`. Captures may end in any order, and the last one that ends
#: restores `torch.inference_mode.__exit__`.
_followers: list[object] = []


def insert(mode: TorchDispatchMode) -> None:
    """Activate `mode` in this thread, below all active user modes."""
    above = _user_modes()
    _leave(above)
    try:
        TorchDispatchMode.__enter__(mode)
    finally:
        _return(above)


def remove(mode: TorchDispatchMode) -> bool:
    """Deactivate `mode` in this thread. Returns False if it is not active in this thread."""
    modes = _user_modes()
    position = next((i for i, active in enumerate(modes) if active is mode), -1)
    if position < 0:
        return False
    above = modes[position + 1 :]
    _leave(above)
    try:
        TorchDispatchMode.__exit__(mode, None, None, None)
    finally:
        _return(above)
    return True


def follow_inference_mode() -> Callable[[], None]:
    """Call `align` after each `torch.inference_mode` block, until the returned function is called."""
    if not _followers:
        _align_after(torch.inference_mode.__exit__)
    follower = object()
    _followers.append(follower)

    def unfollow() -> None:
        if follower in _followers:
            _followers.remove(follower)
            if not _followers:
                torch.inference_mode.__exit__ = torch.inference_mode.__exit__.__wrapped__

    return unfollow


def _align_after(leave: Any) -> None:
    @functools.wraps(leave)
    def leave_aligned(block: Any, *error: Any) -> None:
        leave(block, *error)
        align()

    torch.inference_mode.__exit__ = leave_aligned


def align() -> None:
    """Set the dispatch keys of this thread so that they match its active modes."""
    active = depth() > 0
    for key in _KEYS:
        torch._C._dispatch_tls_set_dispatch_key_included(key, active)


def is_active(mode: TorchDispatchMode) -> bool:
    """Return True if the mode is active in this thread. Autograd threads inherit the modes of the caller."""
    return any(active is mode for active in _get_current_dispatch_mode_stack())


def _user_modes() -> list[Any]:
    """Return the active modes from bottom to top, without infra modes such as fake tensors.

    PyTorch keeps its infra modes in separate slots, so they are no obstacle to inserting a mode.
    """
    return [
        mode
        for mode in _get_current_dispatch_mode_stack()
        if getattr(mode, "_mode_key", None) is None and isinstance(mode, TorchDispatchMode)
    ]


def _leave(modes: list[Any]) -> None:
    for mode in reversed(modes):
        TorchDispatchMode.__exit__(mode, None, None, None)


def _return(modes: list[Any]) -> None:
    for mode in modes:
        TorchDispatchMode.__enter__(mode)


def depth() -> int:
    """Return the number of modes that are active in this thread."""
    count: int = torch._C._len_torch_dispatch_stack()
    return count
