"""Statistics in two parts, of which the second reads no memory: the same as those in one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ascend_dump import ConfigError
from ascend_dump.statistics import scanner, statistics, warm_up

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

_SCANNED = ("float32", "float16", "bfloat16", "int64", "int32", "uint16", "bool", "uint8", "complex64", "float8_e4m3fn")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@needs_numba
@pytest.mark.parametrize("name", _SCANNED)
@given(data=st.binary(min_size=8, max_size=4000))
@settings(max_examples=60, deadline=None)
def test_the_same_as_in_one(name: str, data: bytes) -> None:
    dtype = dtype_of(name)
    warm_up([dtype])
    data = data[: len(data) // 8 * 8]
    # Bits of any kind: NaN, Inf, subnormal numbers, bools that are neither 0 nor 1.
    memory = bytearray(data)
    aligned = np.frombuffer(memory, dtype="u8").copy()
    scan = scanner(dtype)
    assert scan is not None
    found = scan(memoryview(aligned).cast("B"))
    aligned_before = aligned.view(dtype).copy()
    aligned[:] = 0  # the rest needs no memory
    expected = statistics(aligned_before, engine="numba", threads=1)
    assert repr(found.statistics()) == repr(expected)


@needs_numba
@pytest.mark.parametrize("name", ["float64", "complex128", "float4_e2m1fn", "int4"])
def test_those_that_may_take_another_look_have_none(name: str) -> None:
    dtype = dtype_of(name)
    warm_up([dtype])
    if dtype.itemsize == 1:
        assert scanner(dtype) is not None
    else:
        assert scanner(dtype) is None


@needs_numba
def test_memory_that_is_not_aligned_is_refused() -> None:
    warm_up(["float32"])
    scan = scanner(np.dtype("float32"))
    assert scan is not None
    memory = memoryview(np.zeros(4, dtype="u8")).cast("B")
    with pytest.raises(ValueError, match="aligned"):
        scan(memory[1:9])


@needs_numba
def test_another_byte_order_has_none() -> None:
    warm_up(["float32"])
    assert scanner(np.dtype("float32").newbyteorder()) is None


def test_what_has_no_statistics_is_refused() -> None:
    with pytest.raises(ConfigError):
        scanner(np.dtype("datetime64[s]"))
