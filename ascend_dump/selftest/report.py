"""The report of a self-test: a zip file without private data, which a user can send to the project.

In texts, the paths of the home directory, the Python environment and the run, and the names of machine and user, are
replaced. Small dump files are included unchanged, but left out if they contain a private name.
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
from ascend_dump.storage.installed import installed_versions

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
#: Environment variables that the report contains: those that may change a dump.
_SETTINGS = re.compile(r"(ASCEND|NPU|GE|HCCL|MS|MINDSPORE|DUMP|TORCH|TF|ACL|OMP)_\w+|RANK(_\w+)?|WORLD_SIZE")
#: Names of variables with a value that may be secret; the report contains "***" instead of the value.
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CRED|PROXY", re.IGNORECASE)
#: Suffixes of files in which private names could not be found.
_COMPRESSED = {".npz", ".gz"}
_TEXTS = {".json", ".jsonl", ".csv", ".txt"}
#: Maximum size of a file, in bytes.
_LARGEST = 64 << 10
#: Maximum number of files of each process.
_MOST_FILES = 12
#: Minimum length of a private name. Shorter ones also occur as ordinary words.
_SHORTEST = 3
#: Names that are not private, because they identify nobody.
_NOBODY = {"root", "localhost"}


class Private:
    """The private names of a machine: `clean` replaces them in a text, `is_in` finds them in bytes.

    names  for each private name or path the text that replaces it

    >>> Private({"/home/ada": "~", "ada": "USER"}).clean("/home/ada/x of ada")
    '~/x of USER'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        # Longer names first: a path may contain the name of the user.
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))

    def clean(self, text: str) -> str:
        """Return the text with private names replaced. A name that is not a path is replaced only as a whole word."""
        for name, instead in self._names.items():
            escaped = re.escape(name)
            pattern = escaped if os.sep in name else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"
            text = re.sub(pattern, lambda match, instead=instead: instead, text)  # type: ignore[misc]  # a default
        return text

    def is_in(self, data: bytes) -> bool:
        """Return True if the bytes contain a private name."""
        text = data.decode("latin-1")
        return self.clean(text) != text


def private_names(work: Path) -> Private:
    """Return the private names of this machine, user and run. work: the directory of the run."""
    names: dict[str, str] = {}

    def add(name: str, instead: str) -> None:
        if len(name) >= _SHORTEST and name not in _NOBODY:
            names.setdefault(name, instead)

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
    return Private(names)


def versions() -> dict[str, Any]:
    """Return the versions of Python, of related packages, of CANN, driver and firmware; None if not installed."""
    from importlib.metadata import PackageNotFoundError, version

    def version_or_none(name: str) -> Any:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    installed = installed_versions()
    return {
        "ascend_dump": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version_or_none(name) for name in _PACKAGES},
        **{name: installed.get(name) for name in ("CANN", "driver", "firmware")},
    }


def write_report(file: Path, work: Path, document: Mapping[str, Any]) -> list[str]:
    """Write the zip `file`, readable by its owner only, and return the names of its members.

    work: the directory of the run; its small files become members. document: the JSON result of the self-test. Raises
    WriteError if the zip cannot be written.
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
            f"the report cannot be written to {str(file)!r}: {error.strerror}", hint="choose a different file for -o"
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
        if path.stat().st_size > _LARGEST or taken[process] >= _MOST_FILES or path.suffix in _COMPRESSED:
            continue
        data = read_regular(path, _LARGEST)
        if path.suffix in _TEXTS:
            data = private.clean(data.decode("utf-8", errors="replace")).encode()
        elif private.is_in(data):
            continue
        taken[process] += 1
        yield f"files/{private.clean(str(path.relative_to(work)))}", data
