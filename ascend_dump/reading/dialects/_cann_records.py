"""Create the records of the dialect `cann`: one per tensor, buffer and workspace, or per line of a statistics file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump, NotSupported
from ascend_dump.reading._record import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.native.cann.dump_file import Buffer, DumpFile, Space, Tensor
    from ascend_dump.native.cann.statistics_csv import CannStatisticsRow
    from ascend_dump.statistics import Precision, Statistics

__all__ = ["buffer_record", "statistics_record", "tensor_record"]

#: Maximum of a dimension and of a number of bytes: larger numbers do not fit int64 columns of tables.
_MOST = 2**63 - 1


class _TensorKey(NamedTuple):
    header: DumpFile
    entry: Union[Tensor, Buffer, Space]


class _TensorLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        from ascend_dump.native.cann.dump_file import Tensor, decode, payload

        key: _TensorKey = record.key
        if key.entry.size and not key.entry.length:
            raise NotSupported(
                f"{record} was not written: its address was null on the device",
                hint="the operator does not use this output; read the others",
            )
        if isinstance(key.entry, Tensor):
            return decode(key.header, key.entry, format=format)
        if format not in (None, "ND"):
            raise NotSupported(f"{record} is raw memory without a layout", hint="leave format= out")
        return payload(key.header, key.entry)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class _StatisticsLoader:
    def precision(self, record: Record) -> Precision:
        from ascend_dump.statistics import PRINTED

        return PRINTED

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(f"{record} holds statistics only", hint="dump with data='tensor' to keep values")

    def statistics(self, record: Record) -> Optional[Statistics]:
        from ascend_dump.statistics import Statistics

        row: CannStatisticsRow = record.key
        if row.failed:
            raise NotSupported(
                f"the device could not compute statistics of {record}",
                hint="it has a type the device does not support, or a null address; dump with data='tensor'",
            )
        count = row.elements if row.elements is not None else math.prod(row.shape or ())
        # If the first element is NaN, the device writes NaN as maximum and minimum. Both are unknown then.
        highest, lowest = (None if value is None or value != value else value for value in (row.max, row.min))
        return Statistics(
            count=count,
            max=highest,
            min=lowest,
            mean=row.avg,
            l2norm=row.l2norm,
            nan=row.nan,
            posinf=row.posinf,
            neginf=row.neginf,
        )


_TENSORS = _TensorLoader()
_STATISTICS = _StatisticsLoader()


def tensor_record(header: DumpFile, tensor: Tensor, shared: dict[str, Any], common: dict[str, Any]) -> Record:
    from ascend_dump.native.cann.dtypes import data_type
    from ascend_dump.native.cann.formats import format_name

    kind = data_type(tensor.data_type)
    attrs = {**shared, "data_type": kind.name, "size": tensor.size, "original_shape": list(tensor.original_shape)}
    for field in ("address", "sub_format", "input_type", "arg_index"):
        if getattr(tensor, field):
            attrs[field] = getattr(tensor, field)
    if tensor.dim_range:
        attrs["dim_range"] = [list(pair) for pair in tensor.dim_range]
    if tensor.original_op is not None:
        attrs["original_op"] = _original_op(tensor)
    shape: Optional[tuple[int, ...]] = tensor.shape
    nbytes = (math.prod(tensor.shape) * kind.bits + 7) // 8
    if not kind.bits:
        # A type without a known size is read as plain bytes. The shape in the header counts elements, not bytes.
        attrs["shape"] = list(tensor.shape)
        shape, nbytes = (tensor.length,), tensor.length
    return Record(
        _TENSORS,
        io=tensor.io,
        index=tensor.index,
        key=_TensorKey(header, tensor),
        error=_tensor_error(header, tensor, nbytes),
        attrs=attrs,
        dtype=kind.numpy or kind.name.lower(),
        shape=shape if max(tensor.shape, default=0) <= _MOST else None,
        format=format_name(tensor.format),
        nbytes=nbytes if nbytes <= _MOST else None,
        **common,
    )


def _original_op(tensor: Tensor) -> dict[str, Any]:
    from ascend_dump.native.cann.dtypes import data_type, from_ge
    from ascend_dump.native.cann.formats import format_name

    assert tensor.original_op is not None
    name, output, kind, layout = tensor.original_op
    fields = {"name": name, "output_index": output}
    return {**fields, "data_type": data_type(from_ge(kind)).name, "format": format_name(layout)}


def _tensor_error(header: DumpFile, entry: Union[Tensor, Buffer, Space], nbytes: int) -> Optional[CorruptDump]:
    reason = entry.error
    if not reason and entry.length and nbytes > entry.length:
        reason = f"its payload has {entry.length} bytes, its shape needs {nbytes}"
    if not reason:
        return None
    return CorruptDump(reason, path=header.path, offset=entry.offset, hint="the file's other tensors can be read")


def buffer_record(
    header: DumpFile, entry: Union[Buffer, Space], shared: dict[str, Any], common: dict[str, Any]
) -> Record:
    return Record(
        _TENSORS,
        io="space" if entry.kind == "space" else "buffer",
        index=entry.index,
        key=_TensorKey(header, entry),
        error=_tensor_error(header, entry, 0),
        attrs={**shared, "size": entry.size},
        dtype="uint8",
        shape=(entry.length,),
        format="ND",
        nbytes=entry.length,
        **common,
    )


def statistics_record(row: CannStatisticsRow, shared: dict[str, Any], fields: dict[str, Any]) -> Record:
    dtype, bits = _numpy_names().get(row.dtype or "", (None, 0))
    nbytes = row.size if not bits or row.shape is None else (math.prod(row.shape) * bits + 7) // 8
    attrs = dict(shared)
    if row.dtype:
        attrs["data_type"] = row.dtype
    if row.size is not None:
        attrs["size"] = row.size
    return Record(
        _STATISTICS,
        io=row.io,
        index=row.position,
        key=row,
        attrs=attrs,
        dtype=dtype,
        shape=None if row.shape is None or max(row.shape, default=0) > _MOST else row.shape,
        format=row.format,
        nbytes=nbytes if nbytes is None or nbytes <= _MOST else None,
        **fields,
    )


@cache
def _numpy_names() -> Mapping[str, tuple[Optional[str], int]]:
    """Return (numpy's name, bits) by CANN's name of a type."""
    from ascend_dump.native.cann.dtypes import data_type

    # Reversed, so that the first of several types with the same name is used.
    types = map(data_type, reversed(range(64)))
    return {cann_type.name: (cann_type.numpy or None, cann_type.bits) for cann_type in types}
