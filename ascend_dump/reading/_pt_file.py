"""One tensor in a file of `torch.save`, read without torch and without running its pickle.

The file is a zip archive, `{name}/data.pkl` and the bytes of each storage in `{name}/data/{key}`, uncompressed. Of the
pickle only what a plain tensor needs is understood, as data: names of functions are compared, none is called. Source:
PyTorch, `torch/serialization.py`, `torch/_utils.py` (`_rebuild_tensor_v2`, `_rebuild_tensor_v3`, `_rebuild_parameter`).
"""

from __future__ import annotations

import contextlib
import math
import os
import pickletools
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ascend_dump._errors import CorruptDump, NotSupported
from ascend_dump._files import NotRegularFile, open_regular
from ascend_dump.reading._npy import dtype_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PtTensor", "read_pt", "read_pt_array"]

#: The pickle of one tensor takes some hundred bytes, and its archive a handful of members.
_LONGEST_PICKLE, _MOST_MEMBERS = 64 * 1024, 64
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "",
}
#: Types that only `_rebuild_tensor_v3` names, beside those above.
_DTYPES = {
    *_STORAGES.values(),
    *("uint16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    "float8_e8m0fnu",
} - {""}
_KEY = re.compile(r"[0-9]{1,9}", re.ASCII)
_MOST = 2**63 - 1


class PtTensor(NamedTuple):
    """dtype: a numpy or ml_dtypes name. member: of the storage in the archive. offset, stride: in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    member: str
    size: int
    little: bool


def read_pt(path: Path) -> PtTensor:
    """What the file says of its tensor. Raises CorruptDump, and NotSupported for what is no plain tensor."""
    with _Archive(path) as archive:
        tensor = _tensor(path, archive.pickle())
        dtype, key, offset, shape, stride = tensor
        member = archive.storage(key)
        needed = 0
        if math.prod(shape) * dtype_of(dtype).itemsize > _MOST:
            raise CorruptDump(f"its shape {shape} is larger than any memory", path=path)
        if math.prod(shape):
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride))
            needed = (last + 1) * dtype_of(dtype).itemsize
        if needed > member.file_size:
            raise CorruptDump(f"its shape needs {needed} bytes, its storage has {member.file_size}", path=path)
        return PtTensor(dtype, shape, stride, offset, member.filename, member.file_size, archive.is_little())


def read_pt_array(path: Path, tensor: PtTensor) -> np.ndarray:
    """The values, as a read-only array. Raises CorruptDump."""
    import numpy as np

    with _Archive(path) as archive:
        data = archive.read(tensor.member, tensor.size)
    dtype = dtype_of(tensor.dtype)
    flat = np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)
    if not tensor.little:
        flat = flat.byteswap()
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, dtype)
    steps = [step * dtype.itemsize for step in tensor.stride]
    # numpy makes no strided view of types that are not its own, so of their bits.
    bits = flat.view(f"V{dtype.itemsize}")[tensor.offset :]
    return np.lib.stride_tricks.as_strided(bits, tensor.shape, steps, writeable=False).view(dtype)


class _Archive:
    """The zip archive, with limits: everything in it is uncompressed, so it cannot be larger than its file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Archive:
        try:
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(open_regular(self._path, follow_links=False))
                size = os.fstat(file.fileno()).st_size
                self._zip = opened.enter_context(zipfile.ZipFile(file))
                self._opened = opened.pop_all()
        except NotRegularFile as error:
            raise CorruptDump(error.what, path=self._path) from None
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self._path) from None
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise CorruptDump(f"no archive of torch.save: {error}", path=self._path) from None
        members = self._zip.infolist()
        if len(members) > _MOST_MEMBERS or any(one.compress_type != zipfile.ZIP_STORED for one in members):
            self._opened.close()
            raise CorruptDump("it has members that torch.save does not write", path=self._path)
        # The directory may claim any size; zipfile takes so much memory before it looks at the bytes.
        if any(one.header_offset < 0 or one.header_offset + one.file_size > size for one in members):
            self._opened.close()
            raise CorruptDump(f"a member claims more bytes than the {size} of the file", path=self._path)
        self._members = {one.filename: one for one in members}
        found = [name for name in self._members if name.endswith("/data.pkl") and name.count("/") == 1]
        self._top = found[0][: -len("data.pkl")] if len(found) == 1 else ""
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def pickle(self) -> bytes:
        name = f"{self._top}data.pkl"
        if not self._top or self._members[name].file_size > _LONGEST_PICKLE:
            raise CorruptDump("it holds no data.pkl of one tensor", path=self._path)
        return self.read(name, self._members[name].file_size)

    def storage(self, key: str) -> zipfile.ZipInfo:
        found = self._members.get(f"{self._top}data/{key}")
        if found is None:
            raise CorruptDump(f"its storage {key!r} is missing", path=self._path)
        return found

    def is_little(self) -> bool:
        name = f"{self._top}byteorder"
        return name not in self._members or self.read(name, 6)[:6] != b"big"

    def read(self, name: str, most: int) -> bytes:
        try:
            with self._zip.open(name) as member:
                return member.read(most)
        except (
            OSError,
            zipfile.BadZipFile,
            ValueError,
            RuntimeError,
            NotImplementedError,
            EOFError,
            KeyError,
        ) as error:
            raise CorruptDump(f"{name} cannot be read: {error}", path=self._path) from None


class _Global(NamedTuple):
    name: str


class _Storage(NamedTuple):
    parts: Any


class _PickledCall(NamedTuple):
    function: Any
    args: Any


_MARK = object()
_Found = tuple[str, str, int, tuple[int, ...], tuple[int, ...]]


def _tensor(path: Path, pickle: bytes) -> _Found:
    """(dtype, storage key, offset, shape, stride) of the tensor that the pickle describes."""
    try:
        found = _evaluate(pickle)
        name = _name_of(found)
        if name == "torch._utils._rebuild_parameter":
            found = found.args[0]
            name = _name_of(found)
        if name not in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
            raise _NoTensorError
        storage, offset, shape, stride = found.args[:4]
        _, kind, key, _, _ = storage.parts
        dtype = _STORAGES[kind.name.rpartition(".")[2]]
        if name.endswith("v3"):
            dtype = found.args[6].name.rpartition(".")[2]
        numbers = (offset, *shape, *stride)
        if dtype not in _DTYPES or not _KEY.fullmatch(key) or len(shape) != len(stride) or len(shape) > 64:
            raise _NoTensorError
        if not all(type(number) is int and 0 <= number <= _MOST for number in numbers):
            raise _NoTensorError
        return dtype, key, offset, tuple(shape), tuple(stride)
    except _NoTensorError:
        raise NotSupported(
            f"{path} holds something else than one plain tensor", hint="torch.load(..., weights_only=True) may read it"
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptDump(f"its pickle is not that of a tensor: {error!r}", path=path) from None


class _NoTensorError(Exception):
    """The pickle is sound, and describes something else."""


def _name_of(found: Any) -> str:
    if not isinstance(found, _PickledCall) or not isinstance(found.function, _Global):
        raise _NoTensorError
    return found.function.name


def _evaluate(pickle: bytes) -> Any:
    """What the pickle would make, with names of functions and their calls as data. Raises ValueError, IndexError."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickle):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack[-1]
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_Global(argument.replace(" ", ".")))
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            at = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[at:] = [tuple(stack[at + 1 :])]
        elif name == "BINPERSID":
            stack[-1] = _Storage(stack[-1])
        elif name == "REDUCE":
            stack[-2:] = [_PickledCall(stack[-2], stack[-1])]
        elif name in ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"):
            stack.append(argument)
        elif name in ("NEWTRUE", "NEWFALSE", "NONE"):
            stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(name))
        else:
            raise _NoTensorError
    raise ValueError("no end")
