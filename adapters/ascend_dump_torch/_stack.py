"""Put a dispatch mode below the user's own modes, and take it out again from wherever it is.

A step begins inside the target's call, where the user may have entered modes of their own
(`with FlopCounterMode(): model(x)`) that end before the step does. Modes are popped from the
top, so ours must lie at the bottom: there each mode still removes itself. The base class's
enter and exit keep PyTorch's bookkeeping flags; the overridden ones of the user's modes are not
called, they may have effects.

`torch.inference_mode` puts the thread's dispatch keys back as they were when it was entered,
whatever modes came or went in between. A step that begins or ends in such a block would leave
keys and modes at odds: nothing recorded any more, or operators without tensors failing in the
user's program. So after each such block the keys are set by the modes again.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

__all__ = ["align", "follow_inference_mode", "insert", "is_active", "remove"]

#: What PyTorch itself sets while a thread has modes.
_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
#: Captures of decorated functions end in any order, so only the last of them puts the method back.
_followers: list[object] = []


def insert(mode: TorchDispatchMode) -> None:
    """Activate `mode` in this thread, below every user mode that is active."""
    above = _user_modes()
    _leave(above)
    try:
        TorchDispatchMode.__enter__(mode)
    finally:
        _return(above)


def remove(mode: TorchDispatchMode) -> bool:
    """Deactivate `mode` in this thread; False when it is not active here."""
    modes = _user_modes()
    place = next((i for i, one in enumerate(modes) if one is mode), -1)
    if place < 0:
        return False
    above = modes[place + 1 :]
    _leave(above)
    try:
        TorchDispatchMode.__exit__(mode, None, None, None)
    finally:
        _return(above)
    return True


def follow_inference_mode() -> Callable[[], None]:
    """Align keys and modes after each `torch.inference_mode` block, until the returned function is called."""
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
    """Have this thread dispatch to the modes that it has: a block that was entered before anybody followed does not."""
    active = depth() > 0
    for key in _KEYS:
        torch._C._dispatch_tls_set_dispatch_key_included(key, active)


def is_active(mode: TorchDispatchMode) -> bool:
    """Whether this thread has the mode: threads in which PyTorch runs a backward pass have those of the caller."""
    return any(one is mode for one in _get_current_dispatch_mode_stack())


def _user_modes() -> list[Any]:
    """Active modes from bottom to top, without PyTorch's own, which are kept in other slots."""
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
    """How many modes are active in this thread."""
    count: int = torch._C._len_torch_dispatch_stack()
    return count
