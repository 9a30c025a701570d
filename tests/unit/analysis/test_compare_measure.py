"""The numbers of a pair against what numpy says directly, and the verdicts on rounding and on faults."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ascend_dump
from ascend_dump.analysis.compare import Rules, judge, measure
from ascend_dump.native.cann.dtypes import hifloat8_values
from ascend_dump.native.cann.dump_file import tensor_of, write

FLOATS = ["float32", "float64", "float16", "bfloat16"]


def as_type(array: np.ndarray, name: str) -> np.ndarray:
    return array.astype(getattr(ml_dtypes, name, None) or name)


@settings(deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(["float32", "float64", "float16"]),
    shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
def test_the_numbers_are_those_of_the_definition(data: st.DataObject, name: str, shape: tuple[int, ...]) -> None:
    elements = st.floats(-1e4, 1e4, width=32 if name != "float16" else 16) | st.sampled_from(
        [math.nan, math.inf, -math.inf]
    )
    a = data.draw(arrays.arrays(name, shape, elements=elements))
    b = data.draw(arrays.arrays(name, shape, elements=elements))
    found = measure(a, b)
    x, y = a.astype("float64").reshape(-1), b.astype("float64").reshape(-1)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    assert found.count == x.size
    assert found.unequal == (~same).sum()
    assert found.nonfinite == (~same & ~finite).sum()
    assert found.nan == (np.isnan(x).sum(), np.isnan(y).sum())
    d = x[finite] - y[finite]
    assert found.max_abs == (np.abs(d).max() if d.size else 0)
    if d.size:
        assert found.rmse == pytest.approx(math.sqrt((d * d).mean()))
    assert sum(found.ulp) == (~same & finite).sum()
    if found.unequal:
        assert found.at is not None
        assert len(found.at) == len(shape)
        if found.max_abs:
            assert abs(float(a[found.at]) - float(b[found.at])) == found.max_abs


def test_the_place_and_the_size_of_the_largest_difference_in_a_large_array() -> None:
    b = np.ones((300, 400), dtype="float32")
    a = b.copy()
    a[299, 17] = 3
    found = measure(a, b)
    assert (found.max_abs, found.at, found.unequal, found.max_rel) == (2.0, (299, 17), 1, 2.0)


def test_steps_of_the_last_place_are_counted_in_the_type_of_the_tensor() -> None:
    b = as_type(np.array([1.0, 256.0, -3.0]), "bfloat16")
    a = as_type(np.array([1.0 + 2**-7, 256.0 + 8, -3.0]), "bfloat16")
    # 1 and 4 units in the last place: bins [1, 2) and [4, 8).
    assert [place for place, count in enumerate(measure(a, b).ulp) if count] == [1, 3]


@pytest.mark.parametrize("name", ["int64", "uint8", "bool"])
def test_exact_types_are_exact(name: str) -> None:
    b = np.zeros((4, 5), dtype=name)
    a = b.copy()
    a[2, 3] = 1
    found = measure(a, b)
    assert (found.unequal, found.at, found.max_abs, found.ulp) == (1, (2, 3), 1.0, ())
    assert judge(found, name, Rules())[0] == "different"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_against_real_ones(dtype: str) -> None:
    real = np.arange(1.0, 7.0, dtype="float32").reshape(2, 3)
    assert not measure(real.astype(dtype), real).unequal
    found = measure(real, real.astype(dtype) + np.array([0, 0, 2j], dtype))
    assert (found.count, found.unequal, found.max_abs, found.at) == (12, 2, 2.0, (0, 2))


def test_complex_numbers_count_as_two_real_ones() -> None:
    b = np.zeros((2, 3), dtype="complex64")
    a = b.copy()
    a[1, 2] = 5j
    found = measure(a, b)
    assert (found.count, found.unequal, found.max_abs, found.at) == (12, 1, 5.0, (1, 2))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_small_floats_are_judged_by_their_own_rounding(name: str) -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(1000)
    b = as_type(exact, name)
    a = as_type(exact * (1 + 1e-4 * rng.standard_normal(1000)), name)
    assert judge(measure(a, b), name, Rules())[0] == "noise"
    assert judge(measure(as_type(exact * 2, name), b), name, Rules())[0] == "different"


def rounded_to_hifloat8(values: np.ndarray) -> np.ndarray:
    """The codes of the nearest values."""
    table = hifloat8_values()
    distances = np.abs(values[:, None] - np.where(np.isfinite(table), table, np.inf)[None, :])
    return np.argmin(distances, axis=1).astype("uint8")


def test_hifloat8_in_files_of_the_device_is_judged_by_its_own_rounding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(1000) * 2.0 ** rng.integers(-12, 12, 1000)
    noisy = exact * (1 + 0.02 * rng.standard_normal(1000))
    for name, values in (
        ("reference", exact),
        ("noisy", noisy),
        ("wrong", np.where(np.abs(exact) == np.abs(exact).max(), -exact, exact)),
    ):
        tensor, data = tensor_of("output", 0, rounded_to_hifloat8(values))
        (tmp_path / name).mkdir()
        file = tmp_path / name / "Cast.hif8.5.7.1589195081588151"
        write(file, [(tensor._replace(data_type=33), data)], op_name="hif8", dump_time=1589195081588151)
    [pair] = ascend_dump.compare(tmp_path / "noisy", tmp_path / "reference").pairs
    assert (pair.verdict, pair.record.attrs["data_type"]) == ("noise", "HIFLOAT8")
    assert pair.measure is not None
    assert pair.measure.unequal > 50
    [pair] = ascend_dump.compare(tmp_path / "wrong", tmp_path / "reference").pairs
    assert pair.verdict == "different"


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        measure(np.zeros(2), np.zeros(3))


def product(a: np.ndarray, b: np.ndarray, order: list[int]) -> np.ndarray:
    part = a.shape[1] // len(order)
    total = np.zeros((a.shape[0], b.shape[1]), dtype="float32")
    for i in order:
        here = slice(i * part, (i + 1) * part)
        total = total + a[:, here].astype("float32") @ b[here].astype("float32")
    return total


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("terms", [64, 1024])
class TestProducts:
    """The experiment that the envelope was established with: sums in another order, and six faults."""

    @pytest.fixture
    def pair(self, name: str, terms: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(terms)
        a = as_type(rng.standard_normal((96, terms)), name)
        b = as_type(rng.standard_normal((terms, 96)) * 0.03, name)
        return product(a, b, [3, 1, 0, 2]), as_type(product(a, b, [0, 1, 2, 3]), name)

    def test_another_order_of_the_sum_is_noise(
        self, pair: tuple[np.ndarray, np.ndarray], name: str, terms: int
    ) -> None:
        actual, reference = pair
        found = measure(as_type(actual, name), reference)
        assert found.unequal or name != "float32"
        assert judge(found, name, Rules(), terms=terms)[0] == "noise"

    @pytest.mark.parametrize("fault", ["one element", "scaled by 1.01", "a tile of zeros", "1 % by 5 %"])
    def test_a_fault_is_different(self, pair: tuple[np.ndarray, np.ndarray], name: str, terms: int, fault: str) -> None:
        actual, reference = pair
        rng = np.random.default_rng(1)
        if fault == "one element":
            actual[np.unravel_index(np.abs(actual).argmax(), actual.shape)] *= 1.1
        elif fault == "scaled by 1.01":
            actual *= 1.01
        elif fault == "a tile of zeros":
            actual[:16, :16] = 0
        else:
            actual *= np.where(rng.random(actual.shape) < 0.01, 1.05, 1.0)
        assert judge(measure(as_type(actual, name), reference), name, Rules(), terms=terms)[0] == "different"
