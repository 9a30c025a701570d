"""The table `statistic.csv` of MindSpore's Dump.

Ten columns describe the tensor, and the requested statistics follow in the order of the configuration. The names of the
columns are those in the library of MindSpore 2.10.0. Numbers are printed as a C++ stream does. Maximum, minimum and
average are `null` if no element is finite (tensor_stat_dump.cc, csv_writer.h).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Union

import numpy as np

if TYPE_CHECKING:
    from ascend_dump.fakes.mindspore._disk import Folder

    _Array = np.ndarray[Any, Any]

__all__ = ["COLUMNS", "header", "row", "write_row"]

_STATISTIC = "statistic.csv"

_FACTS = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"


class _ElementValues:
    """A tensor, with all its elements, and its finite elements, as float64."""

    def __init__(self, array: _Array) -> None:
        self.array = array
        self.all = array.astype(np.float64).reshape(-1)
        self.finite = self.all[np.isfinite(self.all)]


def _of_finite(function: Callable[[_Array], Any]) -> Callable[[_ElementValues], Union[str, int]]:
    return lambda values: f"{float(function(values.finite)):g}" if len(values.finite) else "null"


def _count(function: Callable[[_Array], Any]) -> Callable[[_ElementValues], Union[str, int]]:
    return lambda values: int(function(values.all).sum())


#: Category in the configuration -> name of the column, and the function that computes its value.
COLUMNS: Mapping[str, tuple[str, Callable[[_ElementValues], Union[str, int]]]] = {
    "max": ("Max Value", _of_finite(np.max)),
    "min": ("Min Value", _of_finite(np.min)),
    "avg": ("Avg Value", _of_finite(np.mean)),
    "count": ("Count", lambda values: len(values.all)),
    # Despite their names, these are the numbers of elements below and above zero (MindSpore's document).
    "negative zero count": ("Negative Zero Count", _count(lambda elements: elements < 0)),
    "positive zero count": ("Positive Zero Count", _count(lambda elements: elements > 0)),
    "nan count": ("Nan Count", _count(np.isnan)),
    "negative inf count": ("Negative Inf Count", _count(np.isneginf)),
    "positive inf count": ("Positive Inf Count", _count(np.isposinf)),
    "zero count": ("Zero Count", _count(lambda elements: elements == 0)),
    "l2norm": ("L2Norm Value", lambda values: f"{float(np.sqrt(np.square(values.all).sum())):g}"),
    "md5": ("MD5", lambda values: hashlib.md5(values.array.tobytes(), usedforsecurity=False).hexdigest()),
    "hash": ("SHA1", lambda values: hashlib.sha1(values.array.tobytes(), usedforsecurity=False).hexdigest()),
    "hash:sha1": ("SHA1", lambda values: hashlib.sha1(values.array.tobytes(), usedforsecurity=False).hexdigest()),
    "hash:md5": ("MD5", lambda values: hashlib.md5(values.array.tobytes(), usedforsecurity=False).hexdigest()),
}


def header(categories: Sequence[str]) -> str:
    """Return the first line of the table, for these categories."""
    return ",".join([_FACTS, *(COLUMNS[name][0] for name in categories)]) + "\n"


def row(facts: Sequence[str], array: _Array, dtype: str, categories: Sequence[str]) -> str:
    """Return the line of a tensor. facts: the values of the columns up to "Slot". dtype: MindSpore's name."""
    shape = '"(' + ",".join(str(length) for length in array.shape) + ')"'
    values = _ElementValues(array)
    statistics = [str(COLUMNS[name][1](values)) for name in categories]
    return ",".join([*facts, str(array.nbytes), dtype, shape, *statistics]) + "\n"


def write_row(folder: Folder, facts: Sequence[str], array: _Array, dtype: str, categories: Sequence[str]) -> None:
    """Append a tensor's line to the table in a directory. A new table begins with the header."""
    text = row(facts, array, dtype, categories)
    new = not os.path.exists(folder.path / _STATISTIC)
    folder.append(_STATISTIC, (header(categories) + text if new else text).encode())
