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

#: Bins of a histogram.
BINS = 48
#: Cells of a map along each side.
CELLS = 64
#: Powers of ten between the faintest and the strongest colour.
_DECADES = 12.0
#: Cells for NaN and Inf, and for the largest finite value.
_NONFINITE, _STRONGEST = 255, 254
#: Elements that are pooled together, so that a large mapped tensor is not copied as a whole.
_BLOCK = 1 << 20


def read_tensor(record: Record) -> Optional[np.ndarray]:
    """Return the values of a record, or None if it has none or cannot be read."""
    try:
        return record.numpy()
    except AscendDumpError:  # NotSupported among them
        return None


def value_histogram(actual: Optional[np.ndarray], reference: Optional[np.ndarray]) -> Optional[dict[str, Any]]:
    """Return the counts of the finite values of both sides in the same bins, or None for no numbers."""
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
    """Return the largest |actual - reference|, or |actual| alone, of each cell, on a logarithmic scale.

    The tensor is laid out as rows of its last axis; a single row is folded. Cells are bytes: 0 zero, 1 to 254 from
    `low` to `high`, 255 for NaN or Inf on one side only, or without a reference. None: no numbers, or different shapes.
    """
    import numpy as np

    if not actual.size or not is_number(actual.dtype):
        return None
    if reference is not None and (reference.shape != actual.shape or not is_number(reference.dtype)):
        return None
    tables = [_table(side) for side in (actual, reference) if side is not None]
    rows, columns = tables[0].shape
    down, across = math.ceil(rows / CELLS), math.ceil(columns / CELLS)
    high = np.zeros((math.ceil(rows / down), math.ceil(columns / across)))
    step = max(1, _BLOCK // (down * columns)) * down
    starts = np.arange(0, columns, across)
    for row in range(0, rows, step):
        with np.errstate(all="ignore"):
            sizes = _sizes(*[table[row : row + step] for table in tables])
        pooled = np.maximum.reduceat(sizes, starts, axis=1)
        pooled = np.maximum.reduceat(pooled, np.arange(0, len(pooled), down), axis=0)
        high[row // down : row // down + len(pooled)] = pooled
    finite = high[np.isfinite(high) & (high > 0)]
    most = float(finite.max()) if finite.size else 0.0
    least = max(float(finite.min()), most * 10**-_DECADES) if finite.size else 0.0
    cells = np.zeros(high.shape, dtype=np.uint8)
    if finite.size:
        span = math.log(most / least) if least and most > least else 0.0
        positive = np.isfinite(high) & (high > 0)
        with np.errstate(all="ignore"):
            level = np.log(high[positive] / least) / span if span else np.ones(int(positive.sum()))
        cells[positive] = 1 + np.round(np.clip(level, 0, 1) * (_STRONGEST - 1)).astype(np.uint8)
    cells[~np.isfinite(high)] = _NONFINITE
    return {
        "rows": int(high.shape[0]),
        "columns": int(high.shape[1]),
        "of": [rows, columns],
        "low": least,
        "high": most,
        "cells": base64.b64encode(cells.tobytes()).decode("ascii"),
    }


def titled_heat_map(
    actual: Optional[np.ndarray], reference: Optional[np.ndarray], *, comparable: bool = True
) -> Optional[dict[str, Any]]:
    """Return the heat map of the difference of two sides if their elements correspond, else of one side alone."""
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
    """Return the tensor in two dimensions: rows of the last axis. A single row is folded into a square."""
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
    """Return |actual - reference|: infinite for NaN or Inf on one side, 0 for the same of both."""
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
