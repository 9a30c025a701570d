"""Read the headers of npy and npz files without numpy.

MindSpore writes bfloat16 elements with the type `<E2`, which numpy refuses. Files may be malicious, so numpy must not
load objects from them, and must not get a malformed header.
"""

from __future__ import annotations

import ast
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.storage.files import NotRegularFile, open_regular, size_of

__all__ = ["NpyHeader", "read_npy_header", "read_npz_headers"]

_MAGIC = b"\x93NUMPY"
#: Maximum size of a header in bytes. Most headers have 64 or 128; one of a shape with many dimensions is larger.
_LONGEST = 16 * 1024
_DTYPE = re.compile(r"([<>|=]?)(b1|[iu][1248]|f[248]|c8|c16)")
#: Maximum number of members of an npz file, and the size in bytes of a member's zip header without its name.
_MOST_MEMBERS, _LOCAL_HEADER = 4096, 30
_BFLOAT16 = ("<E2", "E2")
_MOST = 2**63 - 1


class NpyHeader(NamedTuple):
    """The header of an npy file.

    dtype           a type string of numpy such as "<f4", or "bfloat16"
    fortran         True if the elements are in column-major order
    offset, nbytes  the byte range of the elements
    """

    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    nbytes: int


def read_npy_header(path: Path, *, bfloat16: bool = False, any_type: bool = False) -> NpyHeader:
    """Read the header of an npy file. Raises CorruptDump if it is invalid, or if the file is too short for the shape.

    bfloat16: treat raw two-byte elements (V2) as bfloat16. any_type: also accept types that tensors do not have (text,
    objects); `dtype` is the type in the file then.
    """
    with _opened(path) as file:
        return _header_at(file, path, 0, size_of(file), bfloat16, any_type)


def read_npz_headers(path: Path) -> dict[str, NpyHeader]:
    """Return the headers in an npz file by the names of its members. Offsets count from the beginning of the file.

    Raises CorruptDump, also for a compressed file.
    """
    with _opened(path) as file:
        size = size_of(file)
        try:
            members = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise CorruptDump(f"it is no npz file: {error}", path=path) from None
        if len(members) > _MOST_MEMBERS or any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise CorruptDump(f"it is compressed, or has more than {_MOST_MEMBERS} members", path=path)
        headers = {}
        for member in members:
            if not 0 <= member.header_offset <= size - _LOCAL_HEADER:
                raise CorruptDump(f"{member.filename} begins after the end of the file", path=path)
            file.seek(member.header_offset + _LOCAL_HEADER - 4)
            name_and_extra = file.read(4)
            start = member.header_offset + _LOCAL_HEADER
            start += int.from_bytes(name_and_extra[:2], "little") + int.from_bytes(name_and_extra[2:], "little")
            end = min(size, start + member.file_size)
            headers[member.filename] = _header_at(file, path, start, end, False, False)
        return headers


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. OSError becomes CorruptDump, also inside the block."""
    try:
        with open_regular(path, follow_links=False) as file:
            yield file
    except NotRegularFile as error:
        raise CorruptDump(error.what, path=path) from None
    except StorageError:
        raise
    except OSError as error:
        hint = "check its permissions: only the user who ran the program may read its dump"
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path, hint=hint) from None


def _header_at(file: BinaryIO, path: Path, start: int, end: int, bfloat16: bool, any_type: bool) -> NpyHeader:
    file.seek(start)
    head = file.read(12)
    major = head[6] if len(head) > 6 else 0
    if head[:6] != _MAGIC or major not in (1, 2, 3):
        raise CorruptDump("it does not begin like an npy file", path=path, offset=start)
    skip, length = (10, int.from_bytes(head[8:10], "little"))
    if major > 1:
        skip, length = (12, int.from_bytes(head[8:12], "little"))
    if length > _LONGEST:
        raise CorruptDump(f"its header claims {length} bytes", path=path, offset=start + 8)
    file.seek(start + skip)
    text = file.read(length)
    offset = start + skip + length
    if len(text) < length:
        raise CorruptDump("it ends within its header", path=path, offset=start + skip + len(text))
    dtype, shape, fortran = _fields(text, path, bfloat16, any_type)
    if any_type and not _is_number(dtype):
        return NpyHeader(dtype, shape, fortran, offset, end - offset)
    size = 2 if dtype == "bfloat16" else int(re.sub(r"\D", "", dtype))
    nbytes = math.prod(shape) * size
    if nbytes > end - offset:
        raise CorruptDump(f"its shape needs {nbytes} bytes, but it has {end - offset}", path=path, offset=offset)
    return NpyHeader(dtype, shape, fortran, offset, nbytes)


@lru_cache(maxsize=1024)
def _literal(text: bytes) -> tuple[object, object, object]:
    """Return (descr, shape, fortran_order) of a header's text. Raises ValueError, KeyError and others.

    Cached, because most headers of a dump are equal, and parsing a header takes longer than opening its file.
    """
    # literal_eval accepts only literals: nothing in a header is executed.
    header = ast.literal_eval(text.decode("utf-8").strip())
    return header["descr"], header["shape"], header["fortran_order"]


def _is_number(dtype: str) -> bool:
    return dtype == "bfloat16" or _DTYPE.fullmatch(dtype) is not None


def _fields(text: bytes, path: Path, bfloat16: bool, any_type: bool) -> tuple[str, tuple[int, ...], bool]:
    try:
        descr, shape, fortran = _literal(text)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise CorruptDump("its header is not valid for an npy file", path=path, offset=10) from None
    if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size <= _MOST for size in shape):
        raise CorruptDump(f"its shape is {str(shape)[:80]}, expected a tuple of lengths", path=path, offset=10)
    if descr in _BFLOAT16 or (bfloat16 and descr in ("|V2", "<V2")):
        return "bfloat16", shape, bool(fortran)
    if not isinstance(descr, str) or not (any_type or _DTYPE.fullmatch(descr)):
        raise CorruptDump(
            f"its elements have the type {str(descr)[:40]!r}, expected numbers or bool", path=path, offset=10
        )
    return descr, shape, bool(fortran)
