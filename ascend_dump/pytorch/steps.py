"""Steps of a whole process: told apart by the calls of its top-level modules.

Without a target something else must tell steps apart: a step begins when a top-level module
with parameters is called that was already called in this step. So a loss module, or a second
model of a GAN, belongs to the step that is open.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Optional

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ascend_dump.pytorch.calls import is_root_call

__all__ = ["ProcessSteps"]

log = logging.getLogger("ascend_dump")


class ProcessSteps:
    """Calls `called(root, step)` at each top-level call of a module, until `end`.

    step: the number of the step that this call begins, None where it belongs to the open one. The
    thread of the first call is the one that is followed. What `called` raises ends the following and is
    logged: the user's call goes on.
    """

    def __init__(self, called: Callable[[torch.nn.Module, Optional[int]], None]) -> None:
        self._told = called
        self._hooks = [register_module_forward_pre_hook(self._called)]
        self.begin_again()

    def begin_again(self) -> None:
        """At the start, and in a forked child, which counts its own."""
        self._thread: Optional[int] = None
        self._step = -1
        #: What was called in the open step. Weak: an address may come again for another module.
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._over = False

    @property
    def begun(self) -> bool:
        """Whether a step has begun in this process."""
        return self._thread is not None

    def end(self) -> None:
        """Take the hooks off."""
        self._over = True
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        # Inside a compiled model hooks are traced, not called; what they do must not reach its graph.
        if torch.compiler.is_compiling():
            return
        if self._over or (self._thread is not None and self._thread != threading.get_ident()) or not is_root_call():
            return
        try:
            self._root_called(module)
        except Exception as error:
            # Whatever keeps us from recording it.
            self.end()
            log.warning("nothing is captured: %s", error)
            log.debug("opening the capture failed", exc_info=True)

    def _root_called(self, root: torch.nn.Module) -> None:
        if self._step >= 0 and root not in self._roots:
            self._roots.add(root)
            self._told(root, None)
            return
        if next(root.parameters(), None) is None:
            return
        self._thread = threading.get_ident()
        self._step += 1
        self._roots = weakref.WeakSet([root])
        self._told(root, self._step)
