"""Read `mapping.csv`: the original names of dump files whose names on disk are hashes.

A file name of more than 255 bytes cannot be created. So CANN names the file by a hash of its name (digits), and appends
the line `hash,name` to `mapping.csv` in the same directory. The line is appended for each chunk that is written to the
file, so lines are repeated; there is no header and no quoting (adump file_utils and adx_dump_record). msaccucmp and
MindSpore write the same two columns with other names on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple, Union

from ascend_dump.errors import ReadError
from ascend_dump.storage.files import NotRegularFile, text_lines

__all__ = [
    "MAPPING",
    "Mapping",
    "hashed_name",
    "mapping_line",
    "needs_mapping",
    "parse_mapping",
    "read_mapping",
    "std_hash",
]

MAPPING = "mapping.csv"
#: Maximum length of a file name in bytes (NAME_MAX of usual file systems).
LONGEST_NAME = 255
#: Maximum length of a line in characters; CANN's longest names have some thousand.
_LONGEST_LINE = 64 * 1024
_MOST_REFUSED = 20

_MULTIPLIER = 0xC6A4A7935BD1E995
_SEED = 0xC70F6907
_MASK = (1 << 64) - 1


class Mapping(NamedTuple):
    """The content of a mapping.

    names    the original names by the names on disk
    refused  sentences about lines that cannot be used: the first ones, and the number of the others
    """

    names: dict[str, str]
    refused: tuple[str, ...] = ()


def std_hash(data: bytes) -> int:
    """Return the 64-bit hash that libstdc++'s `std::hash<std::string>` computes: murmur 64A with seed 0xc70f6907."""
    whole = len(data) & ~7
    value = (_SEED ^ (len(data) * _MULTIPLIER)) & _MASK
    for position in range(0, whole, 8):
        word = (int.from_bytes(data[position : position + 8], "little") * _MULTIPLIER) & _MASK
        value = ((value ^ (_shift(word) * _MULTIPLIER)) * _MULTIPLIER) & _MASK
    if len(data) > whole:
        value = ((value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    return _shift((_shift(value) * _MULTIPLIER) & _MASK)


def needs_mapping(name: str) -> bool:
    """Return True if a file name is too long to be created."""
    return len(os.fsencode(name)) > LONGEST_NAME


def hashed_name(path: str, *, exception: bool = False) -> str:
    """Return the name on disk of a file whose name is too long. path: the whole path in CANN's spelling.

    A data dump uses the hash of the path, including doubled slashes. An exception dump uses the hash of the file name.

    (assumption cann.long_names)
    """
    text = path.rpartition("/")[2] if exception else path
    return str(std_hash(os.fsencode(text)))


def mapping_line(name_on_disk: str, name: str) -> str:
    """Return the line that CANN appends for each chunk it writes."""
    return f"{name_on_disk},{name}\n"


def parse_mapping(lines: Iterable[str]) -> Mapping:
    """Parse the lines of a mapping. Blank and repeated lines are skipped.

    A line with a slash in a name, or with the name `..`, is refused, because it would lead out of the directory. If two
    lines have different names for a file, the first one is used and the second one refused.
    """
    names: dict[str, str] = {}
    refused: list[str] = []
    unlisted = 0
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        # The name begins after the first comma and may contain commas itself.
        on_disk, comma, name = line.partition(",")
        on_disk, name = on_disk.strip(), name.strip()
        if not comma or not on_disk or not name:
            reason = f"line {number} is not `name on disk,name`"
        elif not _is_file_name(on_disk) or not _is_file_name(name):
            reason = f"line {number} leads out of the directory"
        elif names.setdefault(on_disk, name) != name:
            reason = f"line {number} gives {on_disk[:LONGEST_NAME]} a second name"
        else:
            continue
        if len(refused) < _MOST_REFUSED:
            refused.append(reason)
        else:
            unlisted += 1
    if unlisted:
        refused.append(f"{unlisted} further lines cannot be used either")
    return Mapping(names, tuple(refused))


def read_mapping(path: Union[str, os.PathLike[str]]) -> Mapping:
    """Read a `mapping.csv`. Raises ReadError if it cannot be opened; any content is accepted."""
    try:
        return parse_mapping(text_lines(path, most=_LONGEST_LINE, errors="surrogateescape"))
    except NotRegularFile as error:
        raise ReadError(error.what, path=path) from None
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from None


def _shift(value: int) -> int:
    return value ^ (value >> 47)


def _is_file_name(name: str) -> bool:
    return name not in (".", "..") and not any(char in name for char in "/\\\0")
