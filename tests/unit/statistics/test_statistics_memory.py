"""Statistics of a tensor do not depend on how its memory is laid out, nor on how many threads ask."""

from __future__ import annotations

import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Optional

import numpy as np
import pytest
from exact_statistics import (
    COMPLEX,
    ENGINES,
    FLOATS,
    agree,
    dtype_named,
    part_of,
)

from ascend_dump.statistics import statistics


def transpose(array: np.ndarray) -> np.ndarray:
    return array.T


def every_other(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=1)[:, ::2]


def reverse(array: np.ndarray) -> np.ndarray:
    return array[::-1, ::-1]


def inner_slice(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, array], axis=1)[:, : array.shape[1]]


def in_the_middle(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array.reshape(array.shape[0], -1, 1, 5), 3, 0)[:, ::-1]


def unalign(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, dtype=np.uint8)
    raw[1:] = array.reshape(-1).view(np.uint8)
    return np.ndarray(array.shape, array.dtype, buffer=raw.data, offset=1)


def swap(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder())


def unaligned_and_strided(array: np.ndarray) -> np.ndarray:
    return unalign(np.repeat(array, 2, axis=0))[::2]


def lock(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = [
    transpose,
    every_other,
    reverse,
    inner_slice,
    in_the_middle,
    unalign,
    swap,
    unaligned_and_strided,
    lock,
    np.asfortranarray,
]


def sample(name: str, shape: tuple[int, ...] = (301, 235), seed: int = 0) -> np.ndarray:
    """Values of which a float16 sum is exact in float64, so that order does not matter."""
    random = np.random.default_rng(seed)
    values = random.integers(-300, 300, shape)
    if name == "bool":
        return values > 0
    if name in COMPLEX:
        parts = random.integers(-300, 300, (*shape[:-1], shape[-1] * 2)).astype(np.float32)
        return parts.astype(dtype_named(part_of(name))).view(dtype_named(name))
    target = dtype_named(name)
    if target.itemsize == 1:
        return random.integers(0, 256, shape, dtype=np.uint8).view(target)
    return values.astype(target)


class TestMemory:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX, "int16", "uint64", "bool", "int4", "float8_e4m3fn"])
    def test_layout_does_not_matter(self, name: str, layout: Callable[[np.ndarray], np.ndarray], engine: str) -> None:
        array = sample(name)
        other = layout(array)
        agree(statistics(other, engine=engine), statistics(array, engine=engine))

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", [*FLOATS, "int32", "complex64", "bool"])
    def test_no_dimension_and_many(self, name: str, engine: str) -> None:
        array = sample(name, (2, 1, 3, 2, 1, 4))
        agree(statistics(array.transpose(3, 0, 5, 2, 1, 4)), statistics(array))
        single = array[1, 0, 2, 1, 0, 3, ...]
        scalar = np.array(single)
        assert scalar.ndim == 0
        agree(statistics(scalar, engine=engine), statistics(scalar.reshape(1), engine=engine))
        assert statistics(scalar, engine=engine).count == 1

    @pytest.mark.parametrize("engine", ENGINES)
    def test_broadcast_counts_every_element(self, engine: str) -> None:
        array = np.broadcast_to(np.array([[1.0], [np.nan]], dtype=np.float32), (2, 70_001))
        found = statistics(array, engine=engine)
        assert (found.count, found.max, found.nan) == (140_002, 1.0, 70_001)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_memory_map(self, tmp_path: Path, engine: str) -> None:
        array = sample("float32")
        (tmp_path / "data").write_bytes(b"x" * 3 + array.tobytes())
        for offset in (3, 0):
            if not offset:
                (tmp_path / "data").write_bytes(array.tobytes())
            mapped = np.memmap(tmp_path / "data", np.float32, "r", offset, array.shape)
            agree(statistics(mapped, engine=engine), statistics(array, engine=engine))

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("layout", [transpose, every_other, unalign, swap])
    @pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "complex64"])
    def test_nothing_large_is_allocated(
        self, name: str, layout: Callable[[np.ndarray], np.ndarray], engine: str
    ) -> None:
        array = layout(sample(name, (2800, 2800 * 4 // dtype_named(name).itemsize)))
        statistics(array[:2], engine=engine)
        tracemalloc.start()
        try:
            statistics(array, engine=engine)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < array.nbytes / 8

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int32", "uint8", "bool", "complex64"])
    def test_large_arrays_are_shared_among_threads(self, name: str, engine: str) -> None:
        pattern = sample(name, (1021,))
        size = (19 << 20) // pattern.itemsize
        array = np.resize(pattern, size + 1)
        before = threading.active_count()
        found = statistics(array, engine=engine)
        assert threading.active_count() == before
        repeats, rest = divmod(array.size, pattern.size)
        one, tail = statistics(pattern, engine=engine), statistics(pattern[:rest], engine=engine)
        assert found.count == array.size
        assert (found.max, found.min) == (one.max, one.min)
        assert [*found[5:11]] == [repeats * a + b for a, b in zip(one[5:11], tail[5:11])]
        assert one.mean is not None
        assert one.l2norm is not None
        expected = (one.mean * pattern.size * repeats + (tail.mean or 0) * rest) / array.size
        assert found.mean == pytest.approx(expected, rel=1e-9)
        assert found.l2norm == pytest.approx(math.hypot(one.l2norm * math.sqrt(repeats), tail.l2norm or 0), rel=1e-12)
        if name in (*FLOATS, "complex64"):
            array[-1] = np.nan
            assert statistics(array, engine=engine).nan == 1

    @pytest.mark.parametrize("engine", ENGINES)
    def test_several_threads_at_once(self, engine: str) -> None:
        array = np.resize(sample("float32"), 5 << 20)
        expected = statistics(array, engine=engine)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: statistics(array, engine=engine), range(12)))
        assert found == [expected] * 12


@pytest.mark.parametrize("engine", ["numpy", None])
@pytest.mark.parametrize("offset", range(8))
def test_one_element_without_an_axis_at_any_address(engine: Optional[str], offset: int) -> None:
    memory = bytearray(16)
    memory[offset : offset + 4] = np.float32(3.5).tobytes()
    found = statistics(np.ndarray((), np.float32, buffer=memory, offset=offset), engine=engine)
    assert (found.max, found.min, found.mean, found.l2norm) == (3.5, 3.5, 3.5, 3.5)
