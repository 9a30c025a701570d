"""Writes to memory that do not pass through the dispatcher: storages resized, moved or shared.

FSDP frees gathered parameters with `resize_(0)`, sending a tensor to another process moves its
storage to shared memory, and numpy writes to the arrays that `Tensor.numpy` gives it. A payload
that is still queued must be copied before that, and before another thread begins, whose operators nobody sees.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

import torch

from ascend_dump_torch._collectives import WORK

if TYPE_CHECKING:
    from ascend_dump_torch._session import TorchSession

__all__ = ["MemoryGuard"]

_WRITES = ("resize_", "__setitem__", "_byteswap", "_swap_data_ptr_", "_set_from_file")
#: What gives the memory to others, who may write to it at any time from then on. Moving to shared
#: memory runs operators on the old memory before it frees it.
_SHARES = ("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_")
_SHARES_TENSOR = ("numpy", "__dlpack__")


class MemoryGuard:
    """A context in which storages and tensors tell the session before memory is let go or shared.

    waits   is called with what a collective gave to wait for, before the program does
    waited  is called after it has, with whether the collective is complete
    """

    def __init__(
        self, session: TorchSession, waits: Callable[[Any], None], waited: Callable[[Any, bool], None]
    ) -> None:
        self._session = session
        self._waits = waits
        self._waited = waited
        self._before: list[tuple[type, str, Any]] = []

    def __enter__(self) -> None:
        tensors = self._session.tensors
        for kind, names, tell, wrap in (
            (torch.UntypedStorage, _WRITES, tensors.protect_storage, self._wrap),
            (torch.UntypedStorage, _SHARES, tensors.distrust_storage, self._wrap),
            (torch.Tensor, _SHARES_TENSOR, tensors.distrust, self._wrap),
            (WORK, ("wait",), self._waits, self._wrap_wait),
            (threading.Thread, ("start",), tensors.thread_starts, self._wrap),
        ):
            for name in names:
                if hasattr(kind, name):
                    self._before.append((kind, name, kind.__dict__.get(name)))
                    setattr(kind, name, wrap(getattr(kind, name), tell))

    def __exit__(self, *error: object) -> None:
        for kind, name, own in self._before:
            if own is None:  # inherited
                delattr(kind, name)
            else:
                setattr(kind, name, own)
        self._before = []

    def _wrap(self, method: Any, tell: Any) -> Any:
        session = self._session

        def wrapped(memory: Any, *args: Any, **kwargs: Any) -> Any:
            session.guard(tell, memory)
            return method(memory, *args, **kwargs)

        return wrapped

    def _wrap_wait(self, method: Any, tell: Any) -> Any:
        session = self._session
        waited = self._waited

        def wrapped(work: Any, *args: Any, **kwargs: Any) -> Any:
            session.guard(tell, work)
            complete = False
            try:
                done = method(work, *args, **kwargs)
                complete = done is not False
            finally:
                session.guard(waited, work, complete)
            return done

        return wrapped
