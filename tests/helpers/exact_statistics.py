"""Statistics of small arrays computed exactly, with fractions, and the largest errors that engines may make."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Optional, Union

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from ascend_dump.statistics import Statistics

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


def assert_matches(array: np.ndarray, *found: Statistics) -> None:
    expected, scale = reference(array)
    for actual in found:
        assert_is(actual, expected, scale, array)


def assert_is(actual: Statistics, expected: Statistics, scale: float, array: np.ndarray) -> None:
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
    """Assert that two engines agree: only the rounding of the two sums may differ."""
    assert repr(first[:3]) == repr(second[:3])
    assert first[5:] == second[5:]
    assert first.l2norm == pytest.approx(second.l2norm, rel=1e-12, nan_ok=True)
    bound = 1e-12 * max(abs(first.max or 0), abs(first.min or 0))
    if math.isfinite(bound):
        assert first.mean == pytest.approx(second.mean, rel=1e-12, abs=bound, nan_ok=True)
