"""Runs of the host adapters that did not come to their end, as their manifests tell."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional

__all__ = ["IncompleteRun", "incomplete_run", "runs_above"]

#: `{time}/{device_id}/{model_name}/{model_id}/{step}/{file}`: from a file up to the directory of its run.
_LEVELS = 5
#: A manifest lists the request and reasons, never records.
_MOST_BYTES = 10_000_000


class IncompleteRun(NamedTuple):
    """One run that has not written all it was asked for.

    path    the directory of the run
    state   "running" while its process is there, "killed", "failed" (it stopped itself), or "unknown": another machine
            wrote it
    reason  a sentence for people
    """

    path: Path
    state: str
    reason: str


def runs_above(directory: Path) -> Iterable[Path]:
    """The directories above an opened one that may be those of its run."""
    return list(directory.absolute().parents)[:_LEVELS]


def incomplete_run(root: Path) -> Optional[IncompleteRun]:
    """What the manifest in `root` tells of its run, None when the run is complete or no manifest is there."""
    manifest = _manifest(root)
    state = manifest.get("state")
    if state == "incomplete":
        reason = f"the capture ended early: {manifest.get('failure') or 'for no recorded reason'}"
        return IncompleteRun(root, "failed", reason)
    if state != "running":
        return None
    pid = manifest.get("pid")
    if manifest.get("host") != socket.gethostname() or not isinstance(pid, int):
        reason = "the capture had not ended: it runs on another machine, or was killed there"
        return IncompleteRun(root, "unknown", reason)
    if _is_alive(pid):
        return IncompleteRun(root, "running", f"the capture has not ended: process {pid} is there")
    reason = f"the capture did not end: process {pid} was killed; what it completed can be read"
    return IncompleteRun(root, "killed", reason)


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
