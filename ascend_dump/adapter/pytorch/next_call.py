"""Detects the next top-level call in a running program, from another thread and without registering hooks.

PyTorch iterates over its dictionaries of hooks while a module is called, so another thread must not change them.
Instead `torch.nn.Module.__call__` is replaced until the next call, since that is atomic; the thread that makes this
call then registers the hooks.
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
    """Calls `launch(begin)` once, right before the next top-level call of a module or compiled function, in its thread.

    May be created in any thread. Hooks that `launch` registers see that call. If it raises, the error is passed to
    `begin.done`.
    """

    def __init__(self, begin: Begin, launch: Callable[[Begin], object]) -> None:
        self._begin, self._launch = begin, launch
        #: Acquired once, by the call or by `cancel`, and never released.
        self._once = threading.Lock()
        self._original = torch.nn.Module.__call__
        self._call = self._make_call()
        with self._once:  # keeps a concurrent call from removing what is not installed yet
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
            # Tracing for a compiled graph is not a call of the program.
            if not torch.compiler.is_compiling() and not once.locked() and is_root_call(running=False):
                self._meet()
            return original(module, *args, **kwargs)

        return call

    def _around_compiled(self, root: Root, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._once.locked() and is_root_call(running=False) and self._meet():
            # `launch` may have registered followers, which have to see this call.
            return call_followed(root, function, args, kwargs)
        return function(*args, **kwargs)

    def _meet(self) -> bool:
        if not self._once.acquire(blocking=False):
            return False
        self._remove()
        try:
            self._launch(self._begin)
        except Exception as error:  # the call is the program's
            log.debug("the capture could not be launched", exc_info=True)
            self._begin.done(error)
        return True

    def _remove(self) -> None:
        self._unfollow()
        # Something else may have wrapped it since, such as a tracer, which goes on calling ours; that only passes on.
        if torch.nn.Module.__call__ is self._call:
            torch.nn.Module.__call__ = self._original
