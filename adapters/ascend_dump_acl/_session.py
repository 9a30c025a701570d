"""The session of a capture through acl, which is started by acl.mdl.set_dump or by a file for acl.init."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import Any, Optional

from ascend_dump import AscendDumpError
from ascend_dump.adapter import DumpRequest, RunDirectory, Session
from ascend_dump.adapter import acl_interface as interface
from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.config.of_request import save_config
from ascend_dump.native.cann.names import STEP_DIRECTORY
from ascend_dump_acl._settings import build, look_around

__all__ = ["AclSession", "refusal"]

log = logging.getLogger("ascend_dump")


class AclSession(Session):
    """An active capture.

    root      the dump_path of CANN, a new directory
    config    path of the file with the settings
    prepared  True if acl was not initialised at the start, so that the program must pass `config` to acl.init

    The constructor raises CaptureError if another capture uses acl's dump interface, ConfigError and NotSupported for
    settings that CANN does not accept, ReadError for the graph in the options, and WriteError if the file cannot be
    written. If a call of acl fails, it raises the typed error of `acl_interface.refusal`.
    """

    step_directories = STEP_DIRECTORY

    def __init__(self, request: DumpRequest, run: RunDirectory) -> None:
        self._acl = importlib.import_module("acl")
        self._request = request
        self._stopped = False
        interface.claim(self, "acl")
        try:
            self._begin(request, run)
        except BaseException:
            interface.release(self)
            raise

    def _begin(self, request: DumpRequest, run: RunDirectory) -> None:
        self.prepared = self._init_dump()
        try:
            # An absolute path, because acl resolves relative paths from the working directory on a host, but from the
            # directory of the executable on a SoC.
            self.root = run.path
            self.config = os.fspath(run.beside("acl.json"))
            save_config(Path(self.config), build(request, self.root, look_around(request)))
            if not self.prepared:
                self._call("set_dump", self.config)
        except BaseException:
            if not self.prepared:
                self._acl.mdl.finalize_dump()
            raise

    def stop(self) -> None:
        """Switch the dump off. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        try:
            self._end()
        finally:
            interface.release(self)

    def _end(self) -> None:
        if self.prepared and self._init_dump():
            return  # acl was never initialised, or was finalised, so its dump is off
        code = self._acl.mdl.finalize_dump()
        # UNINITIALIZE and DUMP_NOT_RUN are no errors: acl.finalize inside the block has switched the dump off already.
        if code not in (AclError.SUCCESS, AclError.UNINITIALIZE, AclError.DUMP_NOT_RUN):
            raise refusal(self._acl, "acl.mdl.finalize_dump", code)

    def reasons(self) -> Optional[list[str]]:
        if self._request.scene in ("overflow", "exception"):
            return None
        reasons = ["a model that was loaded before the dump was set is not dumped: load it inside the block"]
        if self.prepared:
            reasons.insert(0, "acl.init was not given cap.config")
        if not self._request.steps.all:
            reasons.append(f"executions count from 0, and only those of steps={self._request.steps} are dumped")
        if self._request.layers or self._request.models:
            reasons.append("no operator or model has a name that layers= and models= select; CANN compares exact names")
        if self._request.level == "kernel":
            reasons.append("level='kernel' leaves models out")
        return reasons

    def _init_dump(self) -> bool:
        """Start a dump. Returns True if acl is not initialised yet."""
        code = self._acl.mdl.init_dump()
        if code == AclError.UNINITIALIZE:
            return True
        if code != AclError.SUCCESS:
            raise refusal(self._acl, "acl.mdl.init_dump", code)
        return False

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._acl.mdl, name)(*args)
        if code != AclError.SUCCESS:
            raise refusal(self._acl, f"acl.mdl.{name}", code)


def refusal(acl: Any, call: str, code: int) -> AscendDumpError:
    """Return the typed error for the return code of a call of acl, with CANN's own message if there is one."""
    ask = getattr(acl, "get_recent_err_msg", None)
    return interface.refusal(call, code, str((ask() if ask is not None else None) or ""))
