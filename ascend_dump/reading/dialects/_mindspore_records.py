"""Create the records of the dialect `mindspore`: one per npy file, or per line of a statistics file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.errors import NotSupported
from ascend_dump.reading._npy import dtype_of, read_array
from ascend_dump.reading._record import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.native.mindspore.statistics_csv import MindsporeStatisticsRow
    from ascend_dump.native.npy import NpyHeader
    from ascend_dump.statistics import Precision, Statistics

__all__ = ["npy_record", "statistics_record"]

#: Fields of Statistics by the columns of `statistic.csv`. The columns "negative zero count" and "positive zero count"
#: are left out: in spite of their names they count the elements below and above zero.
_COLUMNS = {
    "count": "count",
    "max value": "max",
    "min value": "min",
    "avg value": "mean",
    "l2norm value": "l2norm",
    "nan count": "nan",
    "positive inf count": "posinf",
    "negative inf count": "neginf",
    "zero count": "zero",
}


class _NpyKey(NamedTuple):
    """The header of an npy file, and a function that returns its line of `statistic.csv`, or None."""

    header: NpyHeader
    row: Callable[[], Optional[MindsporeStatisticsRow]]


class _NpyLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, "ND", record.format):
            raise NotSupported(
                f"{record} has the layout {record.format}, which cannot be converted", hint="leave format= out"
            )
        header: NpyHeader = record.key.header
        return read_array(record.path, header)

    def precision(self, record: Record) -> Precision:
        from ascend_dump.statistics import PRINTED

        return PRINTED

    def statistics(self, record: Record) -> Optional[Statistics]:
        row = record.key.row()
        return None if row is None else _statistics(row, record)


class _RowLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(f"{record} holds statistics only", hint="dump with data='tensor' or 'full' to keep values")

    def precision(self, record: Record) -> Precision:
        from ascend_dump.statistics import PRINTED

        return PRINTED

    def statistics(self, record: Record) -> Optional[Statistics]:
        return _statistics(record.key, record)


_NPY, _ROW = _NpyLoader(), _RowLoader()


def npy_record(
    header: NpyHeader,
    row: Callable[[], Optional[MindsporeStatisticsRow]],
    attrs: dict[str, Any],
    common: dict[str, Any],
) -> Record:
    return Record(
        _NPY,
        key=_NpyKey(header, row),
        attrs=attrs,
        dtype=dtype_of(header.dtype).name,
        shape=header.shape,
        nbytes=header.nbytes,
        **common,
    )


def statistics_record(row: MindsporeStatisticsRow, attrs: dict[str, Any], common: dict[str, Any]) -> Record:
    other_columns = {name: value for name, value in row.values if name not in _COLUMNS}
    extra = dict(attrs)
    if row.dtype:
        extra["data_type"] = row.dtype
    if other_columns:
        extra["statistics"] = other_columns
    return Record(
        _ROW,
        key=row,
        attrs=extra,
        op_type=row.op_type,
        io=row.io,
        index=row.slot,
        task_id=row.task_id,
        stream_id=row.stream_id,
        timestamp=row.timestamp,
        dtype=_numpy_name(row.dtype),
        shape=row.shape,
        nbytes=row.size,
        **common,
    )


def _statistics(row: MindsporeStatisticsRow, record: Record) -> Statistics:
    from ascend_dump.statistics import Statistics

    fields: dict[str, Any] = {
        _COLUMNS[column]: value
        for column, value in row.values
        if column in _COLUMNS and isinstance(value, (int, float))
    }
    for name in ("max", "min"):
        if fields.get(name) != fields.get(name):
            # A NaN among the elements: the maximum and minimum of the other elements are unknown.
            del fields[name]
    if not isinstance(fields.get("count"), int):
        fields["count"] = math.prod(record.shape or ())
    if "l2norm" in fields:
        # The device writes the only element of a tensor without axes as its norm, with the sign.
        fields["l2norm"] = abs(fields["l2norm"])
    return Statistics(**fields)


def _numpy_name(label: Optional[str]) -> Optional[str]:
    """Return numpy's name of a type; None if it is unknown. label: MindSpore's name: Float32, float32 or BFloat16."""
    import numpy as np

    low = (label or "").lower()
    if low == "bfloat16":
        return low
    try:
        return np.dtype(low).name if low else None
    except TypeError:
        return None
