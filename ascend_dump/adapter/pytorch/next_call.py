"""The next top-level call in a running program, noticed without a hook that a running call could stumble over.

PyTorch goes through its dictionaries of hooks while a module is called, so that another thread must not change them.
What stands here for `torch.nn.Module.__call__` until that call is put there in one step, and adds hooks in the thread
that calls.
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
    """Calls `launch(begin)` once, just before the next top-level call of a module or compiled function, in its thread.

    It may be made in any thread. Hooks that `launch` registers see that call. A failure of it is given to `begin.done`.
    """

    def __init__(self, begin: Begin, launch: Callable[[Begin], object]) -> None:
        self._begin, self._launch = begin, launch
        #: Taken by what comes first, the call or `cancel`, and never given back.
        self._once = threading.Lock()
        self._original = torch.nn.Module.__call__
        self._call = self._make_call()
        with self._once:  # a call meanwhile would take out what is not in yet
            self._unfollow = follow_compiled(self._around_compiled)
            torch.nn.Module.__call__ = self._call

    def cancel(self) -> bool:
        """Leave everything as it was; False where the call came before."""
        if not self._once.acquire(blocking=False):
            return False
        self._remove()
        return True

    def _make_call(self) -> Callable[..., Any]:
        original, once = self._original, self._once

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            # What is traced for a compiled graph must not begin anything.
            if not torch.compiler.is_compiling() and not once.locked() and is_root_call(running=False):
                self._meet()
            return original(module, *args, **kwargs)

        return call

    def _around_compiled(self, root: Root, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._once.locked() and is_root_call(running=False) and self._meet():
            # Whoever follows since now has a part in this call too.
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
        # Something else may stand over it, such as a tracer; it then goes on calling ours, which does nothing more.
        if torch.nn.Module.__call__ is self._call:
            torch.nn.Module.__call__ = self._original
