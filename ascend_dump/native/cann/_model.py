"""The content of a dump file's header, with the positions of the payloads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional, Union

__all__ = ["MAX_DIMS", "MAX_ENTRIES", "NANO_MAGIC", "Buffer", "DumpFile", "Entry", "OriginalOp", "Space", "Tensor"]

#: The first bytes of the header of a nano file. The header of other dump files never begins with these bytes.
NANO_MAGIC = b"\x5a\x5a\x5a\x5a"
#: Maximum number of entries of a header; an operator has at most a few hundred tensors.
MAX_ENTRIES = 1 << 16
#: Maximum number of dimensions; CANN allows 25.
MAX_DIMS = 64


class OriginalOp(NamedTuple):
    """The operator of the user's model that computes an output, before GE changed the graph.

    data_type is a number of ge::DataType (FLOAT=0), unlike the tensor's own type; format is a number as in
    `Tensor.format`.
    """

    name: str
    output_index: int
    data_type: int
    format: int


class Tensor(NamedTuple):
    """An input or output as the header describes it, and the position of its payload.

    data_type, format  the header's numbers, see `cann.dtypes` and `cann.formats`
    sub_format         number of groups of a grouped convolution, for FRACTAL_Z
    shape              the shape on the device, with padding
    original_shape     the shape in the layout of the model
    size               bytes of the payload according to the header
    offset, length     position and bytes of the payload in this file; length 0 if it has no payload
    address            the address on the device
    memory_offset      the header's field `offset`
    input_type, arg_index  only in files of an exception (adump dump_file)
    error              the reason why the payload cannot be read; "" if it can be read
    """

    io: str
    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    data_type: int
    format: int
    shape: tuple[int, ...]
    original_shape: tuple[int, ...] = ()
    size: int = 0
    sub_format: int = 0
    offset: int = 0
    length: int = 0
    address: int = 0
    memory_offset: int = 0
    original_op: Optional[OriginalOp] = None
    dim_range: tuple[tuple[int, int], ...] = ()
    input_type: int = 0
    arg_index: int = 0
    error: str = ""


class Buffer(NamedTuple):
    """A buffer in the L1 memory, which is dumped instead of the tensors in it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    size: int
    offset: int = 0
    length: int = 0
    type: int = 0
    error: str = ""
    kind: str = "l1buffer"


class Space(NamedTuple):
    """A workspace: temporary memory of an operator."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    size: int
    offset: int = 0
    length: int = 0
    type: int = 0
    arg_index: int = 0
    error: str = ""
    kind: str = "space"


Entry = Union[Tensor, Buffer, Space]


class DumpFile(NamedTuple):
    """The header of a file, with the positions of the payloads.

    dump_time  microseconds since the epoch
    tensors    inputs, then outputs
    attrs      (name, value) pairs; the value of `_sgt_json_info` is FFTS+'s slicing of the operator as JSON
    problems   sentences about irregularities of the file
    """

    path: Path
    version: str
    dump_time: int
    op_name: str
    tensors: tuple[Tensor, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    spaces: tuple[Space, ...] = ()
    attrs: tuple[tuple[str, str], ...] = ()
    dfx_message: str = ""
    nano: bool = False
    problems: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.io == "input")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.io == "output")
