"""Write converted tensors into files that are private to their owner. A file appears only when it is complete."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ascend_dump.common.paths import PRIVATE_FILE, make_private_directory
from ascend_dump.errors import CorruptDump, NotSupported, ReadError, WriteError
from ascend_dump.storage.files import open_regular

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = [
    "copy_as_npy",
    "fit_name",
    "make_output_directory",
    "write_bytes",
    "write_npy",
    "write_npz",
    "write_safetensors",
    "write_text",
    "write_torch",
]

#: Maximum length of a file name in bytes in file systems. msaccucmp replaces names from this number of characters on.
_LONGEST_NAME = 255
#: Maximum size in bytes of a payload that is read and written; larger ones are copied by the kernel (measured).
_SMALL = 1 << 16
#: Prefix of the name of an incomplete file. The file is locked as long as its process runs.
_DRAFT = ".convert-"
#: Age in seconds up to which an incomplete file may not be locked yet.
_SECONDS_TO_LOCK = 10
_PART = 1 << 24
#: Errors of a kernel, a file system or a sandbox that does not support copying by the kernel.
_NO_KERNEL_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)

_mapping_lock = threading.Lock()


def make_output_directory(path: Path) -> None:
    """Create a directory for converted files, and remove incomplete files that a killed `convert` left in it.

    Raises WriteError, whose message names the option --out.
    """
    make_private_directory(path, "--out=")
    _remove_drafts(path)


@functools.lru_cache(maxsize=1024)
def _remove_drafts(directory: Path) -> None:
    with suppress(OSError), os.scandir(directory) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(_DRAFT)]:
            with suppress(OSError), open_regular(path, follow_links=False) as draft:
                if os.fstat(draft.fileno()).st_mtime < time.time() - _SECONDS_TO_LOCK:
                    fcntl.flock(draft, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError if its process still runs
                    os.unlink(path)


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Return a context with a file to write, which is renamed to `path` at the end. After an error it is removed."""
    temporary = ""
    try:
        # The temporary name is new and short, even if the name of `path` has the maximum length.
        descriptor, temporary = tempfile.mkstemp(prefix=_DRAFT, dir=path.parent)
        with open(descriptor, "wb", buffering=0) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file  # unbuffered, because callers write large blocks
        os.replace(temporary, path)
    except OSError as error:
        raise WriteError(
            f"{os.fspath(path)} cannot be written: {error.strerror or error}", hint="check the directory and the space"
        ) from error
    finally:
        # The temporary file still exists only if it was not renamed.
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write_bytes(path: Path, *parts: Any) -> int:
    """Write byte strings and contiguous arrays one after the other; return the size."""
    size = 0
    with _replaced(path) as file:
        for part in parts:
            size += _write_all(file, part if isinstance(part, (bytes, memoryview)) else _raw(part))
    return size


def write_npy(path: Path, array: _Array) -> int:
    """Write an array with a numpy type as `.npy`, as numpy.save does; return the size."""
    import numpy as np

    if array.flags.c_contiguous:
        return write_bytes(path, _npy_head(array.dtype.str, array.shape, False), array)
    if array.flags.f_contiguous:
        return write_bytes(path, _npy_head(array.dtype.str, array.shape, True), array.T)
    # The array is copied first, because numpy.save would write it element by element.
    return write_bytes(path, _npy_head(array.dtype.str, array.shape, False), np.ascontiguousarray(array))


def copy_as_npy(path: Path, descriptor: int, offset: int, length: int, dtype: str, shape: tuple[int, ...]) -> int:
    """Write an `.npy` file with bytes of another file as its elements; return the size. The kernel copies large ones.

    descriptor, offset, length: the other file, and the byte range in it
    """
    head = _npy_head(dtype, shape, False)
    with _replaced(path) as file:
        if length <= _SMALL:
            _write_all(file, head + _read(descriptor, length, offset))
        else:
            _write_all(file, head)
            _copy(descriptor, offset, length, file)
    return len(head) + length


def write_npz(path: Path, arrays: Mapping[str, _Array]) -> int:
    """Write arrays with numpy types as one uncompressed `.npz`; return the size."""
    import numpy as np

    with _replaced(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # any number of names, some stubs know a keyword of savez
        return file.tell()


def write_safetensors(path: Path, arrays: Mapping[str, _Array]) -> int:
    """Write arrays as one `.safetensors`; return the size. Raises NotSupported for types that the format lacks."""
    import json

    import numpy as np

    from ascend_dump.dump_format import SAFETENSORS

    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        native = SAFETENSORS.get(array.dtype.name)
        if native is None:
            raise NotSupported(f"{name}: a safetensors file has no type {array.dtype.name}", hint="use --type npy")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": native.name, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = [np.ascontiguousarray(array) for array in arrays.values()]
    return write_bytes(path, len(text).to_bytes(8, "little"), text, *data)


def write_torch(path: Path, tensor: Any) -> int:
    """Write a tensor of PyTorch as torch.save does; return the size."""
    from importlib import import_module

    with _replaced(path) as file:
        import_module("torch").save(tensor, file)
        return file.tell()


def write_text(path: Path, array: _Array, separator: str, head: str) -> int:
    """Write an array as text; return the size. A row along the last dimension is a line.

    Floats have as many digits as are needed to read back the same values. head: text before the first line.
    """
    rows = array.reshape(-1, array.shape[-1] if array.ndim and array.size else 1)
    kind = array.dtype.kind
    # Numbers of digits that are enough to read back the same value of the type.
    digits = {"float16": 5, "float32": 9, "complex64": 9}.get(array.dtype.name, 17)
    with _replaced(path) as file:
        size = _write_all(file, head.encode())
        for start in range(0, len(rows), 1024):
            lines = []
            for row in rows[start : start + 1024].tolist():
                if kind == "f":
                    cells = (f"{value:.{digits}g}" for value in row)
                elif kind == "c":
                    cells = (f"{value.real:.{digits}g}{value.imag:+.{digits}g}j" for value in row)
                else:
                    cells = (str(int(value)) for value in row)
                lines.append(separator.join(cells) + "\n")
            size += _write_all(file, "".join(lines).encode())
    return size


def fit_name(directory: Path, name: str, suffix: str) -> str:
    """Return a file name, or a hash and the suffix if the name is too long. `mapping.csv` gets a line `hash,name` then.

    The hash (uuid3 of the name) and the limit (from 255 characters on) are those of msaccucmp.
    """
    if len(name) < _LONGEST_NAME and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    short = uuid.uuid3(uuid.NAMESPACE_DNS, name).hex + suffix
    line = os.fsencode(f"{short},{name}\n")
    mapping = directory / "mapping.csv"
    try:
        with _mapping_lock:
            if not mapping.exists() or line not in mapping.read_bytes():
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                with open(os.open(mapping, flags, PRIVATE_FILE), "ab", buffering=0) as file:
                    file.write(line)
    except OSError as error:
        raise WriteError(f"{mapping} cannot be written: {error.strerror}", hint="check the directory") from error
    return short


@functools.lru_cache(maxsize=1024)
def _npy_head(dtype: str, shape: tuple[int, ...], fortran: bool) -> bytes:
    import io

    import numpy as np

    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": fortran, "shape": shape})
    return out.getvalue()


def _raw(array: _Array) -> memoryview:
    import numpy as np

    flat = array.reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _write_all(file: BinaryIO, data: Any) -> int:
    view = memoryview(data)
    done = 0
    # A loop, because one write transfers at most 2 GiB.
    while done < view.nbytes:
        done += file.write(view[done:])
    return done


def _copy(source: int, offset: int, length: int, file: BinaryIO) -> None:
    end = offset + length
    # Some builds of Python lack copy_file_range.
    in_kernel = hasattr(os, "copy_file_range")
    while offset < end:
        if in_kernel:
            try:
                copied = os.copy_file_range(source, file.fileno(), end - offset, offset)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                in_kernel = False
                continue
            if not copied:
                raise CorruptDump("the file became shorter while it was read", offset=offset)
        else:
            copied = _write_all(file, _read(source, min(end - offset, _PART), offset))
        offset += copied


def _read(source: int, length: int, offset: int) -> bytes:
    try:
        data = os.pread(source, length, offset)
    except OSError as error:
        raise ReadError(f"cannot be read at byte {offset}: {error.strerror}") from error
    if len(data) != length:
        raise CorruptDump("the file became shorter while it was read", offset=offset)
    return data
