"""Convert tensors of TensorFlow to the records of our dump format."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.dump_format import numpy_dtype
from ascend_dump.writing import Line, Payload

__all__ = ["RecordedTensor", "line_of", "payload_of"]

#: Quantised types of TensorFlow. In numpy they are structured types with one field, which has this name.
_QUANTISED = ("qint8", "quint8", "qint16", "quint16", "qint32")


class RecordedTensor(NamedTuple):
    """One tensor of one execution of an operator.

    slot    index among the inputs or outputs
    time    microseconds since the epoch
    source  FILE:LINE of the user's code
    """

    op_type: str
    op_name: str
    io: str
    slot: int
    time: int
    payload: Payload
    device: str = "cpu"
    source: str = ""


def payload_of(array: Any) -> Optional[Payload]:
    """Return the bytes of an array; None if it contains no numbers, such as text, resources or variants."""
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


def line_of(tensor: RecordedTensor, seq: int) -> Line:
    """Return the line of the index for a tensor. seq: position of this execution in the step."""
    return Line(
        seq=seq,
        op_type=tensor.op_type,
        op_name=tensor.op_name,
        io=tensor.io,
        index=tensor.slot,
        time=tensor.time,
        dtype=tensor.payload.dtype,
        shape=tensor.payload.shape,
        nbytes=tensor.payload.nbytes,
        stride=_strides(tensor.payload.shape),
        device=tensor.device,
        source=tensor.source,
        phase="backward" if _is_gradient(tensor.op_name) else "other",
    )


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return tuple(reversed(strides))


def _is_gradient(name: str) -> bool:
    return any(part == "gradient_tape" or part.rstrip("_0123456789") == "gradients" for part in name.split("/"))
