"""Find the line of `statistic.csv` that belongs to each file of a tensor beside it.

For statistics computed on the host, MindSpore writes the same timestamp into the line and the tensor's file name
(`e2e_dump.cc`). For statistics computed on the device, timestamp and stream differ (`tensor_statistics.cc`), so the
n-th line of a tensor is joined with the tensor's n-th file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ascend_dump.native.mindspore.names import NpyName, written
from ascend_dump.native.mindspore.statistics_csv import MindsporeStatisticsRow

__all__ = ["join"]


def join(names: Iterable[NpyName], rows: Iterable[MindsporeStatisticsRow]) -> dict[NpyName, MindsporeStatisticsRow]:
    """Return the lines by the names of their files. Files without a line are left out.

    If timestamps differ, the lines and files of a tensor are joined in order if there are as many lines as files.
    """
    exact = {
        (_tensor(row.op_type, row.op_name, row.io, row.slot), row.timestamp): row for row in rows if not row.problem
    }
    joined: dict[NpyName, MindsporeStatisticsRow] = {}
    files: defaultdict[Any, list[NpyName]] = defaultdict(list)
    for name in names:
        tensor = _tensor(name.op_type, name.op_name, name.io, name.position)
        row = exact.pop((tensor, name.timestamp), None)
        if row is None:
            files[tensor].append(name)
        else:
            joined[name] = row
    lines: defaultdict[Any, list[MindsporeStatisticsRow]] = defaultdict(list)
    for (tensor, _), row in exact.items():
        lines[tensor].append(row)
    for tensor, of_tensor in files.items():
        if len(of_tensor) == len(lines.get(tensor, ())):
            of_tensor.sort(key=lambda name: name.timestamp)
            joined.update(zip(of_tensor, sorted(lines[tensor], key=lambda row: row.timestamp)))
    return joined


def _tensor(op_type: str, op_name: str, io: str, position: int) -> tuple[Any, ...]:
    return op_type, written(op_name), io, position
