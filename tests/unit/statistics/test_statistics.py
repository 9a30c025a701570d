"""Statistics of a tensor: both engines against an exact reference, for every dtype."""

from __future__ import annotations

import math
import re
import sys
from typing import Optional

import numpy as np
import pytest
from exact_statistics import (
    BOUNDARIES,
    BYTES,
    COMPLEX,
    DTYPES,
    ENGINES,
    FLOATS,
    HAVE_NUMBA,
    WIDE_INTEGERS,
    agree,
    arrays,
    assert_matches,
    dtype_named,
    part_of,
    reference,
)
from hypothesis import given, settings

from ascend_dump import ConfigError
from ascend_dump.statistics import Statistics, statistics, warm_up


class TestValues:
    @pytest.mark.parametrize("name", DTYPES)
    def test_engines_match_exact_arithmetic_and_agree(self, name: str) -> None:
        engines = ["numpy", "numba"] if HAVE_NUMBA else ["numpy"]

        @settings(max_examples=25, deadline=None)
        @given(arrays(name))
        def check(array: np.ndarray) -> None:
            found = [statistics(array, engine=engine) for engine in engines]
            assert_matches(array, *found)
            agree(found[0], found[-1])

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
                assert statistics(array, engine=engine)[8:11] == (1, 0, 1)

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
        assert_matches(array, statistics(array, engine=engine))
        finite = array[np.isfinite(array.astype(np.float64))]
        found = statistics(np.tile(finite, 301), engine=engine)
        assert_matches(np.tile(finite, 301), found)
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
        assert found[5:11] == (array.size, 0, 0, 0, 0, 0)

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
        assert found[5:11] == (2, 0, 0, 0, 0, 0)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_bool_extremes_are_ints(self, engine: str) -> None:
        found = statistics(np.array([True, False, True]), engine=engine)
        assert repr(found[:4]) == "(3, 1, 0, 0.6666666666666666)"
        assert found[5:11] == (0, 0, 0, 1, 1, 0)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", ["complex64", "complex128"])
    def test_complex_counts_elements_not_parts(self, name: str, engine: str) -> None:
        values = [3 + 4j, complex(math.inf, -math.inf), complex(math.nan, math.inf), complex(0.0, -0.0), complex(0, 1)]
        found = statistics(np.array(values, dtype=name), engine=engine)
        assert (found.count, found.max, found.min) == (5, math.inf, 0.0)
        assert found[5:11] == (1, 1, 0, 1, 1, 0)
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
            assert statistics(empty, engine=engine) == Statistics(0, None, None, None, 0.0, 0, 0, 0, 0, 0, 0)


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
