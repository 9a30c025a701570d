"""Record a whole TensorFlow program: start at its first session or eager step, or before npu_device is opened."""

from __future__ import annotations

import logging
import sys
from typing import Any, Callable, Optional

from ascend_dump.adapter import Begin, Session
from ascend_dump_tensorflow import _hook
from ascend_dump_tensorflow._bridge import is_on_npu
from ascend_dump_tensorflow._eager_steps import EagerSteps

__all__ = ["launch"]

log = logging.getLogger("ascend_dump")


def launch(begin: Begin) -> Callable[[], str]:
    """Install the hooks that start the capture. Return a function that says why it never began."""
    from wrapt import register_post_import_hook

    launched = _TensorflowLaunch(begin)
    _hook.watch(launched)
    register_post_import_hook(launched.device_imported, "npu_device")
    launched.steps = EagerSteps(launched.begin_step)
    return launched.unused


class _TensorflowLaunch:
    """Starts the capture of a whole program when one of its hooks is called."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun = False
        self._session: Optional[Session] = None
        self.steps: Optional[EagerSteps] = None

    def unused(self) -> str:
        return (
            "TensorFlow created no session here, and called no tf.function and no Keras model; to capture other eager "
            "operators, use `with ascend_dump.capture(framework='tensorflow')` in the script"
        )

    def begin_step(self, number: int) -> None:
        """Begin a step of a program that runs eagerly on the host. On an NPU do nothing: GE counts its own steps."""
        if not is_on_npu():
            self._begin_once()
            try:
                if self._records_step(number):
                    return
            except Exception as error:
                log.warning("the eager operators of TensorFlow are not recorded from step %d on: %s", number, error)
        if self.steps is not None:
            self.steps.end()

    def _records_step(self, number: int) -> bool:
        """Begin a step of the capture's session. Return False if the session records no further steps."""
        session = self._session
        if session is None:
            return False
        goes_on = not session.is_over and not self._begin.over
        session.step(number if goes_on else None)
        return goes_on

    def configure(self, config: Any) -> Any:
        self._begin_once()
        return config

    def created(self, session: Any) -> None:
        return

    def device_imported(self, module: Any) -> None:
        """Wrap npu_device.open() in each module that exports it, so that the capture starts before the call."""
        inner = sys.modules.get("npu_device.npu_device", module)
        before = inner.open

        def begin_and_open(*args: Any, **kwargs: Any) -> Any:
            self._begin_once()
            return before(*args, **kwargs)

        for namespace in {id(module): module, id(inner): inner}.values():
            if getattr(namespace, "open", None) is before:
                namespace.open = begin_and_open

    def _begin_once(self) -> None:
        """Start the capture at the first call.

        The capture then adds its own watcher of new sessions, which also gets the session that is being created.
        """
        if not self._begun:
            self._begun = True
            self._session = self._begin()
