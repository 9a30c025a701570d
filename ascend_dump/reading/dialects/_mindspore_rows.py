"""Join the lines of a `statistic.csv` with the files of tensors beside it.

On the host MindSpore gives a tensor's file and line one timestamp (`e2e_dump.cc`). Statistics that the device computes
have a timestamp and a stream of their own (`tensor_statistics.cc`), so their lines are joined by occurrence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ascend_dump.native.mindspore.names import NpyName, written
from ascend_dump.native.mindspore.statistics_csv import MindsporeStatisticsRow

__all__ = ["join"]


def join(names: Iterable[NpyName], rows: Iterable[MindsporeStatisticsRow]) -> dict[NpyName, MindsporeStatisticsRow]:
    """Return the line of each file that has one.

    Without equal timestamps, the n-th line of a tensor is that of its n-th file if there are as many of the ones as of
    the others.
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
