"""Prepare the operators of an eager NPU dump for the pairing with another framework.

The other framework has one operator for an API call, and none for each kernel. So the kernels are left out. But the
file of a call contains whole storages, as arrays of one dimension. If a kernel of the call read or wrote the same
bytes, its record has exactly the tensor, with its shape. So the call gets the tensors of its kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["api_calls"]

#: A copy. Its first input is the memory that it overwrites.
_COPY = "aclnnInplaceCopy"


def api_calls(operators: Sequence[Operator]) -> list[Operator]:
    """Return the operators without the kernels of recorded API calls; the calls have the tensors of their kernels."""
    inside = {id(kernel) for operator in operators for kernel in operator.kernels}
    return [_with_kernel_tensors(operator) for operator in operators if id(operator) not in inside]


def _with_kernel_tensors(call: Operator) -> Operator:
    if not call.kernels:
        return call
    read = [record for kernel in call.kernels for record in kernel.inputs]
    # The last kernel that wrote a tensor is the one whose result is returned.
    written = [record for kernel in reversed(call.kernels) for record in kernel.outputs]
    inputs = call.inputs[1:] if call.op_type == _COPY and len(call.inputs) > 1 else call.inputs
    return replace(
        call,
        inputs=[_tensor_of(record, read) for record in inputs],
        outputs=[_tensor_of(record, written) for record in call.outputs],
        kernels=[],
    )


def _tensor_of(record: Record, candidates: Iterable[Record]) -> Record:
    """Return the kernel's tensor that has the bytes of this storage, or of a part of it; else the record itself."""
    storage = _bytes(record)
    part = None
    for candidate in candidates if storage else ():
        if candidate.dtype == record.dtype and (candidate.nbytes or 0) <= len(storage):
            tensor = _bytes(candidate)
            if tensor == storage:
                return _renamed(candidate, record)
            # Of several such parts, the largest is chosen: a small one may occur anywhere by chance.
            if tensor and tensor in storage and (part is None or len(tensor) > (part.nbytes or 0)):
                part = candidate
    return record if part is None else _renamed(part, record)


def _renamed(tensor: Record, record: Record) -> Record:
    renamed = copy.copy(tensor)
    renamed.index = record.index
    return renamed.as_eager(record.op_type, record.op_name, None, record.execution[-1])


def _bytes(record: Record) -> bytes:
    try:
        return record.numpy().tobytes()
    except AscendDumpError:
        return b""
