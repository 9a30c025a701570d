"""The launcher road: every session of the process, and npu_device before it is opened."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Optional

from ascend_dump._activation import at_exit
from ascend_dump._errors import ConfigError
from ascend_dump._paths import RunDirectory, make_private_directory
from ascend_dump._rank import current_rank, is_selected
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import Adapter
from ascend_dump_tensorflow import _hook
from ascend_dump_tensorflow._bridge import is_on_npu
from ascend_dump_tensorflow._npu import NpuSession

__all__ = ["activate"]

log = logging.getLogger("ascend_dump")


def activate(adapter: Adapter, request: DumpRequest) -> None:
    """Arm the process. Raises ConfigError for what the adapter would refuse."""
    from wrapt import register_post_import_hook

    launched = _Process(adapter, request)
    _hook.watch(launched)
    register_post_import_hook(launched.device_imported, "npu_device")
    at_exit(launched.stop)


class _Process:
    """Starts a capture when the first session is made, or before npu_device is opened."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request
        self._process = os.getpid()
        self._session: Optional[Any] = None
        self._over = False

    def configure(self, config: Any) -> Any:
        self._begin()
        return config

    def created(self, session: Any) -> None:
        return

    def device_imported(self, module: Any) -> None:
        """Put the capture before npu_device.open(), wherever the program takes it from."""
        inner = sys.modules.get("npu_device.npu_device", module)
        before = inner.open

        def begin_and_open(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            return before(*args, **kwargs)

        for place in {id(module): module, id(inner): inner}.values():
            if getattr(place, "open", None) is before:
                place.open = begin_and_open

    def _begin(self) -> None:
        """Start once. The watcher of the capture comes after ours, so it sees this very session."""
        if self._over or self._session is not None or os.getpid() != self._process:
            return
        self._over = True
        if not is_selected(current_rank(), self._request.ranks):
            return
        try:
            for problem in self._adapter.check(
                self._request, None, RunDirectory.planned(self._request.path, current_rank(), launched=True)
            ):
                if problem.severity == "error":
                    raise ConfigError(problem.message, hint=problem.hint, code=problem.code)
                log.warning("%s", problem)
            make_private_directory(self._request.path)
            self._session = self._start()
        except Exception as error:
            # The user's call goes on, whatever keeps us from dumping.
            log.warning("nothing is captured: %s", error)
            log.debug("starting the capture failed", exc_info=True)

    def _start(self) -> Any:
        run = RunDirectory.planned(self._request.path, current_rank(), launched=True).make()
        if is_on_npu():
            return NpuSession(self._request, None, run)
        from ascend_dump_tensorflow._host import HostSession

        return HostSession(self._request, None, run)

    def stop(self) -> None:
        """At exit: finish the files, and say so when there are none."""
        _hook.unwatch(self)
        session, self._session = self._session, None
        if os.getpid() != self._process:
            return
        # PyTorch's writer for TensorBoard imports tensorflow and runs nothing with it.
        if session is None and not self._over and "torch" not in sys.modules:
            log.warning(
                "ASCEND_DUMP is set, but TensorFlow made no session here, so nothing was captured; eager operators "
                "need `with ascend_dump.capture(framework='tensorflow')` in the script"
            )
        if session is None:
            return
        session.stop()
        if not any(names for _, _, names in os.walk(session.root) if names != ["manifest.json"]):
            for reason in session.reasons() or []:
                log.warning("the capture wrote nothing: %s", reason)
