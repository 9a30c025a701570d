"""Read tensors from files of `torch.save`, without torch and without executing the pickle.

The file is an uncompressed zip archive with `{name}/data.pkl`, and the bytes of each storage in `{name}/data/{key}`.
The pickle describes tensors as calls of functions. These functions are recognised by their names and never called.
Only the opcodes for plain tensors, numbers, strings, lists and dictionaries are interpreted. Source: PyTorch,
`torch/serialization.py`, `torch/_utils.py` (`_rebuild_tensor_v2`, `_rebuild_tensor_v3`, `_rebuild_parameter`).
"""

from __future__ import annotations

import contextlib
import math
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, NotSupported, StorageError
from ascend_dump.reading._npy import dtype_of
from ascend_dump.storage.files import NotRegularFile, open_regular, size_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PtObject", "PtTensor", "describe_pt", "read_pt_array", "read_pt_items"]

#: Limits for a file with one tensor, whose pickle usually has a few hundred bytes: bytes of the pickle, and number of
#: members of the archive.
_LONGEST_PICKLE, _MOST_MEMBERS = 64 * 1024, 64
#: Limits for a file with many tensors: bytes of the pickle, and number of members of the archive (storages).
_LONGEST_DOCUMENT, _MOST_STORAGES = 1 << 24, 1 << 16
#: Maximum number of opcodes of a pickle; each takes a few microseconds.
_MOST_STEPS = 500_000
#: Maximum number of values in a file, and of levels of nesting. A short pickle can have very many values, because it
#: can refer to the same list many times.
_MOST_ITEMS, _DEEPEST = 100_000, 32
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
#: All types of tensors: those of `_STORAGES`, and those that only `_rebuild_tensor_v3` has.
_DTYPES = {
    *_STORAGES.values(),
    *("uint16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    "float8_e8m0fnu",
} - {""}
_KEY = re.compile(r"[0-9]{1,9}", re.ASCII)
_MAX_INT64 = 2**63 - 1


class PtTensor(NamedTuple):
    """The description of a tensor in a file.

    dtype           a name in numpy or ml_dtypes
    stride, offset  in elements, as in PyTorch
    member, size    the archive member with the storage, and its size in bytes
    little          True if the storage is little-endian
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    member: str
    size: int
    little: bool


class PtObject(NamedTuple):
    """A value that is not interpreted. name: the name of its type, or of the function that would create it."""

    name: str


def describe_pt(path: Path) -> PtTensor:
    """Read the description of a file's only tensor. Raises CorruptDump; NotSupported if it is not a plain tensor."""
    with _Archive(path, _MOST_MEMBERS) as archive:
        value = _evaluated(path, archive.pickle(_LONGEST_PICKLE))
        tensor = archive.tensor(value)
        if tensor is None:
            raise NotSupported(
                f"{path} contains something other than one plain tensor",
                hint="torch.load(..., weights_only=True) may read it",
            )
        return tensor


def read_pt_items(path: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested dictionaries and lists, each with its path of keys.

    A value is a PtTensor, a number, a string, None or a PtObject. Raises CorruptDump; NotSupported if the pickle has
    opcodes for other objects.
    """
    with _Archive(path, _MOST_STORAGES) as archive:
        root = _evaluated(path, archive.pickle(_LONGEST_DOCUMENT))
        stack: list[tuple[tuple[str, ...], Any]] = [((), root)]
        count = 0
        while stack:
            keys, value = stack.pop()
            count += 1
            if count > _MOST_ITEMS or len(keys) > _DEEPEST:
                raise CorruptDump(
                    f"it contains more than {_MOST_ITEMS} values, or more than {_DEEPEST} levels of nesting", path=path
                )
            tensor = archive.tensor(value)
            inner = _inner_values(value) if tensor is None else None
            if inner is not None:
                stack += [((*keys, key), item) for key, item in reversed(inner)]
            elif tensor is not None:
                yield keys, tensor
            else:
                yield keys, _plain_value(value)


def _inner_values(value: Any) -> Optional[list[tuple[str, Any]]]:
    if isinstance(value, _PickledDict):
        return [(str(key), item) for key, item in value.items[:_MOST_ITEMS]]
    if isinstance(value, (list, tuple)) and not isinstance(value, (_Global, _Storage, _PickledCall)):
        return [(str(number), item) for number, item in enumerate(value[:_MOST_ITEMS])]
    return None


def _plain_value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    while isinstance(value, _PickledCall):
        value = value.function
    return PtObject(value.name if isinstance(value, _Global) else type(value).__name__.strip("_"))


def read_pt_array(path: Path, tensor: PtTensor) -> np.ndarray:
    """Read the values of a described tensor as a read-only array. Raises CorruptDump."""
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
    # Viewed as bytes of the same size, because numpy creates no strided views of arrays with a type of ml_dtypes.
    bits = flat.view(f"V{dtype.itemsize}")[tensor.offset :]
    return np.lib.stride_tricks.as_strided(bits, tensor.shape, steps, writeable=False).view(dtype)


class _Archive:
    """The opened zip archive. An archive with more than `most` members or with a compressed one raises CorruptDump."""

    def __init__(self, path: Path, most: int = _MOST_STORAGES) -> None:
        self._path = path
        self._most = most

    def __enter__(self) -> _Archive:
        try:
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(open_regular(self._path, follow_links=False))
                size = size_of(file)
                self._zip = opened.enter_context(zipfile.ZipFile(file))
                self._opened = opened.pop_all()
        except NotRegularFile as error:
            raise CorruptDump(error.what, path=self._path) from None
        except StorageError:
            raise
        except OSError as error:
            raise CorruptDump(f"cannot be read: {error.strerror}", path=self._path) from None
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise CorruptDump(f"not an archive of torch.save: {error}", path=self._path) from None
        members = self._zip.infolist()
        if len(members) > self._most or any(member.compress_type != zipfile.ZIP_STORED for member in members):
            self._opened.close()
            raise CorruptDump(
                f"it has compressed members, or more than {self._most}: torch.save writes no such archive",
                path=self._path,
            )
        # The central directory may claim any size, and zipfile allocates that much memory before it reads.
        if any(member.header_offset < 0 or member.header_offset + member.file_size > size for member in members):
            self._opened.close()
            raise CorruptDump(f"a member claims more bytes than the {size} of the file", path=self._path)
        self._members = {member.filename: member for member in members}
        pickles = [name for name in self._members if name.endswith("/data.pkl") and name.count("/") == 1]
        self._top = pickles[0][: -len("data.pkl")] if len(pickles) == 1 else ""
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def pickle(self, most: int) -> bytes:
        name = f"{self._top}data.pkl"
        if not self._top or self._members[name].file_size > most:
            raise CorruptDump(f"it has no data.pkl of at most {most} bytes", path=self._path)
        return self.read(name, self._members[name].file_size)

    def tensor(self, value: Any) -> Optional[PtTensor]:
        """Return the tensor that an evaluated pickle describes; None if it is no plain tensor. Raises CorruptDump."""
        described = _described_tensor(self._path, value)
        if described is None:
            return None
        dtype, key, offset, shape, stride = described
        member = self.storage(key)
        itemsize = dtype_of(dtype).itemsize
        if math.prod(shape) * itemsize > _MAX_INT64:
            raise CorruptDump(f"its shape {shape} is larger than any memory", path=self._path)
        needed = 0
        if math.prod(shape):
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride))
            needed = (last + 1) * itemsize
        if needed > member.file_size:
            raise CorruptDump(
                f"its shape needs {needed} bytes, but its storage has {member.file_size}", path=self._path
            )
        return PtTensor(dtype, shape, stride, offset, member.filename, member.file_size, self.is_little())

    def storage(self, key: str) -> zipfile.ZipInfo:
        member = self._members.get(f"{self._top}data/{key}")
        if member is None:
            raise CorruptDump(f"its storage {key!r} is missing", path=self._path)
        return member

    def is_little(self) -> bool:
        name = f"{self._top}byteorder"
        return name not in self._members or self.read(name, 6)[:6] != b"big"

    def read(self, name: str, most: int) -> bytes:
        try:
            with self._zip.open(name) as member:
                return member.read(most)
        except StorageError:
            raise
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


class _PickledDict:
    """A dictionary, as a list of items, because its keys may be of any type."""

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []


_Description = tuple[str, str, int, tuple[int, ...], tuple[int, ...]]
_DICTIONARIES = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict")


class _UninterpretedPickleError(Exception):
    """The pickle is valid, but has an opcode that is not interpreted."""


def _evaluated(path: Path, pickle: bytes) -> Any:
    try:
        return _evaluate(pickle)
    except _UninterpretedPickleError as error:
        raise NotSupported(
            f"{path} contains objects other than tensors, numbers, strings, lists and dictionaries ({error})",
            hint="torch.load(..., weights_only=True) may read it",
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptDump(f"its pickle is damaged: {error!r}", path=path) from None


def _described_tensor(path: Path, value: Any) -> Optional[_Description]:
    """Return (dtype, storage key, offset, shape, stride) of a tensor; None if the value is no plain tensor."""
    try:
        name = _name_of(value)
        if name == "torch._utils._rebuild_parameter":
            value = value.args[0]
            name = _name_of(value)
        if name not in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
            return None
        storage, offset, shape, stride = value.args[:4]
        _, kind, key, _, _ = storage.parts
        dtype = _STORAGES.get(kind.name.rpartition(".")[2], "")
        if name.endswith("v3"):
            dtype = value.args[6].name.rpartition(".")[2]
        numbers = (offset, *shape, *stride)
        if dtype not in _DTYPES or not _KEY.fullmatch(key) or len(shape) != len(stride) or len(shape) > 64:
            return None
        if not all(type(number) is int and 0 <= number <= _MAX_INT64 for number in numbers):
            return None
        return dtype, key, offset, tuple(shape), tuple(stride)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptDump(f"its pickle describes a tensor in an invalid way: {error!r}", path=path) from None


def _name_of(value: Any) -> str:
    if not isinstance(value, _PickledCall) or not isinstance(value.function, _Global):
        return ""
    return value.function.name


def _evaluate(pickle: bytes) -> Any:
    """Interpret a pickle and return its value, with functions and calls as `_Global` and `_PickledCall`.

    Raises _UninterpretedPickleError for other opcodes; ValueError, TypeError, KeyError or IndexError if it is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for number, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
        name = opcode.name
        if number > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS} opcodes")
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
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_Global(f"{stack[-2]}.{stack[-1]}")]
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            start = marks.pop()
            stack[start:] = [tuple(stack[start:])]
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"):
            start = marks.pop() if name.endswith("S") else len(stack) - (1 if name == "APPEND" else 2)
            _add(stack[start - 1], stack[start:])
            del stack[start:]
        elif name == "BINPERSID":
            stack[-1] = _Storage(stack[-1])
        elif name in ("REDUCE", "NEWOBJ"):
            call = _PickledCall(stack[-2], stack[-1])
            stack[-2:] = [_PickledDict() if _name_of(call) in _DICTIONARIES else call]
        elif name == "BUILD":
            # The state of an object is not needed: only the name of its type is used.
            del stack[-1]
        elif name in _VALUES:
            stack.append(argument)
        elif name in ("NEWTRUE", "NEWFALSE", "NONE"):
            stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(name))
        else:
            raise _UninterpretedPickleError(name)
    raise ValueError("it has no opcode STOP at its end")


_EMPTY = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": _PickledDict}
_VALUES = frozenset(
    (
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"),
        *("BINFLOAT", "BINBYTES", "SHORT_BINBYTES"),
    )
)


def _add(container: Any, values: list[Any]) -> None:
    """Add values to a list, or keys and values to a dictionary. Other containers are not interpreted: do nothing."""
    if isinstance(container, list):
        container += values
    elif isinstance(container, _PickledDict):
        container.items += zip(values[::2], values[1::2])
