"""Find the versions of CANN, its driver and its firmware on this machine, in the files of their installations."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator

from ascend_dump.storage.files import read_regular

__all__ = ["installed_versions"]

_VERSION_FILES = {
    "CANN": ("{ASCEND_HOME_PATH}/version.cfg", "{ASCEND_HOME_PATH}/runtime/version.info"),
    "driver": ("/usr/local/Ascend/driver/version.info",),
    "firmware": ("/usr/local/Ascend/firmware/version.info",),
}
_LARGEST = 64 << 10


def installed_versions() -> dict[str, str]:
    """Return the versions by the names "CANN", "driver" and "firmware". Unknown versions are left out."""
    return dict(_versions_with(os.environ.get("ASCEND_HOME_PATH", "")))


# The files are read once per process, because a program may start a capture every few steps.
@functools.lru_cache(1)
def _versions_with(home: str) -> tuple[tuple[str, str], ...]:
    versions = ((name, next(_versions(paths, home), None)) for name, paths in _VERSION_FILES.items())
    return tuple((name, version) for name, version in versions if version is not None)


def _versions(paths: tuple[str, ...], home: str) -> Iterator[str]:
    for path in paths:
        if "{" in path and not home:
            continue
        try:
            text = read_regular(path.format(ASCEND_HOME_PATH=home), _LARGEST).decode(errors="replace")
        except OSError:
            continue
        match = re.search(r"version\s*[=:]\s*\[?([^\s\]]+)", text, re.IGNORECASE)
        if match:
            yield match[1]
