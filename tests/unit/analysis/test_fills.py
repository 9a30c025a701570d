"""Masks and fills that are equal on both sides are no scale for elements that differ."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np: Any = pytest.importorskip("numpy")

from ascend_dump.analysis.numerics.fills import equal_fills  # noqa: E402

LOWEST = float(np.finfo("f4").min)


@pytest.mark.parametrize("fill", [LOWEST, -1e9, -math.inf, 1e4])
def test_a_fill_is_found(fill: float) -> None:
    actual, reference = np.array([fill, 1.0, 2.0, fill]), np.array([fill, 1.1, 2.0, fill])
    assert equal_fills(actual, reference).tolist() == [True, False, False, True]


def test_large_elements_of_the_size_of_those_that_differ_are_no_fills() -> None:
    actual, reference = np.array([1e4, 1e4, 3.0]), np.array([1e4, 1.1e4, 3.0])
    assert not equal_fills(actual, reference).any()


def test_a_mask_of_one_side_is_no_fill() -> None:
    actual, reference = np.array([LOWEST, 1.0]), np.array([LOWEST, -math.inf])
    assert equal_fills(actual, reference).tolist() == [True, False]


NUMBERS = st.sampled_from([0.0, 1.0, -2.0, 1e-3, 1e4, 1e9, LOWEST, math.inf, -math.inf, math.nan])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12))
def test_fills_are_equal_and_larger_than_all_that_differ(pairs: list[tuple[float, float]]) -> None:
    actual, reference = (np.array(side) for side in zip(*pairs))
    fills, differ = equal_fills(actual, reference), actual != reference
    assert not (fills & differ).any()
    finite = np.abs(reference[differ & np.isfinite(reference)])
    assert all(abs(fill) >= 1000 * max([1.0, *finite.tolist()]) for fill in reference[fills])
    if not differ.any():
        assert not fills.any()
