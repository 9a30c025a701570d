"""Steps of a whole process, determined from the calls of its top-level modules.

Without a target, a new step begins when a top-level module with parameters is called that was already called in the
open step. So a loss module, or the second model of a GAN, belongs to the open step. A compiled function counts as a
top-level module. Modules that are called inside it do not count, because compiled code contains no trace of them.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Optional

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ascend_dump.adapter.pytorch.calls import is_root_call
from ascend_dump.adapter.pytorch.compiled import Root, follow_compiled, module_of

__all__ = ["ProcessSteps"]

log = logging.getLogger("ascend_dump")


class ProcessSteps:
    """Calls `called(root, step)` at each top-level call of a module or compiled function, until `end`.

    step: the number of the step that this call begins, None if the call belongs to the open step.

    Only the thread of the first call is followed. If `called` raises an exception, it is logged, nothing is followed
    any more, and the program continues.

    returned   called with the root and the result of each reported call; must not raise
    left_out   called before each top-level call; if it returns True, the call is neither a step nor reported
    ended      called once, when calls are no longer followed for any reason
    compiled   True if the last reported call runs compiled code. Global module hooks that are registered during
               `called` then still see the modules called in it, including the root
    """

    def __init__(
        self,
        called: Callable[[Root, Optional[int]], None],
        returned: Optional[Callable[[Root, Any], None]] = None,
        left_out: Optional[Callable[[], bool]] = None,
        ended: Optional[Callable[[], None]] = None,
    ) -> None:
        self._report = called
        self._ended = ended
        self._returned = returned
        self._left_out = left_out
        self.compiled = False
        self._inside = 0
        #: The top-level module whose call is open.
        self._open: Any = None
        self._undo = [register_module_forward_pre_hook(self._called).remove, follow_compiled(self._around_compiled)]
        if returned is not None:
            self._undo.append(register_module_forward_hook(self._module_returned).remove)
        self.begin_again()

    def begin_again(self) -> None:
        """Count steps from 0: at the start, and in a forked child."""
        self._thread: Optional[int] = None
        self._step = -1
        #: The modules called in the open step. Weak references, because another module may get the same address.
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._over = False

    @property
    def begun(self) -> bool:
        """True if a step has begun in this process."""
        return self._thread is not None

    def end(self) -> None:
        """Remove the hooks."""
        self._over = True
        self._open = None
        undo, self._undo = self._undo, []
        for remove in undo:
            remove()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        # While a model is compiled, hooks are traced, not called. Our operators must not get into the graph.
        if torch.compiler.is_compiling() or not self._follows() or not is_root_call():
            return
        # A GraphModule inside a compiled function is no root: PyTorch runs a graph as a module while it compiles it.
        if not self._inside or not isinstance(module, torch.fx.GraphModule):
            root = module_of(module)
            self._open = module
            self._guard(root, root is not module)

    def _module_returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._open or not self._follows():
            return
        assert self._returned is not None, "this hook is registered only if it is given"
        self._open = None
        self._returned(module_of(module), output)

    def _around_compiled(self, root: Root, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside or not self._follows() or not is_root_call(running=False):
            return function(*args, **kwargs)
        self._guard(root, True)
        self._inside += 1
        try:
            result = function(*args, **kwargs)
        finally:
            self._inside -= 1
        if self._returned is not None and self._follows():
            self._returned(root, result)
        return result

    def _follows(self) -> bool:
        return not self._over and (self._thread is None or self._thread == threading.get_ident())

    def _guard(self, root: Root, compiled: bool) -> None:
        self.compiled = compiled
        try:
            if self._left_out is not None and self._left_out():
                self._open = None
                return
            self._root_called(root)
        except Exception as error:
            # Recording may fail for any reason, but the program has to continue.
            self.end()
            log.warning("nothing is captured: %s", error)
            log.debug("opening the capture failed", exc_info=True)

    def _root_called(self, root: Root) -> None:
        if self._step >= 0 and root not in self._roots:
            self._roots.add(root)
            self._report(root, None)
            return
        if self._inside or (isinstance(root, torch.nn.Module) and next(root.parameters(), None) is None):
            return
        self._thread = threading.get_ident()
        self._step += 1
        self._roots = weakref.WeakSet([root])
        self._report(root, self._step)
