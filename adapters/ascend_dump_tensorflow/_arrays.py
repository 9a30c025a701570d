"""Convert tensors of TensorFlow to lines and payloads for the writer of host dumps."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.dump_format import numpy_dtype
from ascend_dump.writing import Line, Payload

__all__ = ["Seen", "line_of", "payload_of"]

#: Quantised types of TensorFlow; in numpy they are structures of one field.
_QUANTISED = ("qint8", "quint8", "qint16", "quint16", "qint32")


class Seen(NamedTuple):
    """One tensor of one operator: names, time (microseconds since the epoch), and bytes."""

    op_type: str
    op_name: str
    io: str
    slot: int
    time: int
    payload: Payload
    device: str = "cpu"


def payload_of(array: Any) -> Optional[Payload]:
    """The bytes of an array; None if it has no numbers: text, resources, variants, uninitialised tensors."""
    if not isinstance(array, np.ndarray):
        return None
    name = array.dtype.name
    if array.dtype.names and len(array.dtype.names) == 1 and array.dtype.names[0] in _QUANTISED:
        name = array.dtype.names[0]
    if array.dtype.hasobject or name.startswith(("str", "bytes", "void")):
        return None
    try:
        numpy_dtype(name)
    except NotSupported:
        return None
    whole = np.ascontiguousarray(array)
    return Payload(whole, whole.ctypes.data, whole.nbytes, name, tuple(array.shape))


def line_of(seen: Seen, seq: int) -> Line:
    return Line(
        seq=seq,
        op_type=seen.op_type,
        op_name=seen.op_name,
        io=seen.io,
        index=seen.slot,
        time=seen.time,
        dtype=seen.payload.dtype,
        shape=seen.payload.shape,
        nbytes=seen.payload.nbytes,
        stride=_strides(seen.payload.shape),
        device=seen.device,
        phase="backward" if _is_gradient(seen.op_name) else "other",
    )


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    found, size = [], 1
    for length in reversed(shape):
        found.append(size)
        size *= max(length, 1)
    return tuple(reversed(found))


def _is_gradient(name: str) -> bool:
    return any(part == "gradient_tape" or part.rstrip("_0123456789") == "gradients" for part in name.split("/"))
