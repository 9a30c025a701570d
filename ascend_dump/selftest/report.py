"""The report of a self-test: a zip that a person can send, with nothing in it that is theirs.

Paths of the home directory, of the Python environment and of the run, and the names of host and user, are replaced in
every text. Dump files are taken as they are, small ones only, and none that holds such a name.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import platform
import re
import socket
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ascend_dump._version import __version__
from ascend_dump.errors import WriteError
from ascend_dump.storage.files import read_regular

__all__ = ["Private", "private_names", "versions", "write_report"]

_PACKAGES = (
    "ascend-dump",
    "numpy",
    "ml-dtypes",
    "safetensors",
    "protobuf",
    "msgspec",
    "numba",
    "polars",
    "torch",
    "torch-npu",
    "mindspore",
    "tensorflow",
)
#: Where CANN, driver and firmware say their versions.
_VERSION_FILES = {
    "CANN": ("{ASCEND_HOME_PATH}/version.cfg", "{ASCEND_HOME_PATH}/runtime/version.info"),
    "driver": ("/usr/local/Ascend/driver/version.info",),
    "firmware": ("/usr/local/Ascend/firmware/version.info",),
}
#: Settings that change a dump; other environment variables stay out of the report.
_SETTINGS = re.compile(r"(ASCEND|NPU|GE|HCCL|MS|MINDSPORE|DUMP|TORCH|TF|ACL|OMP)_\w+|RANK(_\w+)?|WORLD_SIZE")
#: Names of variables whose value may be a secret.
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CRED|PROXY", re.IGNORECASE)
_TEXTS = {".json", ".jsonl", ".csv", ".txt"}
_LARGEST = 64 << 10
#: Of each process.
_MOST_FILES = 12
#: Shorter names are parts of too many words; nobody is meant by these.
_SHORTEST = 3
_NOBODY = {"root", "localhost"}


class Private:
    """What must not leave the machine: replaced in texts, looked for in bytes.

    names  a name or path -> what to write instead

    >>> Private({"/home/ada": "~", "ada": "USER"}).clean("/home/ada/x of ada")
    '~/x of USER'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        # Longer ones first: a path may hold the name of the user.
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))

    def clean(self, text: str) -> str:
        """The text with every private name replaced; names that are no paths only where they are whole words."""
        for name, instead in self._names.items():
            escaped = re.escape(name)
            pattern = escaped if os.sep in name else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"
            text = re.sub(pattern, lambda found, instead=instead: instead, text)  # type: ignore[misc]  # a default
        return text

    def is_in(self, data: bytes) -> bool:
        """Whether bytes hold one of them."""
        text = data.decode("latin-1")
        return self.clean(text) != text


def private_names(work: Path) -> Private:
    """Those of this machine, user and run."""
    found: dict[str, str] = {}

    def add(name: str, instead: str) -> None:
        if len(name) >= _SHORTEST and name not in _NOBODY:
            found.setdefault(name, instead)

    for path, instead in (
        (work, "WORK"),
        (Path(sys.prefix), "PYTHON"),
        (Path.home(), "~"),
        (Path(__file__).parents[2], "PACKAGES"),
        (Path.cwd(), "CWD"),
    ):
        for text in {str(path), os.path.realpath(path)}:
            if text.count(os.sep) > 1 or instead == "~":
                add(text, instead)
    host = socket.gethostname()
    for name in (socket.getfqdn(), host, host.partition(".")[0], platform.node()):
        add(name, "HOST")
    with contextlib.suppress(KeyError, OSError):  # a user without a name, as in some containers
        add(getpass.getuser(), "USER")
    return Private(found)


def versions() -> dict[str, Any]:
    """Of Python, the packages that matter, and of CANN, driver and firmware where they say it."""
    from importlib.metadata import PackageNotFoundError, version

    def of(name: str) -> Any:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {
        "ascend_dump": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: of(name) for name in _PACKAGES},
        **{what: next(_said(paths), None) for what, paths in _VERSION_FILES.items()},
    }


def _said(paths: tuple[str, ...]) -> Iterator[str]:
    for path in paths:
        if "{" in path and not os.environ.get("ASCEND_HOME_PATH"):
            continue
        try:
            text = read_regular(path.format(**os.environ), _LARGEST).decode(errors="replace")
        except OSError:
            continue
        found = re.search(r"version\s*[=:]\s*\[?([^\s\]]+)", text, re.IGNORECASE)
        if found:
            yield found[1]


def write_report(file: Path, work: Path, document: Mapping[str, Any]) -> list[str]:
    """Write the zip, readable by its owner only; what stands below `work` is its material.

    Returns the names of the members. Raises WriteError.
    """
    private = private_names(work)
    members = dict(_members(work, document, private))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(packed.getvalue())
    except OSError as error:
        raise WriteError(
            f"the report cannot be written to {str(file)!r}: {error.strerror}", hint="give -o another file"
        ) from error
    return list(members)


def _members(work: Path, document: Mapping[str, Any], private: Private) -> Iterator[tuple[str, bytes]]:
    def cleaned(value: Any) -> bytes:
        return private.clean(json.dumps(value, indent=1, default=str)).encode()

    yield "selftest.json", cleaned(document)
    yield "versions.json", cleaned(versions())
    settings = {name: value for name, value in sorted(os.environ.items()) if _SETTINGS.fullmatch(name)}
    yield "settings.json", cleaned({name: "***" if _SECRET.search(name) else value for name, value in settings.items()})
    paths = sorted(path for path in work.rglob("*") if path.is_file() and not path.is_symlink())
    tree = "".join(f"{path.stat().st_size:>10}  {path.relative_to(work)}\n" for path in paths)
    yield "tree.txt", private.clean(tree).encode()
    taken: Counter[tuple[str, ...]] = Counter()
    for path in paths:
        process = path.relative_to(work).parts[:2]
        if path.stat().st_size > _LARGEST or taken[process] >= _MOST_FILES or path.suffix == ".npz":
            continue
        data = read_regular(path, _LARGEST)
        if path.suffix in _TEXTS:
            data = private.clean(data.decode("utf-8", errors="replace")).encode()
        elif private.is_in(data):
            continue
        taken[process] += 1
        yield f"files/{private.clean(str(path.relative_to(work)))}", data
