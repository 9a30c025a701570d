"""Runs of the host adapters that did not come to their end, as their manifests tell."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_dump.reading import Record

__all__ = ["Unended"]

#: `{time}/{device_id}/{model_name}/{model_id}/{step}`: from a step up to the directory of its run.
_LEVELS = 4
#: A manifest lists the request and reasons, never records.
_MOST_BYTES = 10_000_000


class Unended:
    """Notes the runs that pass by."""

    def __init__(self) -> None:
        self._directories: dict[str, None] = {}

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self._directories[os.path.dirname(record.path)] = None
            yield record

    def find(self) -> list[tuple[Path, str]]:
        """The directories of those that are not complete, and a sentence on each."""
        steps = (Path(directory).absolute().parents for directory in self._directories)
        roots = dict.fromkeys(above[_LEVELS - 1] for above in steps if len(above) >= _LEVELS)
        reasons = ((root, _reason(_manifest(root))) for root in roots)
        return [(root, reason) for root, reason in reasons if reason]


def _manifest(root: Path) -> dict[str, Any]:
    import msgspec

    from ascend_dump.host.layout import MANIFEST

    try:
        with open(root / MANIFEST, "rb") as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):  # a dump of something else, or nobody's
        return {}
    ours = isinstance(found, dict) and str(found.get("schema")).startswith("ascend-dump/host/")
    return found if ours else {}


def _reason(manifest: dict[str, Any]) -> str:
    state = manifest.get("state")
    if state == "incomplete":
        return f"the capture ended early: {manifest.get('failure') or 'for no recorded reason'}"
    if state == "running":
        pid = manifest.get("pid")
        if manifest.get("host") != socket.gethostname() or not isinstance(pid, int):
            return "the capture had not ended: it runs on another machine, or was killed there"
        if _is_alive(pid):
            return f"the capture has not ended: process {pid} is there"
        return f"the capture did not end: process {pid} was killed; what it completed can be read"
    return ""


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True
