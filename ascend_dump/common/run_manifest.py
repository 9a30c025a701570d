"""What a capture notes in its run directory where the framework itself leaves no trace of it.

A recorder notes which steps it removed and why it ended. A run with scene="overflow" in which nothing overflowed writes
no file, so an empty directory could as well be a dump that never began. The host adapters write the same facts into a
larger manifest of their own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.common.paths import MANIFEST

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["SCHEMA", "Mark"]

log = logging.getLogger("ascend_dump")

SCHEMA = "ascend-dump/capture/1"


class Mark:
    """The manifest of one run. Failing to write it is logged and changes nothing else."""

    def __init__(self, root: Path, framework: str, request: DumpRequest) -> None:
        self._path = root / MANIFEST
        self._fields: Optional[dict[str, Any]] = None
        noted = request.scene == "overflow" or request.keep is not None or request.until is not None
        if not noted or os.path.lexists(self._path):
            return
        self._fields = {
            "schema": SCHEMA,
            "state": "running",
            "framework": framework,
            "scene": request.scene,
            "request": {"scene": request.scene, "keep": request.keep, "until": request.until},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": time.time(),
        }
        self._write()

    def end(self, failure: Optional[BaseException] = None, kept: Optional[Mapping[str, Any]] = None) -> None:
        """Note that the capture ended, and what ended it early. kept: what a recorder says of its steps."""
        if self._fields is None:
            return
        self._fields.update(kept or {}, end=time.time(), state="complete")
        if failure is not None:
            self._fields.update(state="incomplete", failure=str(failure))
        self._write()

    def _write(self) -> None:
        try:
            # A new file of an unpredictable name, then renamed: no link that somebody else put there is followed.
            descriptor, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{MANIFEST}.")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                    json.dump(self._fields, file, indent=1)
                os.replace(draft, self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(draft)
                raise
        except OSError as error:
            log.debug("%s cannot be written: %s", self._path, error)
