"""The manifest of a capture whose framework writes the dump itself: facts that the framework's files do not contain.

It says which steps were removed, and why the recording ended. It also tells an overflow dump without overflows, which
has no files, from a dump that never began. Adapters that write the dump format have a larger manifest of their own,
with the same facts.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump.common.paths import MANIFEST, replace_file

__all__ = ["SCHEMA", "Mark"]

log = logging.getLogger("ascend_dump")

SCHEMA = "ascend-dump/capture/1"


class Mark:
    """The manifest of one run. A failure to write it is only logged."""

    def __init__(
        self,
        root: Path,
        framework: str,
        *,
        scene: Optional[str],
        keep: Optional[int],
        until: Optional[str],
        label: Optional[str] = None,
    ) -> None:
        """Write the manifest if the request has a scene "overflow", `keep=`, `until=` or `label=`, and none exists."""
        self._path = root / MANIFEST
        self._fields: Optional[dict[str, Any]] = None
        noted = scene == "overflow" or keep is not None or until is not None or label is not None
        if not noted or os.path.lexists(self._path):
            return
        self._fields = {
            "schema": SCHEMA,
            "state": "running",
            "framework": framework,
            "scene": scene,
            "request": {"scene": scene, "keep": keep, "until": until, "label": label},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": time.time(),
        }
        self._write()

    def end(self, failure: Optional[BaseException] = None, step_fields: Optional[Mapping[str, Any]] = None) -> None:
        """Write the end of the capture into the manifest. failure: the error that ended it early.

        step_fields: the fields of `StepRecorder.kept`, about removed steps and the end of the recording
        """
        if self._fields is None:
            return
        self._fields.update(step_fields or {}, end=time.time(), state="complete")
        if failure is not None:
            self._fields.update(state="incomplete", failure=str(failure))
        self._write()

    def _write(self) -> None:
        try:
            replace_file(self._path, json.dumps(self._fields, indent=1).encode("utf-8", "backslashreplace"))
        except OSError as error:
            log.debug("%s cannot be written: %s", self._path, error)
