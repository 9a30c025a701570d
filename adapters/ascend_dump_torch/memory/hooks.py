"""Notice that memory changes outside operators: a storage is resized, moved or shared, or another thread may write.

FSDP frees gathered parameters with `resize_(0)`, sending a tensor to another process moves its storage to shared
memory, and numpy writes to the arrays that `Tensor.numpy` returns. Other threads have no dispatch mode, so their
operators are not seen. Bytes still queued for the writer are copied before any of these happens.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function

from ascend_dump_torch._session_protocol import Recording
from ascend_dump_torch.ranks.collectives import WORK

__all__ = ["MemoryGuard"]

#: Methods of storages that write to the memory.
_WRITES = ("__setitem__", "_byteswap", "_swap_data_ptr_", "_set_from_file")
#: Functions that `Tensor.__dlpack__` calls, depending on the version, and their older public names.
_DLPACK = (
    (torch._C, ("_to_dlpack", "_to_dlpack_versioned")),
    (torch.utils.dlpack, ("to_dlpack",)),
    (torch, ("to_dlpack",)),
)


class MemoryGuard:
    """A context that calls the session before memory is freed, moved or shared.

    waits   called with the `Work` of a collective before the program waits for it
    waited  called after the program has waited, with the `Work`, and True if the collective is complete
    """

    def __init__(self, session: Recording, waits: Callable[[Any], None], waited: Callable[[Any, bool], None]) -> None:
        self._session = session
        self._waits = waits
        self._waited = waited
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        tensors = self._session.tensors
        # The names of methods that share memory with another process contain the device. The other process may write
        # to that memory at any time. Moving a storage to shared memory runs operators on the old memory and frees it.
        shares = [name for name in dir(torch.UntypedStorage) if name.startswith("_share_") and name.endswith("_")]
        for kind, names, tell, wrap in (
            (torch.UntypedStorage, ("resize_",), tensors.resize_storage, self._wrap),
            (torch.UntypedStorage, _WRITES, tensors.protect_storage, self._wrap),
            (torch.UntypedStorage, shares, tensors.distrust_storage, self._wrap),
            (torch.Tensor, ("numpy",), tensors.distrust, self._wrap_overridable),
            *((module, names, tensors.distrust, self._wrap) for module, names in _DLPACK),
            (WORK, ("wait",), self._waits, self._wrap_wait),
            (threading.Thread, ("start",), tensors.thread_starts, self._wrap),
        ):
            for name in names:
                if hasattr(kind, name):
                    self._before.append((kind, name, kind.__dict__.get(name)))
                    setattr(kind, name, wrap(getattr(kind, name), tell))

    def __exit__(self, *error: object) -> None:
        for kind, name, original in self._before:
            if original is None:  # inherited
                delattr(kind, name)
            else:
                setattr(kind, name, original)
        self._before = []

    def _wrap(self, method: Any, tell: Any) -> Any:
        session = self._session

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for memory in [*args, *kwargs.values()][:1]:
                with torch._C.DisableTorchFunction():  # the program's handlers must not see the calls of the session
                    session.guard(tell, memory)
            return method(*args, **kwargs)

        return wrapped

    def _wrap_overridable(self, method: Any, tell: Any) -> Any:
        """Do the same as `_wrap`, for a method of tensors that `__torch_function__` may handle."""
        wrapped = self._wrap(method, tell)
        name = method.__name__

        @functools.wraps(method)
        def overridable(*args: Any, **kwargs: Any) -> Any:
            if not has_torch_function(args):
                return wrapped(*args, **kwargs)
            # PyTorch passes the class attribute to the handlers, and they compare it with the original method. So the
            # class has the original method during the call.
            setattr(torch.Tensor, name, method)
            try:
                return wrapped(*args, **kwargs)
            finally:
                # The wrapper is put back, unless the handler has ended the step.
                if torch.Tensor.__dict__.get(name) is method:
                    setattr(torch.Tensor, name, overridable)

        return overridable

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
