"""Writes to memory that do not pass through the dispatcher: storages resized or moved away.

FSDP frees gathered parameters with `resize_(0)`, sending a tensor to another process moves its
storage to shared memory. A payload that is still queued must be copied before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ascend_dump_torch._session import Session

__all__ = ["StorageGuard"]

_METHODS = ("resize_", "_share_fd_cpu_", "_share_filename_cpu_")


class StorageGuard:
    """While installed, `torch.UntypedStorage` tells the session before it lets memory go."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: dict[str, Any] = {}

    def install(self) -> None:
        for name in _METHODS:
            if hasattr(torch.UntypedStorage, name):
                self._before[name] = torch.UntypedStorage.__dict__.get(name)
                setattr(torch.UntypedStorage, name, self._wrap(getattr(torch.UntypedStorage, name)))

    def remove(self) -> None:
        for name, own in self._before.items():
            if own is None:  # inherited
                delattr(torch.UntypedStorage, name)
            else:
                setattr(torch.UntypedStorage, name, own)
        self._before = {}

    def _wrap(self, method: Any) -> Any:
        session = self._session

        def wrapped(storage: Any, *args: Any, **kwargs: Any) -> Any:
            session.guard(session.tensors.protect_storage, storage)
            return method(storage, *args, **kwargs)

        return wrapped
