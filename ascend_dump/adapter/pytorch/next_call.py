"""Detect the next top-level call in a running program, from another thread and without registering hooks.

PyTorch iterates over its dictionaries of hooks while a module is called, so another thread must not change them.
Replacing `torch.nn.Module.__call__` is atomic, so it is replaced until the next call. The thread that makes this call
then registers the hooks.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any, Callable

import torch

from ascend_dump.adapter._contract import Begin
from ascend_dump.adapter.pytorch.calls import is_root_call
from ascend_dump.adapter.pytorch.compiled import Root, call_followed, follow_compiled

__all__ = ["NextCall"]

log = logging.getLogger("ascend_dump")


class NextCall:
    """Calls `launch(begin)` once: in the next thread that makes a top-level call, right before that call.

    A call of a module or of a compiled function counts. The object may be created in any thread. Hooks that `launch`
    registers see the call already. If `launch` raises an exception, the exception is passed to `begin.done`.
    """

    def __init__(self, begin: Begin, launch: Callable[[Begin], object]) -> None:
        self._begin, self._launch = begin, launch
        #: Acquired once, by the call or by `cancel`, and never released.
        self._once = threading.Lock()
        self._original = torch.nn.Module.__call__
        self._call = self._make_call()
        with self._once:  # a concurrent call must not remove the replacement before it is completely installed
            self._unfollow = follow_compiled(self._around_compiled)
            torch.nn.Module.__call__ = self._call

    def cancel(self) -> bool:
        """Restore the original call. Returns False if the next call has already come."""
        if not self._once.acquire(blocking=False):
            return False
        self._remove()
        return True

    def _make_call(self) -> Callable[..., Any]:
        original, once = self._original, self._once

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            # A call that is traced for a compiled graph is not a call of the program.
            if not torch.compiler.is_compiling() and not once.locked() and is_root_call(running=False):
                self._launch_once()
            return original(module, *args, **kwargs)

        return call

    def _around_compiled(self, root: Root, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._once.locked() and is_root_call(running=False) and self._launch_once():
            # `launch` may have registered followers of compiled functions, which have to see this call.
            return call_followed(root, function, args, kwargs)
        return function(*args, **kwargs)

    def _launch_once(self) -> bool:
        if not self._once.acquire(blocking=False):
            return False
        self._remove()
        try:
            self._launch(self._begin)
        except Exception as error:  # an error here must not make the program's call fail
            log.debug("the capture could not be launched", exc_info=True)
            self._begin.done(error)
        return True

    def _remove(self) -> None:
        self._unfollow()
        # If something else, such as a tracer, has wrapped our function in the meantime, our function stays, and only
        # calls the original.
        if torch.nn.Module.__call__ is self._call:
            torch.nn.Module.__call__ = self._original
