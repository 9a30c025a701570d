"""Tensors that the simulated device keeps in blocks are compared in the layout that they have in the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.compare import Comparison, Pair
from ascend_dump.fakes.device.npu import NodeInfo, Npu
from ascend_dump.native.cann.formats import convert


class Stored:
    """A tensor as the device has it: its elements, the layout they are in, and the shape that the model knows."""

    def __init__(self, array: np.ndarray, layout: str = "ND", shape: Optional[Sequence[int]] = None) -> None:
        self.array = array
        self.layout = layout
        self.shape = array.shape if shape is None else tuple(shape)


def dump_of(root: Path, output: Stored) -> Path:
    """A model of one operator that makes this output, dumped by the device."""
    root.mkdir(parents=True)
    npu = Npu(environ={}, cwd=root)
    (root / "dump").mkdir()
    settings = {"dump": {"dump_path": str(root / "dump"), "dump_list": [{}], "dump_mode": "all"}}
    (root / "acl.json").write_text(json.dumps(settings))
    npu.arm_acl(root / "acl.json")
    loaded = npu.load_model("net", ops=(NodeInfo("x", "Data"), NodeInfo("conv", "Conv2D", ("x:0",))))
    npu.begin_step(loaded, 0)
    npu.run_op(
        "Conv2D",
        "conv",
        [np.ones(3, "f4")],
        [output.array],
        model_id=loaded,
        formats={"output0": output.layout},
        original_shapes={"output0": output.shape},
    )
    npu.end_step(loaded)
    return root / "dump"


def compared(actual: Stored, reference: Stored) -> tuple[Comparison, Pair]:
    with TemporaryDirectory() as folder:
        dumps = [dump_of(Path(folder) / name, one) for name, one in (("a", actual), ("b", reference))]
        comparison = ascend_dump.compare(*dumps)
        [pair] = [one for one in comparison.pairs if one.record.io == "output" and one.record.op_name == "conv"]
        return comparison, pair


def in_blocks(array: np.ndarray, plain: str, layout: str, *, dirty: bool = False) -> Stored:
    """The tensor packed; dirty: what fills up the blocks is not zero."""
    packed = convert(array, plain, layout)
    if dirty:
        filled = convert(np.ones_like(array), plain, layout) != 0
        packed = np.where(filled, packed, packed.dtype.type(77))
    return Stored(packed, layout, array.shape)


def random_array(seed: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values + np.where(values > 0, 1, -1)).astype(dtype)


CASES = st.sampled_from(
    [("NCHW", "NC1HWC0"), ("NHWC", "NC1HWC0"), ("NCHW", "FRACTAL_Z"), ("ND", "FRACTAL_NZ"), ("NCDHW", "NDC1HWC0")]
)
SIZES = st.lists(st.integers(1, 20), min_size=5, max_size=5)


@settings(deadline=None, max_examples=40)
@given(case=CASES, sizes=SIZES, seed=st.integers(0, 99), dirty=st.booleans(), dtype=st.sampled_from(["f4", "f2"]))
def test_what_lies_in_blocks_is_what_was_put_there(
    case: tuple[str, str], sizes: list[int], seed: int, dirty: bool, dtype: str
) -> None:
    plain, layout = case
    array = random_array(seed, sizes[: 3 if plain == "ND" else len(plain)], dtype)
    blocks, other = in_blocks(array, plain, layout, dirty=dirty), Stored(array, plain)
    comparison, pair = compared(blocks, other)
    assert (pair.verdict, comparison.verdict) == ("equal", "equal")
    assert pair.transformation == f"{layout}→{plain}"
    _, pair = compared(other, blocks)
    assert (pair.verdict, pair.transformation) == ("equal", f"{layout}→{plain} of the reference")
    # What fills up the blocks is not compared.
    _, pair = compared(blocks, in_blocks(array, plain, layout))
    assert pair.verdict == "equal"


@settings(deadline=None, max_examples=20)
@given(case=CASES, sizes=SIZES, seed=st.integers(0, 99), place=st.integers(0, 10**6))
def test_a_wrong_element_is_named_by_its_place_in_the_model(
    case: tuple[str, str], sizes: list[int], seed: int, place: int
) -> None:
    plain, layout = case
    array = random_array(seed, sizes[: 3 if plain == "ND" else len(plain)], "f4")
    wrong = array.copy()
    at = np.unravel_index(place % array.size, array.shape)
    wrong[at] += 10
    comparison, pair = compared(in_blocks(wrong, plain, layout), Stored(array, plain))
    assert (pair.verdict, pair.transformation) == ("different", f"{layout}→{plain}")
    assert pair.measure is not None
    assert (pair.measure.at, pair.measure.unequal) == (tuple(int(i) for i in at), 1)
    assert [one.op_name for one in comparison.origins] == ["conv"]


def test_axes_in_another_order_by_name_are_one_tensor() -> None:
    array = random_array(0, (2, 3, 4, 5), "f4")
    _, pair = compared(Stored(np.ascontiguousarray(array.transpose(0, 2, 3, 1)), "NHWC"), Stored(array, "NCHW"))
    assert (pair.verdict, pair.transformation) == ("equal", "NHWC→NCHW")


@pytest.mark.parametrize(
    ("how", "name"),
    [(lambda array: array.T, "permute(1, 0)"), (lambda array: array.reshape(5, 4), "reshape")],
)
def test_another_shape_of_the_same_values_is_a_difference_of_structure_that_says_so(how: Any, name: str) -> None:
    array = random_array(0, (4, 5), "f4")
    _, pair = compared(Stored(np.ascontiguousarray(how(array))), Stored(array))
    assert (pair.verdict, pair.transformation) == ("structure", name)
    assert pair.reason.endswith(f"instead of [4, 5], of the same values: {name}")
    assert pair.measure is not None
    assert pair.measure.unequal == 0


def test_blocks_of_another_tensor_are_a_difference_of_structure() -> None:
    blocks = in_blocks(random_array(0, (1, 3, 4, 4), "f4"), "NCHW", "NC1HWC0")
    _, pair = compared(blocks, Stored(random_array(1, (1, 4, 3, 4), "f4"), "NHWC"))
    assert (pair.verdict, pair.measure) == ("structure", None)
    assert pair.reason == "shape [1, 1, 4, 4, 16] instead of [1, 4, 3, 4]"


def test_signaling_nan_in_another_layout(tmp_path: Path) -> None:
    """Memory that is not written yet may have any bits."""
    torch = pytest.importorskip("torch")

    values = torch.arange(24.0).view(4, 6)
    values.view(torch.int32)[1, 2] = 0x7F800001
    for name, x in (("actual", values), ("reference", values.t().contiguous())):
        with ascend_dump.capture(path=tmp_path / name, quiet=True):
            x.neg()
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert comparison.origins[0].pair.verdict == "structure"
