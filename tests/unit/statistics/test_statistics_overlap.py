"""Statistics of arrays whose elements share memory: exact, and in a time that depends on the memory only."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

# Private: thresholds are lowered.
from ascend_dump.statistics import _overlap, statistics

DTYPES: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.int32, np.uint8, np.bool_]
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 60000.0)


@st.composite
def overlapping(draw: st.DrawFn) -> np.ndarray:
    """A view on 61 elements with any strides that stay inside."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    memory = rng.normal(size=61) * 3
    if dtype.kind in "iub":
        memory = np.abs(memory)
    else:
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
            memory[rng.integers(61)] = value
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    steps = draw(st.lists(st.integers(-2, 2), min_size=len(shape), max_size=len(shape)))
    return as_strided(memory.astype(dtype)[30:], shape, [step * dtype.itemsize for step in steps])


def same(found: Any, expected: Any, scale: float) -> bool:
    if found is None or expected is None or math.isnan(expected):
        return (found is None) == (expected is None) and (found is None or math.isnan(found))
    if math.isinf(expected) or math.isinf(found):
        return bool(found == expected)
    return bool(abs(found - expected) <= 1e-12 * scale)


@pytest.mark.parametrize("engine", ["numpy", None])
@settings(deadline=None)  # the first call compiles
@given(array=overlapping(), least=st.sampled_from([1, 1 << 40]))
def test_overlap_does_not_show_in_the_result(engine: Any, array: np.ndarray, least: int) -> None:
    before = _overlap._SIZE, _overlap._OVERLAP
    _overlap._SIZE, _overlap._OVERLAP = least, 1
    try:
        found = statistics(array, engine=engine)
    finally:
        _overlap._SIZE, _overlap._OVERLAP = before
    apart = statistics(np.ascontiguousarray(array), engine=engine)
    rough = {"mean": None, "l2norm": None}
    assert found._replace(**rough) == apart._replace(**rough)
    for value, other in ((found.max, apart.max), (found.min, apart.min)):
        assert value is None or other is None or math.copysign(1, value) == math.copysign(1, other)
    assert same(found.mean, apart.mean, 60000)
    assert same(found.l2norm, apart.l2norm, 60000 * array.size)


@pytest.mark.parametrize("engine", ["numpy", None])
def test_more_elements_than_can_be_counted(engine: Any) -> None:
    row = np.array([3.0, -4.0, 0.0, math.inf], dtype=np.float32)
    found = statistics(np.broadcast_to(row[:3], (10**6, 10**6, 3)), engine=engine)
    assert (found.count, found.zero, found.max, found.min) == (3 * 10**12, 10**12, 3.0, -4.0)
    assert found.mean == pytest.approx(-1 / 3)
    assert found.l2norm == 5e6
    assert statistics(np.broadcast_to(row, (10**6, 10**6, 4)), engine=engine).posinf == 10**12

    ones = np.ones(2000, dtype=np.float32)
    windows = as_strided(ones, (100,) * 8, (4,) * 8)
    found = statistics(windows, engine=engine)
    assert (found.count, found.mean, found.max) == (100**8, 1.0, 1.0)
    assert found.l2norm == pytest.approx(100.0**4)
    ones[5] = math.nan
    # Paths to place 5: ways to write it as a sum of 8 numbers.
    assert statistics(windows, engine=engine).nan == math.comb(12, 7)


def test_sums_at_the_limit_of_floats() -> None:
    top = np.finfo(np.float64).max
    for value in (top, -top, 5e-324):
        found = statistics(as_strided(np.full(300, value), (100, 100, 100, 2), (8, 8, 8, 0)))
        assert (found.mean, found.max, found.min) == (value, value, value)
    mixed = np.array([math.inf, -math.inf] * 200)
    found = statistics(as_strided(mixed, (100, 100, 100, 2), (8, 8, 8, 0)))
    assert math.isnan(found.mean or 0)
    assert (found.l2norm, found.posinf, found.neginf) == (math.inf, 10**6, 10**6)


def test_threads_may_be_told() -> None:
    array = np.arange(1 << 23, dtype=np.float32)
    assert statistics(array, threads=1) == pytest.approx(statistics(array))


@pytest.mark.parametrize("engine", ["numpy", None])
@pytest.mark.parametrize("name", ["float8_e5m2", "bfloat16", "int4", "complex32", "complex128", "bool"])
def test_windows_on_any_type(name: str, engine: Any) -> None:
    """numpy's as_strided goes by names of types, and those of ml_dtypes have none that it knows."""
    if not hasattr(ml_dtypes, name) and name not in np.sctypeDict:
        pytest.skip(f"this ml_dtypes has no {name}")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    memory = np.ones(20_000).astype(dtype)
    memory[7] = memory[7] * 0
    step = dtype.itemsize
    windows = np.ndarray((19_701, 300), dtype, memory, 0, (step, step))
    assert windows.size >= _overlap._SIZE
    found = statistics(windows, engine=engine)
    assert (found.count, found.zero, found.max, found.min) == (windows.size, 8, 1, 0)
