"""Drawings of the values of a tensor: a histogram, and a heat map of at most 64 x 64 cells."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import AscendDumpError
from ascend_dump.report.plots import bins_of, is_number, value_limits

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.reading import Record

__all__ = ["BINS", "heat_map", "read_tensor", "titled_heat_map", "value_histogram"]

#: Number of bins of a histogram.
BINS = 48
#: Maximum number of cells along each side of a heat map.
CELLS = 64
#: Maximum number of powers of ten between the faintest and the strongest colour.
_DECADES = 12.0
#: Byte of a cell with NaN or Inf, and byte of the cell with the largest finite value.
_NONFINITE, _STRONGEST = 255, 254
#: Approximate number of elements processed at once, so that a large memory-mapped tensor is not copied as a whole.
_BLOCK = 1 << 20


def read_tensor(record: Record) -> Optional[np.ndarray]:
    """Return the values of a record, or None if it has none or cannot be read."""
    try:
        return record.numpy()
    except AscendDumpError:  # NotSupported among them
        return None


def value_histogram(actual: Optional[np.ndarray], reference: Optional[np.ndarray]) -> Optional[dict[str, Any]]:
    """Count the finite values of both sides in the same bins. Return None if there is no finite number.

    Returns {"low", "high", "actual": {"counts", "nonfinite"}, "reference": …}; a side without numbers is missing.
    """
    sides = {"actual": actual, "reference": reference}
    arrays = {name: array for name, array in sides.items() if array is not None and is_number(array.dtype)}
    limits = value_limits(arrays.values())
    if not arrays or not limits[0] <= limits[1]:
        return None
    histogram: dict[str, Any] = {"low": limits[0], "high": limits[1]}
    for name, array in arrays.items():
        bins = bins_of(array, BINS, limits)
        histogram[name] = {"counts": list(bins.counts), "nonfinite": bins.size - bins.finite}
    return histogram


def heat_map(actual: np.ndarray, reference: Optional[np.ndarray] = None) -> Optional[dict[str, Any]]:
    """Return a heat map: the largest |actual - reference| in each cell, or |actual| without a reference.

    The tensor is laid out as rows of its last axis; a single row is folded into a square. Each cell is a byte: 0 for
    zero, 1 to 254 for values from `low` to `high` on a logarithmic scale, 255 for NaN or Inf. If both sides have the
    same NaN or Inf, that counts as zero. Returns None if the values are no numbers, or the shapes differ.
    """
    import numpy as np

    if not actual.size or not is_number(actual.dtype):
        return None
    if reference is not None and (reference.shape != actual.shape or not is_number(reference.dtype)):
        return None
    tables = [_table(side) for side in (actual, reference) if side is not None]
    rows, columns = tables[0].shape
    rows_per_cell, columns_per_cell = math.ceil(rows / CELLS), math.ceil(columns / CELLS)
    high = np.zeros((math.ceil(rows / rows_per_cell), math.ceil(columns / columns_per_cell)))
    step = max(1, _BLOCK // (rows_per_cell * columns)) * rows_per_cell
    starts = np.arange(0, columns, columns_per_cell)
    for row in range(0, rows, step):
        with np.errstate(all="ignore"):
            sizes = _sizes(*[table[row : row + step] for table in tables])
        pooled = np.maximum.reduceat(sizes, starts, axis=1)
        pooled = np.maximum.reduceat(pooled, np.arange(0, len(pooled), rows_per_cell), axis=0)
        high[row // rows_per_cell : row // rows_per_cell + len(pooled)] = pooled
    finite = high[np.isfinite(high) & (high > 0)]
    largest = float(finite.max()) if finite.size else 0.0
    smallest = max(float(finite.min()), largest * 10**-_DECADES) if finite.size else 0.0
    cells = np.zeros(high.shape, dtype=np.uint8)
    if finite.size:
        span = math.log(largest / smallest) if smallest and largest > smallest else 0.0
        positive = np.isfinite(high) & (high > 0)
        with np.errstate(all="ignore"):
            level = np.log(high[positive] / smallest) / span if span else np.ones(int(positive.sum()))
        cells[positive] = 1 + np.round(np.clip(level, 0, 1) * (_STRONGEST - 1)).astype(np.uint8)
    cells[~np.isfinite(high)] = _NONFINITE
    return {
        "rows": int(high.shape[0]),
        "columns": int(high.shape[1]),
        "of": [rows, columns],
        "low": smallest,
        "high": largest,
        "cells": base64.b64encode(cells.tobytes()).decode("ascii"),
    }


def titled_heat_map(
    actual: Optional[np.ndarray], reference: Optional[np.ndarray], *, comparable: bool = True
) -> Optional[dict[str, Any]]:
    """Return a heat map with a title: of the difference if the elements of both sides correspond, else of one side.

    comparable: False if the elements do not correspond, for example because one side is transposed
    """
    shown, title = actual, "|actual|"
    if actual is None or reference is None:
        shown, title = (reference if actual is None else actual), "|value|"
        reference = None
    elif comparable and actual.shape == reference.shape:
        title = "|actual − reference|"
    else:
        reference = None
    heat = None if shown is None else heat_map(shown, reference)
    return heat and {"what": title, **heat}


def _table(array: np.ndarray) -> np.ndarray:
    """Return the tensor with two dimensions: rows of the last axis. A single row is folded into a square."""
    import numpy as np

    columns = array.shape[-1] if array.ndim else 1
    rows = array.size // columns
    if rows > 1:
        return array.reshape(rows, columns)
    width = math.ceil(math.sqrt(columns))
    if width * width == columns:
        return array.reshape(width, width)
    filled = np.zeros(width * math.ceil(columns / width), dtype=array.dtype)
    filled[:columns] = array.reshape(-1)
    return filled.reshape(-1, width)


def _sizes(actual: np.ndarray, reference: Optional[np.ndarray] = None) -> np.ndarray:
    """Return |actual - reference|, or |actual| without a reference; Inf where this is NaN or Inf.

    Where both sides have the same NaN or Inf, the result is 0.
    """
    import numpy as np

    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    a = actual.astype(wide)
    if reference is None:
        sizes = np.abs(a)
    else:
        b = reference.astype(wide)
        sizes = np.abs(a - b)
        sizes[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    sizes[~np.isfinite(sizes)] = np.inf
    return np.asarray(sizes, dtype=np.float64)
