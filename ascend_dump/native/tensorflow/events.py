"""Read the files of TensorFlow 1's debugger (tfdbg). Each file is one protobuf message `Event`.

Sources: TensorFlow 2.15, `core/util/event.proto`, `framework/summary.proto`, `tensor.proto`, `types.proto`,
`graph.proto`; `core/debug/debug_io_utils.cc` for the fields that tfdbg writes. The messages are parsed here without
protobuf. The elements of a tensor are not read, only their position and their size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump, StorageError
from ascend_dump.storage.files import NotRegularFile, open_descriptor

__all__ = ["EventTensor", "GraphNode", "read_event_graph", "read_event_tensor"]

#: Names in numpy or ml_dtypes by DataType of `types.proto`. Tensors of other types are not arrays of numbers.
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}
_OTHER = {7: "string", 20: "resource", 21: "variant"}
_GRAPH, _SUMMARY = 4, 5
_MOST_AXES = 254
_COPY, _DEBUG = "__copy_", "__dbg_"

_Bytes = Union[bytes, mmap.mmap]
#: A field of a message: (field number, value). The value is an integer, or (begin, end) of its bytes in the file.
_Field = tuple[int, Union[int, tuple[int, int]]]


class EventTensor(NamedTuple):
    """A tensor. Its elements are `nbytes` bytes at `offset`, in C order, little-endian.

    dtype     a name in numpy or ml_dtypes; for other types "string", "resource", "variant" or the type's number
    is_whole  True if the file has the elements; False for an uninitialised tensor, and for types other than numbers
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    is_whole: bool

    @property
    def has_numbers(self) -> bool:
        """True if the elements are numbers or bool."""
        return self.dtype in _DTYPES.values()


class GraphNode(NamedTuple):
    """A node of a graph. inputs: (node, output index) pairs, in which nodes of the debugger are replaced."""

    op: str
    inputs: tuple[tuple[str, int], ...]


def read_event_tensor(path: Path) -> EventTensor:
    """Return the tensor in an event file. Raises CorruptDump if the file is not an event with a tensor."""
    with _Message(path) as message:
        for number, value in message.fields(0, message.size):
            if number == _SUMMARY and not isinstance(value, int):
                for inner, summary in message.fields(*value):
                    if inner == 1 and not isinstance(summary, int):
                        return _value(message, *summary)
        raise CorruptDump("it contains no tensor", path=path)


def _value(message: _Message, start: int, end: int) -> EventTensor:
    for number, value in message.fields(start, end):
        if number == 8 and not isinstance(value, int):
            return _tensor(message, *value)
    raise CorruptDump("its summary contains no tensor", path=message.path)


def _tensor(message: _Message, start: int, end: int) -> EventTensor:
    dtype, offset, nbytes = 0, 0, 0
    shape: list[int] = []
    for number, value in message.fields(start, end):
        if isinstance(value, int):
            dtype = value if number == 1 else dtype
        elif number == 2:
            shape = [size for inner, part in message.fields(*value) for size in _axis(message, inner, part)]
        elif number == 4:
            offset, nbytes = value[0], value[1] - value[0]
    if len(shape) > _MOST_AXES or any(size < 0 for size in shape):
        raise CorruptDump(f"{shape[:8]} is not a valid shape", path=message.path)
    name = _DTYPES.get(dtype) or _OTHER.get(dtype) or str(dtype)
    return EventTensor(name, tuple(shape), offset, nbytes, nbytes > 0 or 0 in shape)


def _axis(message: _Message, number: int, part: Union[int, tuple[int, int]]) -> Iterator[int]:
    if number == 2 and not isinstance(part, int):
        sizes = [value for inner, value in message.fields(*part) if inner == 1 and isinstance(value, int)]
        # A negative number is encoded as 64-bit two's complement. Every one means that the length is invalid.
        yield -1 if sizes and sizes[-1] >= 1 << 63 else sizes[-1] if sizes else 0


def read_event_graph(path: Path) -> dict[str, GraphNode]:
    """Return the nodes of a partition graph by name, without nodes of the debugger. Raises CorruptDump.

    The debugger inserts a copy node for each tensor that it watches. A node that read `layer1/w` now reads
    `__copy_layer1/w_0`; in the result, its input is `layer1/w` again.
    """
    nodes: dict[str, GraphNode] = {}
    with _Message(path) as message:
        for number, value in message.fields(0, message.size):
            if number == _GRAPH and not isinstance(value, int):
                for inner, node in message.fields(*value):
                    if inner == 1 and not isinstance(node, int):
                        name, read = _node(message, *node)
                        if not name.startswith((_COPY, _DEBUG)):
                            nodes[name] = read
    return nodes


def _node(message: _Message, start: int, end: int) -> tuple[str, GraphNode]:
    name, op = "", ""
    inputs: list[tuple[str, int]] = []
    for number, value in message.fields(start, end):
        if isinstance(value, int):
            continue
        if number == 1:
            name = message.text(*value)
        elif number == 2:
            op = message.text(*value)
        elif number == 3:
            source = message.text(*value)
            if not source.startswith("^"):
                inputs.append(_source(source))
    return name, GraphNode(op, tuple(inputs))


def _source(text: str) -> tuple[str, int]:
    if text.startswith(_COPY):
        name, _, slot = text[len(_COPY) :].rpartition("_")
    else:
        name, _, slot = text.rpartition(":") if ":" in text else (text, "", "0")
    return (name, int(slot)) if slot.isascii() and slot.isdecimal() and len(slot) < 10 else (text, 0)


class _Message:
    """A protobuf message in a mapped file. Only the requested parts are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._data: _Bytes = b""

    def __enter__(self) -> _Message:
        try:
            descriptor = open_descriptor(self.path, follow_links=False)
            try:
                self.size = os.fstat(descriptor).st_size
                self._data = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ) if self.size else b""
            finally:
                os.close(descriptor)
        except NotRegularFile as error:
            raise CorruptDump(error.what, path=self.path) from None
        except StorageError:
            raise
        except (OSError, ValueError) as error:
            raise CorruptDump(f"cannot be read: {error}", path=self.path) from None
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    def text(self, start: int, end: int) -> str:
        return bytes(self._data[start:end]).decode("utf-8", "replace")

    def fields(self, start: int, end: int) -> Iterator[_Field]:
        """Yield the fields of the message between two positions. Raises CorruptDump."""
        position = start
        while position < end:
            key, position = self._number(position, end)
            number, kind = key >> 3, key & 7
            value: Optional[int] = None
            if kind == 0:
                value, position = self._number(position, end)
                yield number, value
                continue
            if kind == 2:
                length, position = self._number(position, end)
            else:
                length = {1: 8, 5: 4}.get(kind, -1)
            if not number or length < 0 or position + length > end:
                raise CorruptDump("it is cut off, or is not an event of TensorFlow", path=self.path, offset=position)
            yield number, (position, position + length)
            position += length

    def _number(self, position: int, end: int) -> tuple[int, int]:
        total = 0
        for shift in range(0, 70, 7):
            if position >= end:
                break
            byte = self._data[position]
            position += 1
            total |= (byte & 127) << shift
            if byte < 128:
                return total, position
        raise CorruptDump("it is cut off, or is not an event of TensorFlow", path=self.path, offset=position)
