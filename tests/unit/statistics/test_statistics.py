"""Statistics of a tensor: both engines against an exact reference, for every dtype and memory layout."""

from __future__ import annotations

import math
import re
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Optional, Union

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump import ConfigError
from ascend_dump.statistics import Statistics, statistics, warm_up

HAVE_NUMBA = find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not HAVE_NUMBA, reason="numba is not installed")
ENGINES = [pytest.param("numba", marks=needs_numba), "numpy"]

FLOATS = ["float16", "bfloat16", "float32", "float64"]
WIDE_INTEGERS = ["int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128", *(name for name in ("complex32", "bcomplex32") if hasattr(ml_dtypes, name))]
BYTES = [
    "bool",
    "int8",
    "uint8",
    *(
        name
        for name in dir(ml_dtypes)
        if name.startswith(("float8", "float6", "float4"))
        or name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")
    ),
]
DTYPES = [*FLOATS, *WIDE_INTEGERS, *COMPLEX, *BYTES]

#: Elements at which the engines begin a new block, chunk or buffer, and at which threads take part.
BOUNDARIES = [2048, 1 << 14, 1 << 15, 1 << 16]


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def part_of(name: str) -> str:
    return {"complex64": "float32", "complex128": "float64", "complex32": "float16", "bcomplex32": "bfloat16"}[name]


def word_of(name: str) -> np.dtype[Any]:
    itemsize = dtype_named(part_of(name) if name in COMPLEX else name).itemsize
    return np.dtype(f"u{itemsize}")


def interesting_words(name: str) -> list[int]:
    """Zeros, smallest and largest numbers, infinities and NaN of a float; the ends of an integer."""
    bits = word_of(name).itemsize * 8
    sign = 1 << (bits - 1)
    if name in FLOATS or name in COMPLEX:
        infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}.get(
            part_of(name) if name in COMPLEX else name, 0x7FF0000000000000
        )
        magnitudes = [0, 1, 2, infinity - 1, infinity, infinity + 1, sign - 1, infinity // 2]
        return magnitudes + [sign | magnitude for magnitude in magnitudes]
    return [0, 1, sign - 1, sign, sign + 1, 2 * sign - 1]


@st.composite
def arrays(draw: st.DrawFn, name: str) -> np.ndarray:
    word = word_of(name)
    any_word = st.integers(0, 2 ** (8 * word.itemsize) - 1)
    # Mostly finite, or every array would have the same mean: NaN.
    tame = st.sampled_from(interesting_words(name)[:4]) if name in (*FLOATS, *COMPLEX) else any_word
    choice = draw(st.sampled_from([tame, any_word, st.sampled_from(interesting_words(name)), tame | any_word]))
    words = draw(st.lists(choice, min_size=1, max_size=30))
    step = 2 if name in COMPLEX else 1
    length = draw(st.one_of(st.integers(1, 70), st.integers(2040, 2056), st.integers(4090, 4100)))
    flat = np.resize(np.array(words, dtype=word), length * step)
    if name == "bool":
        return flat % 2 == 1
    return flat.view(dtype_named(name))


def exact_root(square: Fraction) -> float:
    """The square root to more digits than a float has, Inf where a float ends."""
    if not square:
        return 0.0
    shift = max(0, 140 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    root = Fraction(math.isqrt(int(square * (1 << (2 * shift)))), 1 << shift)
    try:
        return float(root)
    except OverflowError:
        return math.inf


def reference(array: np.ndarray) -> tuple[Statistics, float]:
    """The statistics in exact arithmetic, and the mean of the absolute values that an error of the mean is held to."""
    flat = array.reshape(-1)
    if array.dtype.name in COMPLEX:
        parts = numbers_in(flat.view(dtype_named(part_of(array.dtype.name))))
        return complex_reference(list(zip(parts[0::2], parts[1::2])))
    if array.dtype.name == "bool" or "int" in array.dtype.name:
        values: list[Union[int, float]] = [int(value) for value in flat.astype(object).tolist()]
    else:
        values = [*numbers_in(flat)]
    numbers = [value for value in values if value == value]
    finite = [value for value in numbers if abs(value) != math.inf]
    nan, posinf, neginf = len(values) - len(numbers), numbers.count(math.inf), numbers.count(-math.inf)
    amounts = Counter(finite)
    total = sum((Fraction(value) * amount for value, amount in amounts.items()), Fraction(0))
    squares = sum((Fraction(value) ** 2 * amount for value, amount in amounts.items()), Fraction(0))
    scale = sum((abs(Fraction(value)) * amount for value, amount in amounts.items()), Fraction(0)) / len(values)
    mean, norm = float(total / len(values)), exact_root(squares)
    if nan:
        mean = norm = math.nan
    elif posinf or neginf:
        mean = math.nan if posinf and neginf else math.inf if posinf else -math.inf
        norm = math.inf
    zeros = [value for value in values if value == 0]
    negzero = sum(math.copysign(1, value) < 0 for value in zeros)
    expected = Statistics(
        len(values),
        max(numbers, key=signed_order) if numbers else None,
        min(numbers, key=signed_order) if numbers else None,
        mean,
        norm,
        nan,
        posinf,
        neginf,
        len(zeros),
        len(zeros) - negzero,
        negzero,
    )
    return expected, float(scale)


def numbers_in(flat: np.ndarray) -> list[float]:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return flat.astype(np.float64).tolist()


def signed_order(value: float) -> tuple[float, float]:
    return value, math.copysign(1, value)


def complex_reference(pairs: list[tuple[float, float]]) -> tuple[Statistics, float]:
    numbers = [pair for pair in pairs if pair[0] == pair[0] and pair[1] == pair[1]]
    infinite = [pair for pair in numbers if math.inf in (abs(pair[0]), abs(pair[1]))]
    squares = [
        math.inf if pair in infinite else Fraction(pair[0]) ** 2 + Fraction(pair[1]) ** 2
        for pair in sorted(set(numbers))
    ]
    roots = {
        pair: math.inf if square == math.inf else exact_root(Fraction(square))
        for pair, square in zip(sorted(set(numbers)), squares)
    }
    nan = len(pairs) - len(numbers)
    zero = sum(pair == (0, 0) for pair in numbers)
    mean = norm = math.nan
    if not nan:
        norm = (
            math.inf if infinite else exact_root(sum((a * a + b * b for a, b in map(fractions, numbers)), Fraction(0)))
        )
        over = [root for root in roots.values() if root == math.inf]
        mean = math.inf if over else float(sum((Fraction(roots[pair]) for pair in numbers), Fraction(0)) / len(pairs))
    magnitudes = [roots[pair] for pair in numbers]
    expected = Statistics(
        len(pairs),
        max(magnitudes) if numbers else None,
        min(magnitudes) if numbers else None,
        mean,
        norm,
        nan,
        len(infinite),
        0,
        zero,
        zero,
        0,
    )
    return expected, mean


def fractions(pair: tuple[float, float]) -> tuple[Fraction, Fraction]:
    return Fraction(pair[0]), Fraction(pair[1])


def assert_close(actual: Optional[float], expected: Optional[float], tolerance: float) -> None:
    assert actual is not None
    assert expected is not None
    if math.isfinite(expected):
        assert abs(actual - expected) <= tolerance, (actual, expected)
    else:
        assert repr(actual) == repr(expected)


def assert_matches(actual: Statistics, array: np.ndarray) -> None:
    expected, scale = reference(array)
    wide = array.dtype.name == "complex128"
    assert_same_extremes(actual, expected, 1e-15 if array.dtype.name in COMPLEX else 0.0)
    assert actual[5:] == expected[5:]
    assert actual.count == expected.count
    # The smallest float64 is a step that no rounding can go below.
    assert expected.mean is not None
    assert expected.l2norm is not None
    if not (wide and expected.mean == math.inf):
        assert_close(actual.mean, expected.mean, 1e-12 * scale + 5e-324)
    assert_close(actual.l2norm, expected.l2norm, 1e-12 * expected.l2norm + 5e-324)


def assert_same_extremes(actual: Statistics, expected: Statistics, tolerance: float) -> None:
    for found, wanted in ((actual.max, expected.max), (actual.min, expected.min)):
        assert type(found) is type(wanted)
        if tolerance and found is not None and wanted is not None and math.isfinite(wanted):
            assert abs(found - wanted) <= tolerance * wanted + 5e-324
        else:
            assert repr(found) == repr(wanted)


def agree(first: Statistics, second: Statistics) -> None:
    """The promise between the engines: identical but for the rounding of the two sums."""
    assert repr(first[:3]) == repr(second[:3])
    assert first[5:] == second[5:]
    assert first.l2norm == pytest.approx(second.l2norm, rel=1e-12, nan_ok=True)
    bound = 1e-12 * max(abs(first.max or 0), abs(first.min or 0))
    if math.isfinite(bound):
        assert first.mean == pytest.approx(second.mean, rel=1e-12, abs=bound, nan_ok=True)


class TestValues:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", DTYPES)
    def test_matches_exact_arithmetic(self, name: str, engine: str) -> None:
        @settings(max_examples=25, deadline=None)
        @given(arrays(name))
        def check(array: np.ndarray) -> None:
            assert_matches(statistics(array, engine=engine), array)

        check()

    @needs_numba
    @pytest.mark.parametrize("name", DTYPES)
    def test_engines_agree(self, name: str) -> None:
        @settings(max_examples=25, deadline=None)
        @given(arrays(name))
        def check(array: np.ndarray) -> None:
            agree(statistics(array, engine="numba"), statistics(array, engine="numpy"))

        check()

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
    @pytest.mark.parametrize("boundary", BOUNDARIES)
    def test_finds_what_stands_at_the_edge_of_a_block(self, name: str, boundary: int, engine: str) -> None:
        for size in (boundary - 1, boundary, boundary + 1, 2 * boundary + 1):
            places = sorted({0, boundary - 2, boundary - 1, min(boundary, size - 1), size - 1})
            for place in (place for place in places if place < size):
                array = np.ones(size, dtype=dtype_named(name))
                array[place] = 7
                found = statistics(array, engine=engine)
                assert (found.max, found.min, found.mean) == (7, 1, (size + 6) / size)
                assert found.l2norm == pytest.approx(math.sqrt(size + 48), rel=1e-14)
                array[place] = -7
                assert statistics(array, engine=engine)[1:3] == (1, -7)
                for value, field in ((np.nan, "nan"), (np.inf, "posinf"), (-np.inf, "neginf"), (0.0, "poszero")):
                    array[place] = value
                    found = statistics(array, engine=engine)
                    assert {field: getattr(found, field)} == {field: 1}
                    assert sum(found[5:8]) == (field != "poszero")
                    assert found.zero == (field == "poszero")
                array[place] = -0.0
                assert statistics(array, engine=engine)[8:] == (1, 0, 1)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", WIDE_INTEGERS)
    def test_integers_at_the_edge_of_a_block(self, name: str, engine: str) -> None:
        limits = np.iinfo(name)
        for boundary in BOUNDARIES:
            array = np.full(boundary + 1, 3, dtype=name)
            array[boundary - 1], array[boundary] = limits.max, limits.min
            found = statistics(array, engine=engine)
            assert (found.max, found.min) == (limits.max, limits.min)
            assert found.mean == (3 * (boundary - 1) + int(limits.max) + int(limits.min)) / (boundary + 1)
            assert found.zero == int(limits.min == 0)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", BYTES)
    def test_every_pattern_of_a_byte(self, name: str, engine: str) -> None:
        patterns = np.arange(256, dtype=np.uint8)
        array = patterns % 2 == 1 if name == "bool" else patterns.view(dtype_named(name))
        assert_matches(statistics(array, engine=engine), array)
        finite = array[np.isfinite(array.astype(np.float64))]
        found = statistics(np.tile(finite, 301), engine=engine)
        assert_matches(found, np.tile(finite, 301))
        expected, _ = reference(finite)
        assert found.mean == expected.mean

    @pytest.mark.parametrize("engine", ENGINES)
    def test_integers_are_exact_beyond_the_precision_of_a_float(self, engine: str) -> None:
        large = np.array([2**63 - 1, 2**63 - 2, -(2**63) + 1, 5], dtype=np.int64)
        found = statistics(large, engine=engine)
        assert (found.max, found.min) == (2**63 - 1, -(2**63) + 1)
        assert found.mean == (2**63 + 3) / 4
        unsigned = np.array([2**64 - 1, 2**64 - 3, 2**63 + 1], dtype=np.uint64)
        found = statistics(unsigned, engine=engine)
        assert (found.max, found.min) == (2**64 - 1, 2**63 + 1)
        assert found.mean == (2**64 - 1 + 2**64 - 3 + 2**63 + 1) / 3

    @pytest.mark.parametrize("engine", ENGINES)
    def test_long_names_of_integers(self, engine: str) -> None:
        assert statistics(np.array([1, 2], dtype=np.longlong), engine=engine).max == 2
        assert statistics(np.array([1, 2], dtype=np.ulonglong), engine=engine).min == 1

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize(
        ("values", "mean", "norm"),
        [
            ([1e200, -1e200, 1e200, 1e200], 5e199, 2e200),
            ([1.7e308, 1.7e308], 1.7e308, math.inf),
            ([1e308, 1e308, -1e308], 1e308 / 3, math.sqrt(3) * 1e308),
            ([sys.float_info.max] * 7, sys.float_info.max, math.inf),
            ([3e-200, 4e-200], 3.5e-200, 5e-200),
            ([5e-324], 5e-324, 5e-324),
            ([1e-160, 1e-162, 0.0], 1.01e-160 / 3, 1e-160 * math.sqrt(1.0001)),
        ],
    )
    def test_float64_sums_that_leave_float64(self, values: list[float], mean: float, norm: float, engine: str) -> None:
        found = statistics(np.array(values), engine=engine)
        assert found.mean == pytest.approx(mean, rel=1e-14)
        assert found.l2norm == pytest.approx(norm, rel=1e-14)
        spread = np.repeat(np.array(values), 40_000)[::2]
        found = statistics(spread, engine=engine)
        assert found.mean == pytest.approx(mean, rel=1e-12)
        assert found.l2norm == pytest.approx(norm * math.sqrt(20_000), rel=1e-12)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_small_terms_are_not_lost_beside_a_large_one(self, engine: str) -> None:
        array = np.full(500 * 2048, 0.99 / 2048)
        array[0] = 1e16
        # Each block alone would vanish beside the first: a running sum is wrong by 5e-14.
        assert statistics(array, engine=engine).mean == pytest.approx((1e16 + 495) / array.size, rel=5e-15)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", FLOATS)
    @pytest.mark.parametrize(
        ("values", "mean", "norm"),
        [
            ([1, math.inf], "inf", "inf"),
            ([1, -math.inf], "-inf", "inf"),
            ([math.inf, -math.inf], "nan", "inf"),
            ([1, math.nan], "nan", "nan"),
            ([math.inf, math.nan, -math.inf], "nan", "nan"),
        ],
    )
    def test_nan_and_inf_propagate(self, values: list[float], mean: str, norm: str, name: str, engine: str) -> None:
        found = statistics(np.array(values).astype(dtype_named(name)), engine=engine)
        assert (repr(found.mean), repr(found.l2norm)) == (mean, norm)
        numbers = [value for value in values if value == value]
        assert (found.max, found.min) == (max(numbers), min(numbers))

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", FLOATS)
    def test_zero_extremes_have_their_sign(self, name: str, engine: str) -> None:
        for values, largest, smallest in (
            ([-0.0, 0.0], "0.0", "-0.0"),
            ([0.0, -0.0], "0.0", "-0.0"),
            ([-0.0, -0.0], "-0.0", "-0.0"),
            ([0.0, 1.0], "1.0", "0.0"),
            ([-1.0, -0.0], "-0.0", "-1.0"),
        ):
            found = statistics(np.array(values).astype(dtype_named(name)), engine=engine)
            assert (repr(found.max), repr(found.min)) == (largest, smallest)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
    def test_only_nan_has_no_extremes(self, name: str, engine: str) -> None:
        size = 70_000
        parts = np.full(size, np.nan).astype(dtype_named(part_of(name) if name in COMPLEX else name))
        array = parts.view(dtype_named(name))
        found = statistics(array, engine=engine)
        assert found[:3] == (array.size, None, None)
        assert found[5:] == (array.size, 0, 0, 0, 0, 0)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
    def test_a_block_of_nothing_but_nan_beside_others(self, name: str, engine: str) -> None:
        array = np.full(150_000, -3).astype(dtype_named(name))
        array[:140_000] = np.nan
        extreme = 3.0 if name in COMPLEX else -3.0
        for view in (array, array[::-1], array.reshape(2, -1).T[::2], np.repeat(array, 2)[::2]):
            found = statistics(view, engine=engine)
            assert (found.max, found.min) == (extreme, extreme)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", FLOATS)
    @pytest.mark.parametrize("sign", [1, -1])
    def test_nan_beside_numbers_of_one_sign(self, name: str, sign: int, engine: str) -> None:
        array = (np.array([2.0, math.nan, 5.0, -math.nan, 3.0]) * sign).astype(dtype_named(name))
        found = statistics(array, engine=engine)
        assert (found.max, found.min) == ((5, 2) if sign > 0 else (-2, -5))
        assert found[5:] == (2, 0, 0, 0, 0, 0)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_bool_extremes_are_ints(self, engine: str) -> None:
        found = statistics(np.array([True, False, True]), engine=engine)
        assert repr(found[:4]) == "(3, 1, 0, 0.6666666666666666)"
        assert found[5:] == (0, 0, 0, 1, 1, 0)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", ["complex64", "complex128"])
    def test_complex_counts_elements_not_parts(self, name: str, engine: str) -> None:
        values = [3 + 4j, complex(math.inf, -math.inf), complex(math.nan, math.inf), complex(0.0, -0.0), complex(0, 1)]
        found = statistics(np.array(values, dtype=name), engine=engine)
        assert (found.count, found.max, found.min) == (5, math.inf, 0.0)
        assert found[5:] == (1, 1, 0, 1, 1, 0)
        finite = statistics(np.array([3 + 4j, 0j, -5 + 12j], dtype=name), engine=engine)
        assert finite[:4] == (3, 13.0, 0.0, 6.0)
        assert finite.l2norm == pytest.approx(math.sqrt(25 + 169))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_complex_norm_where_squares_leave_float64(self, engine: str) -> None:
        assert statistics(np.array([3e200 + 4e200j]), engine=engine).l2norm == pytest.approx(5e200)
        assert statistics(np.array([3e-200 + 4e-200j]), engine=engine).l2norm == pytest.approx(5e-200)
        over = statistics(np.array([1.7e308 + 1.7e308j]), engine=engine)
        assert (over.max, over.posinf) == (math.inf, 0)
        diluted = statistics(np.array([1.7e308 + 1.7e308j, 0j, 0j, 0j, 0j] * 5), engine=engine)
        assert diluted.mean == pytest.approx(math.sqrt(2) * 3.4e307)
        many = statistics(np.resize([3e200 + 4e200j, 0j, 0j], 210_000), engine=engine)
        assert many.mean == pytest.approx(5e200 / 3)
        assert many.l2norm == pytest.approx(5e200 * math.sqrt(70_000))

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("value", [1.1e308, 1.3e308, 1.7e308, sys.float_info.max])
    def test_rounding_does_not_lift_the_mean_over_the_elements(self, value: float, engine: str) -> None:
        for count in range(2, 60):
            found = statistics(np.full(count, value), engine=engine)
            assert found.mean is not None
            assert value * (1 - 1e-15) <= found.mean <= value

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", DTYPES)
    def test_empty(self, name: str, engine: str) -> None:
        for shape in ((0,), (3, 0, 2)):
            empty = np.zeros(shape, dtype=dtype_named(name))
            assert statistics(empty, engine=engine) == (0, None, None, None, 0.0, 0, 0, 0, 0, 0, 0)


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
        array = layout(sample(name, (4000, 4000 * 4 // dtype_named(name).itemsize)))
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
        assert [*found[5:]] == [repeats * a + b for a, b in zip(one[5:], tail[5:])]
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


class TestRefusals:
    @pytest.mark.parametrize("engine", [None, "numpy"])
    @pytest.mark.parametrize(
        "array",
        [
            np.array([object()]),
            np.array(["a"]),
            np.array([b"a"]),
            np.array([np.datetime64("2020-01-01")]),
            np.array([np.timedelta64(1, "s")]),
            np.zeros(2, dtype=[("a", "f4")]),
            np.zeros(2, dtype=np.longdouble),
            np.zeros(2, dtype=np.clongdouble),
            np.array([], dtype=object),
        ],
        ids=lambda array: array.dtype.name,
    )
    def test_other_dtypes(self, array: np.ndarray, engine: Optional[str]) -> None:
        with pytest.raises(ConfigError, match=re.escape(f"dtype '{array.dtype.name}'")) as caught:
            statistics(array, engine=engine)
        assert caught.value.code == "AD101"
        assert "astype" in caught.value.hint

    def test_other_engines(self) -> None:
        with pytest.raises(ConfigError, match="engine='torch', expected"):
            statistics(np.zeros(1), engine="torch")

    def test_warm_up_of_an_unknown_dtype(self) -> None:
        with pytest.raises(ConfigError, match="no dtype 'float13'"):
            warm_up(["float13"])
        with pytest.raises(ConfigError, match="dtype 'object'"):
            warm_up([object])
