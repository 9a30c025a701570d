"""Differences that only a look at the elements tells from faults: ties, thresholds, small divisors, uneven rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import msgspec
import numpy as np
import pytest
from host_dumps import item, model_directory, write_step

import ascend_dump
from ascend_dump import Comparison
from ascend_dump.analysis.compare import Rules, judge, measure
from ascend_dump.writing import HostWriter, Item

pytest.importorskip("rapidfuzz")

Arrays = list[Any]


def operator(op_type: str, inputs: Arrays, outputs: Arrays, *, seq: int = 0, call: Optional[str] = None) -> list[Item]:
    more = {} if call is None else {"call": msgspec.Raw(call.encode())}
    return [
        item(f"{op_type[6:]}_{seq}", array, io=io, index=index, op_type=op_type, seq=seq, **more)
        for io, arrays in (("input", inputs), ("output", outputs))
        for index, array in enumerate(arrays)
    ]


def compared(path: Path, actual: list[Item], reference: list[Item]) -> Comparison:
    for name, items in (("actual", actual), ("reference", reference)):
        writer = HostWriter(model_directory(path / name), metadata={})
        write_step(writer, 0, *items)
        writer.close()
    return ascend_dump.compare(path / "actual", path / "reference")


def last_place(array: np.ndarray, seed: int = 1) -> np.ndarray:
    """Every second element in the next or the last place of its type."""
    towards = np.where(np.random.default_rng(seed).random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype)
    moved: np.ndarray = np.nextafter(array, towards)
    return moved


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def test_elements_at_a_threshold_flip_with_the_rounding_of_inputs(tmp_path: Path) -> None:
    x = normal(12, 12)
    np.fill_diagonal(x, 1.0)
    limit = np.ones((), "f4")
    y = last_place(x)
    found = compared(
        tmp_path, operator("aten::le", [y, limit], [y <= limit]), operator("aten::le", [x, limit], [x <= limit])
    )
    assert found.verdict == "noise", found.worst_pairs()
    [flags] = [pair for pair in found.pairs if pair.record.io == "output"]
    assert flags.reason == "each side is right for its own inputs, which differ by rounding"


def test_a_comparison_that_is_wrong_is_seen(tmp_path: Path) -> None:
    x = normal(12, 12)
    np.fill_diagonal(x, 1.0)
    limit = np.ones((), "f4")
    y = last_place(x)
    wrong = y <= limit
    wrong[3:5, 4] ^= True
    found = compared(
        tmp_path, operator("aten::le", [y, limit], [wrong]), operator("aten::le", [x, limit], [x <= limit])
    )
    assert found.verdict == "different"
    assert found.origins[0].op_name == "le_0"


def test_the_places_of_equal_elements_are_free(tmp_path: Path) -> None:
    x = np.round(normal(4, 50))
    values = np.sort(x, -1)
    places = np.argsort(x, -1, kind="stable")
    others = x.shape[-1] - 1 - np.argsort(x[:, ::-1], -1, kind="stable")
    assert (places != others).any()
    found = compared(
        tmp_path, operator("aten::sort", [x], [values, others]), operator("aten::sort", [x], [values, places])
    )
    assert found.verdict == "noise", found.worst_pairs()
    assert found.pairs[-1].reason == "the elements at these places are equal: any of them is right"


def test_the_place_of_another_element_is_wrong(tmp_path: Path) -> None:
    x = np.round(normal(4, 50))
    values, places = np.sort(x, -1), np.argsort(x, -1, kind="stable")
    wrong = places.copy()
    wrong[2, [0, -1]] = wrong[2, [-1, 0]]
    found = compared(
        tmp_path, operator("aten::sort", [x], [values, wrong]), operator("aten::sort", [x], [values, places])
    )
    assert found.verdict == "different"


def small_and_noisy() -> tuple[np.ndarray, np.ndarray]:
    """Most elements near one, and some that are small and far off, relative to their size."""
    x = 1 + np.abs(normal(1000))
    x[::100] = 1e-3
    y = last_place(x)
    y[::100] *= np.float32(1.0001)
    return y, x


@pytest.mark.parametrize("op_type", ["aten::reciprocal", "aten::rsqrt"])
def test_small_divisors_that_are_rounded_are_noise(tmp_path: Path, op_type: str) -> None:
    y, x = small_and_noisy()
    made = (lambda one: 1 / one) if op_type == "aten::reciprocal" else (lambda one: 1 / np.sqrt(one))
    found = compared(tmp_path, operator(op_type, [y], [made(y)]), operator(op_type, [x], [made(x)]))
    assert found.verdict == "noise", found.worst_pairs()


def test_an_element_that_its_input_does_not_explain_is_seen(tmp_path: Path) -> None:
    y, x = small_and_noisy()
    wrong = 1 / y
    wrong[1] *= np.float32(1.01)
    found = compared(tmp_path, operator("aten::reciprocal", [y], [wrong]), operator("aten::reciprocal", [x], [1 / x]))
    assert found.verdict == "different"


def uneven() -> tuple[np.ndarray, np.ndarray]:
    """Matrices with a few columns that are much larger, as activations of large language models have."""
    a, b = normal(24, 256), normal(256, 4000, seed=1)
    b[:, 100] *= 3000
    return a, b


def one_after_the_other(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), "f4")
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k]
    return total


def test_rounding_in_large_columns_of_a_product_is_noise(tmp_path: Path) -> None:
    a, b = uneven()
    exact = (a.astype("f8") @ b.astype("f8")).astype("f4")
    found = compared(
        tmp_path, operator("aten::mm", [a, b], [one_after_the_other(a, b)]), operator("aten::mm", [a, b], [exact])
    )
    assert found.verdict == "noise", found.worst_pairs()


def test_a_wrong_element_in_a_large_column_is_seen(tmp_path: Path) -> None:
    a, b = uneven()
    exact = (a.astype("f8") @ b.astype("f8")).astype("f4")
    wrong = exact.copy()
    wrong[3, 100] += np.float32(0.01 * np.abs(exact[:, 100]).mean())
    found = compared(tmp_path, operator("aten::mm", [a, b], [wrong]), operator("aten::mm", [a, b], [exact]))
    assert found.verdict == "different"


def test_the_product_that_is_added_sets_the_scale_of_addcmul(tmp_path: Path) -> None:
    """The second moment of Adam: squares of small gradients, which are much smaller than the gradients."""
    gradient, moment = 1e-5 * normal(40), np.zeros(40, "f4")
    made = moment + np.float32(0.01) * gradient * gradient
    found = compared(
        tmp_path,
        operator("aten::addcmul_", [moment, gradient, gradient], [moment + 0.0 * made]),
        operator("aten::addcmul_", [moment, gradient, gradient], [made]),
    )
    assert found.verdict == "different", "nothing was added"


def test_noise_where_the_reference_is_zero_is_known_by_its_size(tmp_path: Path) -> None:
    """A gradient that vanishes on one side only by rounding, put among zeros."""
    tiny, zero = 2e-9 * np.sign(normal(2, 8)), np.zeros((2, 8), "f4")
    scale = normal(2, 8, seed=3)

    def step(gradient: np.ndarray) -> list[Item]:
        spread = np.zeros((3, 8), "f4")
        spread[:2] = gradient
        return [
            *operator("aten::sub", [scale, scale], [gradient]),
            *operator("aten::slice_backward", [gradient], [spread], seq=1),
        ]

    found = compared(tmp_path, step(tiny.astype("f4")), step(zero))
    assert found.verdict == "noise", found.worst_pairs()
    wrong = compared(tmp_path / "wrong", [*step(zero)[:3], *step(scale)[3:]], step(zero))
    assert wrong.verdict == "different"


def test_a_constant_may_be_rounded_to_a_narrow_type() -> None:
    x = (1 + np.abs(normal(4000))).astype(ml_dtypes.bfloat16)
    exact, rounded = (
        (x.astype("f4") * np.float32(factor)).astype(ml_dtypes.bfloat16)
        for factor in (0.998, np.float32(ml_dtypes.bfloat16(0.998)))
    )
    numbers = measure(rounded, exact)
    assert judge(numbers, "bfloat16", Rules(), constant=True)[0] == "noise"


def test_complex_elements_are_held_against_their_inputs(tmp_path: Path) -> None:
    x = (normal(200) + 1j * normal(200, seed=1)).astype("c8")
    x[::50] *= np.float32(1e-6)
    y = x * np.float32(1 + 1e-7)
    y[::50] *= np.complex64(1 + 0.1j)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compared(
            tmp_path, operator("aten::sgn", [y], [y / np.abs(y)]), operator("aten::sgn", [x], [x / np.abs(x)])
        )
    assert found.verdict == "noise", found.worst_pairs()


BFLOAT16 = ml_dtypes.bfloat16


def sum_in_parts(x: np.ndarray, parts: int) -> np.ndarray:
    """As several threads add: each a part, which is rounded to the type of the tensor."""
    each = [one.astype("f4").sum().astype(x.dtype) for one in np.array_split(x.reshape(-1), parts)]
    return np.asarray(np.asarray(each).astype("f4").sum()).astype(x.dtype)


def rising() -> np.ndarray:
    """Elements of which the first half cancels the second one."""
    return (np.linspace(-1, 1, 60000) + 0.01 * normal(60000)).astype(BFLOAT16)


def test_parts_of_a_sum_that_cancel_each_other_may_be_rounded(tmp_path: Path) -> None:
    x = rising()
    four, one = sum_in_parts(x, 4), sum_in_parts(x, 1)
    assert four != one
    found = compared(tmp_path, operator("aten::sum", [x], [four]), operator("aten::sum", [x], [one]))
    assert found.verdict == "noise", found.worst_pairs()


def test_a_sum_that_is_further_off_than_its_parts_are_rounded_is_seen(tmp_path: Path) -> None:
    x = rising()
    one = sum_in_parts(x, 1)
    wrong = (one.astype("f4") + np.float32(0.05 * 15000)).astype(BFLOAT16)
    found = compared(tmp_path, operator("aten::sum", [x], [wrong]), operator("aten::sum", [x], [one]))
    assert found.verdict == "different"


def batch_norm(x: np.ndarray, rounded: Any) -> Arrays:
    """Normalize rows by a factor and a shift of each column, which a kernel may keep in the type of the tensor."""
    mean, factor = x.astype("f4").mean(0), 1 / x.astype("f4").std(0)
    used, shift = (one.astype(rounded).astype("f4") for one in (factor, -mean * factor))
    return [(x.astype("f4") * used + shift).astype(x.dtype), mean, factor]


def test_a_batch_norm_may_round_the_factor_and_the_shift_of_a_channel(tmp_path: Path) -> None:
    x = (normal(40, 400) + 3 * normal(1, 400, seed=1)).astype(BFLOAT16)
    wrong = batch_norm(x, "f4")
    wrong[0][3] = wrong[0][4]
    for name, made, verdict in (("rounded", batch_norm(x, BFLOAT16), "noise"), ("wrong", wrong, "different")):
        actual, reference = (operator("aten::native_batch_norm", [x], one) for one in (made, batch_norm(x, "f4")))
        found = compared(tmp_path / name, actual, reference)
        assert found.verdict == verdict, found.worst_pairs()


def test_large_elements_of_kernels_that_round_in_between_are_held_against_their_own_size() -> None:
    sizes = np.where(np.arange(4000) % 500, 0.01, 100.0) * (1 + np.abs(normal(4000)))
    b = sizes.astype(BFLOAT16)
    a = (b.astype("f4") * (1 + np.where(np.arange(4000) % 2, 1, -1) * 5 * 2.0**-8)).astype(BFLOAT16)
    numbers = measure(a, b)
    assert judge(numbers, "bfloat16", Rules(), terms=1)[0] == "different"
    assert judge(numbers, "bfloat16", Rules(), terms=1, between=3.0)[0] == "noise"
    a[500] *= BFLOAT16(1.06)
    assert judge(measure(a, b), "bfloat16", Rules(), terms=1, between=3.0)[0] == "different"


def test_exact_elements_may_flip_where_those_that_they_are_made_of_do(tmp_path: Path) -> None:
    """A number is rounded to the other integer in a few places, and an operator on integers follows."""
    x = normal(4000) * 10
    x[::1000] = 4.0
    y = x.copy()
    y[::1000] = np.nextafter(np.float32(4), np.float32(0))

    def step(data: np.ndarray, twice: int = 2) -> list[Item]:
        whole = np.floor(data).astype(np.int64)
        return [
            *operator("aten::_to_copy", [data], [whole]),
            *operator("aten::mul", [whole], [whole * twice], seq=1),
        ]

    found = compared(tmp_path, step(y), step(x))
    assert found.verdict == "noise", found.worst_pairs()
    wrong = step(y)[:3] + step(x, 3)[3:]
    assert compared(tmp_path / "wrong", wrong, step(x)).verdict == "different"


def scattered(gradient: np.ndarray, weight: np.ndarray, size: tuple[int, int], rounded: Any) -> np.ndarray:
    """The gradient of the data of a convolution: each place of the kernel adds to a sum that may be rounded."""
    rows, columns = weight.shape[2:]
    made = np.zeros((gradient.shape[0], weight.shape[1], *size), "f4")
    for i in range(rows):
        for j in range(columns):
            part = np.einsum("nohw,oc->nchw", gradient.astype("f4"), weight[:, :, i, j].astype("f4"))
            at = made[:, :, i : i + gradient.shape[2], j : j + gradient.shape[3]]
            at[:] = (at + part.astype(rounded).astype("f4")).astype(rounded)
    return made.astype(gradient.dtype)


def test_gradients_of_large_kernels_may_be_rounded_place_by_place(tmp_path: Path) -> None:
    gradient, weight = normal(2, 4, 44, 44).astype("f2"), normal(4, 3, 7, 7, seed=1).astype("f2")
    data = normal(2, 3, 50, 50, seed=2).astype("f2")
    right, rounded = (scattered(gradient, weight, (50, 50), one) for one in ("f4", "f2"))
    wrong = right.copy()
    wrong[0, 0, 25] *= np.float16(1.01)
    for name, made, verdict in (("rounded", rounded, "noise"), ("wrong", wrong, "different")):
        inputs = [gradient, data, weight]
        actual, reference = (operator("aten::convolution_backward", inputs, [one]) for one in (made, right))
        found = compared(tmp_path / name, actual, reference)
        assert found.verdict == verdict, found.worst_pairs()


def test_numbers_below_the_smallest_normal_one_may_all_be_rounded_to_the_same_side() -> None:
    b = np.full(4000, 1.5e-5).astype("f2")
    a = b.copy()
    a[::5] = np.nextafter(a[::5], np.float16(1))
    assert judge(measure(a, b), "float16", Rules())[0] == "noise"
    a, b = ((one.astype("f4") * 1024).astype("f2") for one in (a, b))
    assert judge(measure(a, b), "float16", Rules(), terms=64)[0] == "different"


def attended(x: np.ndarray, values: np.ndarray, precise: str) -> np.ndarray:
    """Attention of sequences to themselves, with scores in one type and all else in float64."""
    q = x.astype(precise)
    scores = (q @ q.swapaxes(-1, -2) / np.sqrt(x.shape[-1]).astype(precise)).astype("f8")
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ values, "f4")


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "noise"), (1.01, "different")])
def test_rounding_of_large_scores_is_larger_in_the_weights_of_an_attention(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    x, values = 6 * normal(2, 4, 1, 32) + 0.1 * normal(2, 4, 16, 32, seed=1), normal(2, 4, 16, 32, seed=2)
    rounded, right = attended(x * np.float32(factor), values, "f4"), attended(x, values, "f8")
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    found = compared(tmp_path, operator(name, [x, x, values], [rounded]), operator(name, [x, x, values], [right]))
    usual = 8 * np.sqrt(64) * 2.0**-24 * np.sqrt(np.mean(right**2))
    assert measure(rounded, right).max_abs > usual
    assert found.verdict == verdict, found.worst_pairs()


@pytest.mark.parametrize(
    ("number", "verdict"), [("0.7", "noise"), ("0.71", "different")], ids=["rounded by a kernel", "another number"]
)
def test_a_divisor_may_be_rounded_to_a_narrow_type(tmp_path: Path, number: str, verdict: str) -> None:
    """A remainder of nearly the whole divisor becomes one of nearly nothing."""
    x = (3 * normal(64, 64)).astype(ml_dtypes.bfloat16)
    rounded = np.fmod(x.astype("f8"), float(np.asarray(float(number)).astype(ml_dtypes.bfloat16)))
    right = np.fmod(x.astype("f8"), 0.7)
    call = '{"op":"aten.fmod.Scalar","args":{"self":{"input":0},"other":0.7}}'
    found = compared(
        tmp_path,
        operator("aten::fmod", [x], [rounded.astype(x.dtype)], call=call),
        operator("aten::fmod", [x], [right.astype(x.dtype)], call=call),
    )
    assert np.abs(rounded - right).max() > 0.5
    assert found.verdict == verdict, found.worst_pairs()


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "noise"), (0.05, "different")])
def test_the_ratio_that_a_logit_takes_the_logarithm_of_may_be_rounded(
    tmp_path: Path, shift: float, verdict: str
) -> None:
    x = (0.5 + 0.02 * normal(64, 64)).astype(ml_dtypes.bfloat16)
    ratio = (x / (np.ones((), x.dtype) - x)).astype("f8")
    right = np.log(x.astype("f8") / (1 - x.astype("f8")))
    found = compared(
        tmp_path,
        operator("aten::logit", [x], [(np.log(ratio) + shift).astype(x.dtype)]),
        operator("aten::logit", [x], [right.astype(x.dtype)]),
    )
    assert found.verdict == verdict, found.worst_pairs()


@pytest.mark.parametrize(("fault", "verdict"), [(1.0, "noise"), (1.1, "different")])
def test_a_factor_of_lists_counts_for_each_tensor(tmp_path: Path, fault: float, verdict: str) -> None:
    """The norm that gradients are clipped by differs by the rounding of all of them."""
    gradients = [normal(64), normal(8, seed=1)]

    def clipped(scale: float, last: float = 1.0) -> list[Item]:
        factor = np.asarray(scale, ml_dtypes.bfloat16)
        results = [array * np.float32(factor) for array in gradients]
        results[1] *= np.float32(last)
        return operator("aten::_foreach_mul_", [*gradients, factor], results)

    found = compared(tmp_path, clipped(0.50390625, fault), clipped(0.5))
    assert [pair.verdict for pair in found.pairs if pair.record.io == "output"] == ["noise", verdict]


@pytest.mark.parametrize(("fault", "verdict"), [(1.0, "noise"), (2.0, "different")])
def test_small_elements_of_expm1_have_the_rounding_of_their_inputs(tmp_path: Path, fault: float, verdict: str) -> None:
    """An input of 0.01 that is a sum of larger numbers has a large relative error, and so has its output."""
    x = normal(12, 12)
    x[0] = 0.01 * np.sign(x[0])
    y = x + np.float32(1e-6) * np.sign(normal(12, 12, seed=1))
    wrong = np.expm1(y)
    wrong[0, 0] *= fault
    found = compared(tmp_path, operator("aten::expm1", [y], [wrong]), operator("aten::expm1", [x], [np.expm1(x)]))
    assert found.verdict == verdict, found.worst_pairs()
