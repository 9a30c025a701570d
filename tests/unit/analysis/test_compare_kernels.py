"""The compiled kernels give what numpy gives, over blocks of every kind."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Private: no argument of a user's says whether compiled kernels or numpy do the work, and on how large parts.
from ascend_dump.analysis.compare import Measure, measure
from ascend_dump.analysis.numerics import engine as _engine
from ascend_dump.native.cann.dtypes import hifloat8_values

numba = pytest.importorskip("numba")

#: Three blocks of a kernel, and a part of one.
COUNT = 3 * 2048 + 77
FLOATS = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]
EXACT = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, on several threads, of small tensors too."""
    monkeypatch.setattr(_engine, "_PART", 2048)
    monkeypatch.setattr(_engine, "_WORTH_CALLING", 1)
    monkeypatch.setattr(_engine, "_processors", lambda: 3)


def numpy_says(a: np.ndarray, b: np.ndarray) -> Measure:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "_WORTH_CALLING", 1 << 60)
        return measure(a, b)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    assert_same(measure(a, b), numpy_says(a, b))


def assert_same(found: Measure, expected: Measure) -> None:
    assert not _engine._failed
    for name, one, other in zip(found._fields, found, expected):
        if isinstance(one, float) and isinstance(other, float):
            # Sums are rounded in another order. Where terms cancel, that is as large as the terms.
            assert one == pytest.approx(
                other, rel=1e-10, abs=1e-12 if name in ("cosine", "bias") else 0, nan_ok=True
            ), name
        else:
            assert one == other, name


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def random_words(rng: np.random.Generator, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Any bits: of floats many are NaN, infinite, subnormal, very large or very small."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    return rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)


def moderate(rng: np.random.Generator, dtype: np.dtype[Any], count: int) -> np.ndarray:
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)
    return (np.abs(values) if dtype.kind in "ub" else values).astype(dtype)


def a_pair(rng: np.random.Generator, dtype: np.dtype[Any], count: int, kinds: list[str]) -> list[np.ndarray]:
    """Two tensors that are made of a stretch of each kind."""
    sides: list[list[np.ndarray]] = [[], []]
    for kind in kinds:
        size = count // len(kinds)
        b = (random_words if kind.startswith("any bits") else moderate)(rng, dtype, size)
        a = b.copy()
        if kind == "any bits":
            a = random_words(rng, dtype, size)
        elif kind == "any bits, few differ":
            places = rng.integers(0, max(size, 1), 5 if size else 0)
            a[places] = random_words(rng, dtype, places.size)
        elif kind == "noise" and dtype.kind != "b":
            with np.errstate(all="ignore"):
                a = (b * (1 + 0.01 * rng.standard_normal(size))).astype(dtype)
        elif kind == "others":
            a = moderate(rng, dtype, size)
        elif kind == "zeros":
            b = np.where(rng.random(size) < 0.5, np.zeros(size, dtype), b)
        sides[0].append(a)
        sides[1].append(b)
    return [np.concatenate(parts) for parts in sides]


KINDS = ["equal", "noise", "others", "zeros", "any bits", "any bits, few differ", "any bits, equal"]


@pytest.mark.parametrize("name", [*FLOATS, *EXACT])
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 40) | st.integers(COUNT - 40, COUNT),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
)
def test_kernels_give_what_numpy_gives(name: str, seed: int, count: int, kinds: list[str]) -> None:
    with np.errstate(all="ignore"):
        agree(*a_pair(np.random.default_rng(seed), dtype_of(name), count, kinds))


@pytest.mark.parametrize("names", [("float8_e4m3fn",) * 2, ("float8_e5m2",) * 2, ("float8_e4m3fn", "float8_e5m2")])
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40) | st.integers(COUNT - 40, COUNT),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
)
def test_pairs_of_bytes_are_counted_in_large_tensors(
    names: tuple[str, str], seed: int, count: int, kinds: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "_WORTH_COUNTING", 1)
        a, b = (a_pair(rng, dtype_of(name), count, kinds)[side] for side, name in enumerate(names))
        assert not a.size or _engine.compiled_codes(a, b).sum() == a.size
        agree(a, b)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    names=st.sampled_from([("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")]),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
)
def test_two_types_are_compared_as_the_numbers_that_they_are(
    seed: int, names: tuple[str, str], kinds: list[str]
) -> None:
    with np.errstate(all="ignore"):
        a, b = a_pair(np.random.default_rng(seed), dtype_of(names[0]), COUNT, kinds)
        agree(a, b.astype(dtype_of(names[1])))


@settings(deadline=None, max_examples=50)
@given(codes=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1, max_size=2000))
def test_hifloat8_is_compared_as_the_numbers_that_it_stands_for(codes: list[tuple[int, int]]) -> None:
    a, b = hifloat8_values()[np.array(codes).T]
    agree(a, b)
    agree(a, a)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    name=st.sampled_from(FLOATS + EXACT),
    layout=st.sampled_from(["fortran", "strided", "odd"]),
)
def test_the_layout_in_memory_does_not_matter(seed: int, name: str, layout: str) -> None:
    dtype = dtype_of(name)
    with np.errstate(all="ignore"):
        a, b = (side[:3072].reshape(48, 64) for side in a_pair(np.random.default_rng(seed), dtype, COUNT, KINDS))

        def moved(array: np.ndarray) -> np.ndarray:
            if layout == "fortran":
                return np.asfortranarray(array)
            if layout == "strided":
                return np.repeat(array, 2, axis=1)[:, ::2]
            room = bytearray(array.nbytes + 1)
            other = np.frombuffer(room, dtype, array.size, offset=1).reshape(array.shape)
            other[...] = array
            return other

        found, expected = measure(moved(a), moved(b)), measure(a, b)
        assert_same(found._replace(at=None), expected._replace(at=None))
        # Of several differences as large, which one is named depends on the order in memory.
        for at in filter(None, (found.at, expected.at)):
            difference = np.complex128(a[at]) - np.complex128(b[at])
            assert max(abs(difference.real), abs(difference.imag)) == pytest.approx(expected.max_abs)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_one_element_without_axes(name: str) -> None:
    a, b = np.array(1, dtype_of(name)), np.array(0, dtype_of(name))
    agree(a, b)
    assert measure(a, b).at == ()


def test_squares_beyond_float64_are_numbers_all_the_same() -> None:
    b = np.linspace(1.0, 2.0, COUNT) * 1e300
    found = measure(b * 1.5, b)
    assert (found.rel_l2, found.cosine, found.bias) == (pytest.approx(0.5), pytest.approx(1.0), pytest.approx(0.5))
    assert found.rms == pytest.approx(1e300 * np.sqrt(((b / 1e300) ** 2).mean()))
    agree(b * 1.5, b)


def test_differences_below_the_smallest_normal_float64_are_counted_in_its_last_place() -> None:
    b = np.array([0.0, 5e-324, -5e-324, 2.5e-308, 1.0] * 500)
    a = b + np.array([5e-324, 2e-323, 0.0, 5e-324, 0.0] * 500)
    assert {place: count for place, count in enumerate(measure(a, b).ulp) if count} == {1: 1000, 3: 500}
    agree(a, b)


@pytest.mark.parametrize("count", [3, COUNT])
def test_a_difference_that_overflows_is_in_the_bin_of_its_size(count: int) -> None:
    """The largest float64 and its negative are two of the greatest powers of two apart, which is no float64."""
    a = np.full(count, np.finfo(np.float64).max)
    assert [place for place, number in enumerate(measure(a, -a).ulp) if number] == [54]
    assert [place for place, number in enumerate(numpy_says(a, -a).ulp) if number] == [54]
