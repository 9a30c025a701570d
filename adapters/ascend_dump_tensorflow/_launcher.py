"""Record a whole TensorFlow program: starts at its first session, or before npu_device is opened."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ascend_dump.adapter import Begin
from ascend_dump_tensorflow import _hook

__all__ = ["launch"]


def launch(begin: Begin) -> Callable[[], str]:
    from wrapt import register_post_import_hook

    launched = _TensorflowLaunch(begin)
    _hook.watch(launched)
    register_post_import_hook(launched.device_imported, "npu_device")
    return launched.unused


class _TensorflowLaunch:
    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun = False

    def unused(self) -> str:
        return (
            "TensorFlow made no session here, and eager operators need "
            "`with ascend_dump.capture(framework='tensorflow')` in the script"
        )

    def configure(self, config: Any) -> Any:
        self._begin_once()
        return config

    def created(self, session: Any) -> None:
        return

    def device_imported(self, module: Any) -> None:
        """Start the capture before npu_device.open(), in each module that exports it."""
        inner = sys.modules.get("npu_device.npu_device", module)
        before = inner.open

        def begin_and_open(*args: Any, **kwargs: Any) -> Any:
            self._begin_once()
            return before(*args, **kwargs)

        for namespace in {id(module): module, id(inner): inner}.values():
            if getattr(namespace, "open", None) is before:
                namespace.open = begin_and_open

    def _begin_once(self) -> None:
        """Start the capture. Its watcher is added after this one, so it sees this session too."""
        if not self._begun:
            self._begun = True
            self._begin()
