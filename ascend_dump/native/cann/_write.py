"""Write dump files with the same bytes that CANN writes for the same header and payloads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.common.paths import PRIVATE_FILE
from ascend_dump.errors import WriteError
from ascend_dump.native.cann._model import OriginalOp, Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["encode_header", "tensor_of", "write", "write_nano"]

_Path = Union[str, "os.PathLike[str]"]
_Bytes = Union[bytes, bytearray, memoryview, "np.ndarray[Any, Any]"]
#: A tensor and its payload. None stands for a tensor without a payload: its address was null, or it has no bytes.
TensorData = tuple[Tensor, Optional[_Bytes]]


def tensor_of(
    io: str,
    index: int,
    array: np.ndarray[Any, Any],
    *,
    format: int = 2,
    original_shape: Optional[Sequence[int]] = None,
    sub_format: int = 0,
    address: int = 0,
    original_op: Optional[OriginalOp] = None,
) -> TensorData:
    """Return the tensor that the device would describe for an array, with the array's bytes as the payload.

    original_shape: None: the shape of the array. Raises NotSupported for an element type that has no number in CANN.
    """
    from ascend_dump.native.cann import dtypes

    data_type, data = dtypes.encode(array)
    shape = tuple(array.shape)
    tensor = Tensor(
        io,
        index,
        data_type,
        format,
        shape,
        shape if original_shape is None else tuple(original_shape),
        data.nbytes,
        sub_format,
        address=address,
        original_op=original_op,
    )
    return tensor, data


def encode_header(
    tensors: Iterable[Tensor],
    *,
    op_name: str,
    dump_time: int,
    buffers: Iterable[int] = (),
    spaces: Iterable[int] = (),
    attrs: Iterable[tuple[str, str]] = (),
    dfx_message: str = "",
    version: str = "2.0",
    host: bool = False,
) -> bytes:
    """Encode the header of a dump file, CANN's message DumpData. `buffers` and `spaces` are sizes in bytes.

    host: encode like the host, which writes exception dumps: a shape without dimensions, and the original shape, are
    left out. The device writes all shapes, even without dimensions.

    (assumption cann.header_version)
    """
    from ascend_dump.native.cann.messages import messages

    data = messages().dump_data(
        version=version.encode(), dump_time=dump_time, op_name=op_name.encode(), dfx_message=dfx_message.encode()
    )
    for tensor in tensors:
        item = (data.input if tensor.io == "input" else data.output).add(
            data_type=tensor.data_type,
            format=tensor.format,
            size=tensor.size,
            sub_format=tensor.sub_format,
            address=tensor.address,
            offset=tensor.memory_offset,
            arg_index=tensor.arg_index,
        )
        for target, dims in ((item.shape, tensor.shape), (item.original_shape, tensor.original_shape)):
            target.dim.extend(dims)
            if not host:
                target.SetInParent()
        if tensor.io == "input":
            item.input_type = tensor.input_type
            continue
        for start, end in tensor.dim_range:
            item.dim_range.add(dim_start=start, dim_end=end)
        if tensor.original_op is not None:
            origin = item.original_op
            origin.SetInParent()
            origin.name = tensor.original_op.name.encode()
            origin.output_index = tensor.original_op.output_index
            origin.data_type = tensor.original_op.data_type
            origin.format = tensor.original_op.format
    for size in buffers:
        data.buffer.add(size=size)
    for size in spaces:
        data.space.add(size=size)
    for name, value in attrs:
        data.attr.add(name=name.encode(), value=value.encode())
    encoded: bytes = data.SerializeToString()
    return encoded


def write(
    path: _Path,
    tensors: Iterable[TensorData],
    *,
    op_name: str,
    dump_time: int,
    buffers: Sequence[_Bytes] = (),
    spaces: Sequence[_Bytes] = (),
    attrs: Iterable[tuple[str, str]] = (),
    dfx_message: str = "",
    version: str = "2.0",
    host: bool = False,
    append: bool = False,
) -> None:
    """Write a dump file with mode 0600. `append` adds to an existing file, as CANN does; otherwise it is replaced.

    The header gets the sizes in the `Tensor`s, so a payload may be longer than its shape needs. `host` is as in
    `encode_header`. Raises WriteError.
    """
    pairs = list(tensors)
    header = encode_header(
        (tensor for tensor, _ in pairs),
        op_name=op_name,
        dump_time=dump_time,
        buffers=[_as_bytes(data).nbytes for data in buffers],
        spaces=[_as_bytes(data).nbytes for data in spaces],
        attrs=attrs,
        dfx_message=dfx_message,
        version=version,
        host=host,
    )
    _write_file(path, header, [*_in_file_order(pairs), *buffers, *spaces], append)


def write_nano(path: _Path, tensors: Iterable[TensorData], *, version: int = 0, append: bool = False) -> None:
    """Write a nano dump file, whose header has no operator name and no time. Raises WriteError."""
    from ascend_dump.native.cann.nano import encode_nano_header

    pairs = list(tensors)
    _write_file(path, encode_nano_header((tensor for tensor, _ in pairs), version), _in_file_order(pairs), append)


def _in_file_order(pairs: list[TensorData]) -> list[_Bytes]:
    ordered = sorted(pairs, key=lambda pair: pair[0].io)
    return [data for _, data in ordered if data is not None]


def _as_bytes(data: _Bytes) -> memoryview:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return memoryview(data)
    import numpy as np

    # Viewed as bytes, because arrays with a type of ml_dtypes have no buffer interface.
    flat = np.ascontiguousarray(data).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _write_file(path: _Path, header: bytes, payloads: Iterable[_Bytes], append: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    try:
        with open(os.open(path, flags, PRIVATE_FILE), "wb") as file:
            file.write(len(header).to_bytes(8, "little"))
            file.write(header)
            for data in payloads:
                file.write(_as_bytes(data))
    except OSError as error:
        raise WriteError(
            f"{os.fspath(path)} cannot be written: {error.strerror}", hint="check the directory and the free space"
        ) from error
