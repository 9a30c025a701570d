"""Write the files of one executed operator: dump files, statistics, overflow records and exception dumps.

Sources: aicpu_schedule dump_task (device writer), adump dump_stream_info (captured streams) and exception_dumper,
adx_dump_record (chosen statistics), GE data_dumper (header, Opdebug).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from ascend_dump.native.cann import dtypes
from ascend_dump.native.cann.dump_file import OriginalOp, Tensor, tensor_of
from ascend_dump.native.cann.formats import format_name, format_number
from ascend_dump.native.cann.names import (
    EXCEPTION_DIRECTORY,
    OPDEBUG_NAME,
    OPDEBUG_TYPE,
    DumpName,
    build_name,
)
from ascend_dump.native.cann.overflow import MAGIC, NOT_APPLICABLE, PAYLOAD_SIZE, encode_overflow
from ascend_dump.native.cann.statistics_csv import HEADER, format_row, format_statistics, format_tensor

if TYPE_CHECKING:
    from ascend_dump.fakes.device.disk import Disk
    from ascend_dump.native.cann.graph import Node

    _Array = np.ndarray[Any, Any]

__all__ = ["Addresses", "KernelCall", "exception_file", "opdebug_file", "operator_file", "tensors_of"]

#: The attribute with the slices of FFTS+. The device writes no other attribute to headers.
_SLICES = "_sgt_json_info"
#: The first address of device memory, and the number of which all addresses are multiples.
_BASE, _ALIGNMENT = 0x12C040000000, 512
#: Statistics that `dump_stats` can request, in the order of the columns -> index in the result of `format_statistics`.
_CHOSEN = {"Max": 0, "Min": 1, "Avg": 2, "Nan": 4, "Negative Inf": 5, "Positive Inf": 6}
_TITLES = {"Nan": "Nan Count", "Negative Inf": "Negative Inf Count", "Positive Inf": "Positive Inf Count"}
_MAGIC_SOCS = ("Ascend910B", "Ascend910_93", "Ascend950")
_UINT8, _ND = 4, 2


class Addresses:
    """The addresses of tensors on the device. A tensor of an operator keeps its address while its size is the same."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[object, ...], int] = {}
        self._next = _BASE

    def find(self, nbytes: int, *owner: object) -> int:
        """Return the address of a tensor. owner: what identifies it, such as model, operator, side and index."""
        key = (*owner, nbytes)
        if key not in self._addresses:
            self._addresses[key] = self._next
            self._next += (nbytes + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT
        return self._addresses[key]


class KernelCall(NamedTuple):
    """One execution of an operator.

    task, stream              ids in the file name
    model_id                  None outside of models
    formats, original_shapes  by position, such as "input0"
    attrs                     attributes of the operator
    """

    node: Node
    inputs: tuple[_Array, ...]
    outputs: tuple[_Array, ...]
    task: int
    stream: int
    model_id: Optional[int] = None
    formats: Mapping[str, str] = {}
    original_shapes: Mapping[str, Sequence[int]] = {}
    attrs: Mapping[str, Any] = {}


def tensors_of(call: KernelCall, side: str, addresses: Addresses) -> list[tuple[Tensor, Any]]:
    """Return the tensors of one side ("input" or "output"): the description in the header, and the bytes.

    (assumption cann.original_dtype)
    """
    tensors = []
    names = call.node.original_names
    for index, array in enumerate(call.inputs if side == "input" else call.outputs):
        position = f"{side}{index}"
        layout = format_number(call.formats.get(position, "ND"))
        tensor, data = tensor_of(side, index, array, format=layout, original_shape=call.original_shapes.get(position))
        if side == "output" and names:
            # The original operator's type has GE's number, not that of dump files.
            origin = OriginalOp(names[-1], index, dtypes.to_ge(tensor.data_type), layout)
            tensor = tensor._replace(original_op=origin)
        address = addresses.find(tensor.size, call.model_id, call.node.name, position)
        tensors.append((tensor._replace(address=address), data))
    return tensors


def operator_file(
    disk: Disk,
    directory: str,
    name: DumpName,
    header_name: str,
    tensors: Sequence[tuple[Tensor, Any]],
    *,
    data: str = "tensor",
    stats: Sequence[str] = (),
    attrs: Mapping[str, Any] = {},
) -> None:
    """Write the dump file of an operator, or its statistics if `data` is "stats".

    directory, name: the path. header_name: the operator's name in the header. stats: requested statistics. attrs:
    attributes of the operator. Nothing is written if no tensor has a byte. Tensors that a blacklist excludes are not in
    `tensors`, and statistics number the remaining ones without gaps.

    (assumption cann.file_name)
    (assumption cann.one_header_in_a_file)
    (assumption cann.empty_operator)
    """
    if not any(tensor.size for tensor, _ in tensors):
        return
    if data == "stats":
        path = f"{directory}/{build_name(name._replace(statistics=True))}"
        disk.write_text(path, _statistics(_renumber(tensors), stats))
        return
    slices = [(_SLICES, str(attrs[_SLICES]))] if _SLICES in attrs else []
    disk.write_dump(
        f"{directory}/{build_name(name)}", tensors, op_name=header_name, dump_time=name.timestamp, attrs=slices
    )


def opdebug_file(
    disk: Disk, directory: str, call: KernelCall, address: int, *, status: int, unit: str, soc: str, stamp: int
) -> None:
    """Write the overflow record of an operator.

    The file has the name of the debug operator, with task 0. address: the address of the record's buffer. status,
    unit: as in `Faults.overflow`. stamp: the time in µs.

    (assumption cann.overflow_file)
    (assumption cann.overflow_task)
    """
    ids = {
        "model_id": NOT_APPLICABLE if call.model_id is None else call.model_id,
        "stream_id": call.stream,
        "task_id": call.task,
        "task_type": 0,
        "status": status,
    }
    if soc.startswith(_MAGIC_SOCS):
        record = {"acc_type": unit, "data": {**ids, "context_id": NOT_APPLICABLE, "thread_id": NOT_APPLICABLE}}
        document = {"magic": hex(MAGIC), "version": 0, "acc_list": record}
    else:
        document = {"AI Core": ids}
    origin = OriginalOp(OPDEBUG_NAME, 0, _UINT8, _ND)
    shape = (PAYLOAD_SIZE,)
    tensor = Tensor("output", 0, _UINT8, _ND, shape, shape, PAYLOAD_SIZE, original_op=origin, address=address)
    name = DumpName("device", OPDEBUG_TYPE, OPDEBUG_NAME, stamp, 0, call.stream)
    disk.write_dump(
        f"{directory}/{build_name(name)}",
        [(tensor, encode_overflow(document))],
        op_name=OPDEBUG_NAME,
        dump_time=stamp,
    )


def exception_file(
    disk: Disk, path: str, device: int, kind: str, call: KernelCall, addresses: Addresses, now: float
) -> None:
    """Write the exception dump of a failed operator. The file name contains the local time.

    path: directory of the setting. kind: "brief" or "norm". now: seconds since the epoch.

    (assumption cann.exception_names)
    """
    local = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
    stamp = int(f"{local}{int(now * 1000) % 1000:03d}")
    form = "brief" if kind == "brief" else "normal"
    op_type = "exception_info" if kind == "brief" else call.node.type
    name = DumpName(form, op_type, call.node.name, stamp, call.task, call.stream)
    directory = "/".join((path.rstrip("/"), *EXCEPTION_DIRECTORY, str(device)))
    tensors = [*tensors_of(call, "input", addresses), *tensors_of(call, "output", addresses)]
    disk.write_dump(
        f"{directory}/{build_name(name)}",
        tensors,
        exception=True,
        op_name=call.node.name,
        dump_time=int(now * 1e6),
    )


def _renumber(tensors: Sequence[tuple[Tensor, Any]]) -> list[tuple[Tensor, Any]]:
    # (assumption cann.compact_indices)
    counts = {"input": 0, "output": 0}
    numbered = []
    for tensor, data in tensors:
        numbered.append((tensor._replace(index=counts[tensor.io]), data))
        counts[tensor.io] += 1
    return numbered


def _statistics(tensors: Sequence[tuple[Tensor, Any]], chosen: Sequence[str]) -> str:
    if not chosen or set(chosen) == set(_CHOSEN):
        return HEADER + "\n" + "".join(format_tensor(tensor, data) for tensor, data in tensors)
    columns = [name for name in _CHOSEN if name in chosen]
    titles = [_TITLES.get(name, f"{name} Value") for name in columns]
    l2norm = "L2norm" in chosen
    head = [*HEADER.split(",")[:6], "Count", *titles, *(["l2norm"] if l2norm else [])]
    return ",".join(head) + "\n" + "".join(_chosen_row(tensor, data, columns, l2norm) for tensor, data in tensors)


def _chosen_row(tensor: Tensor, data: Any, columns: Sequence[str], l2norm: bool) -> str:
    """Return the line of a tensor in a table of requested statistics. Types that AI Core lacks have NA in all columns.

    (assumption cann.stats_chosen)
    """
    kind = dtypes.data_type(tensor.data_type)
    values = dtypes.decode(np.frombuffer(data, np.uint8), tensor.data_type, tensor.shape).reshape(-1)
    texts = ["NA"] * (len(columns) + l2norm)
    if kind.name == "BF16":
        values = values.astype("f4")
    if values.size and values.dtype.kind in "fiub":
        printed = format_statistics(values)
        texts = [printed[_CHOSEN[name]] for name in columns]
        if l2norm:
            wide = values.astype("f8")
            texts.append(f"{float(np.sqrt((wide * wide).sum())):g}")
    return format_row(
        tensor.io,
        tensor.index,
        tensor.size,
        f"DT_{kind.name}",
        format_name(tensor.format),
        tensor.shape,
        [str(math.prod(tensor.shape)), *texts],
    )
