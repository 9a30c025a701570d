"""GE operators of the simulated device beside PyTorch's, and random ones by their distributions.

Those that torchair writes for single operators of PyTorch are run in tests/real/torchair, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from ge_operators import run
from hypothesis import assume, given
from hypothesis import strategies as st

from ascend_dump import ConfigError, NotSupported, fakes

FLOAT, INT64, BF16 = 0, 9, 27  # ge::DataType
SEED, OFFSET = torch.tensor(10), torch.tensor(4)
COUNT = 20_000


def shape(*sizes: int) -> torch.Tensor:
    return torch.tensor(sizes)


def draw(op_type: str, seed: int, offset: int, *sizes: int, dtype: int = FLOAT) -> torch.Tensor:
    """As torchair calls it: the key is the seed, the counter zero and the offset."""
    key, counter = torch.tensor([seed]), torch.tensor([0, offset])
    found: torch.Tensor = run(op_type, shape(*sizes), key, counter, torch.tensor(1), dtype=dtype)
    return found


class TestRandom:
    @pytest.mark.parametrize("op_type", ["StatelessRandomUniformV2", "StatelessRandomNormalV2"])
    def test_seed_and_offset_decide(self, op_type: str) -> None:
        first = draw(op_type, 10, 4, 3, 5)
        assert first.shape == (3, 5)
        assert torch.equal(first, draw(op_type, 10, 4, 3, 5))
        assert not torch.equal(first, draw(op_type, 10, 8, 3, 5))
        assert not torch.equal(first, draw(op_type, 11, 4, 3, 5))

    def test_uniform(self) -> None:
        found = draw("StatelessRandomUniformV2", 1, 0, COUNT)
        assert 0 <= float(found.min()) < 0.01
        assert 0.99 < float(found.max()) < 1
        # Rounded to eight bits, many would be one.
        assert float(draw("StatelessRandomUniformV2", 1, 0, COUNT, dtype=BF16).max()) < 1
        places = torch.linspace(0, 1, COUNT)
        assert float((found.sort().values - places).abs().max()) < 2.7 / COUNT**0.5

    def test_normal(self) -> None:
        found = draw("StatelessRandomNormalV2", 1, 0, COUNT).double()
        shares = torch.distributions.Normal(0, 1).cdf(found.sort().values)
        assert float((shares - torch.linspace(0, 1, COUNT)).abs().max()) < 2.7 / COUNT**0.5

    def test_bernoulli_follows_the_probability_of_each_element(self) -> None:
        probability = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(COUNT)
        found = run("StatelessBernoulli", shape(3 * COUNT), probability, SEED, OFFSET, dtype=FLOAT)
        never, sometimes, always = found.reshape(3, COUNT).mean(1).tolist()
        assert (never, always) == (0, 1)
        assert abs(sometimes - 0.25) < 5 * (0.25 * 0.75 / COUNT) ** 0.5

    def test_a_permutation_has_every_number_once(self) -> None:
        found = run("StatelessRandperm", torch.tensor(100), SEED, OFFSET, dtype=INT64)
        assert found.dtype == torch.int64
        assert found.tolist() != list(range(100))
        assert sorted(found.tolist()) == list(range(100))

    @pytest.mark.parametrize("keep", [0.0, 0.7, 1.0])
    def test_dropout_keeps_a_share_and_scales_it(self, keep: float) -> None:
        counter = torch.tensor([0, 4])
        mask = run("StatelessDropOutGenMask", shape(COUNT + 1), torch.tensor(keep), SEED, torch.tensor(0), counter)
        assert mask.dtype == torch.uint8
        # One bit for each element, in whole blocks of 128.
        assert mask.shape == ((COUNT // 128 + 1) * 16,)
        x = torch.full((COUNT + 1,), 2.0)
        y = run("DropOutDoMask", x, mask, torch.tensor(keep))
        kept = y != 0
        assert abs(float(kept.double().mean()) - keep) <= 5 * (keep * (1 - keep) / COUNT) ** 0.5
        assert torch.equal(y[kept], (x / (keep or 1))[kept])

    def test_the_default_generator_has_an_offset_while_the_device_is_there(self) -> None:
        before = torch.default_generator
        with fakes.install("torchair_native"):
            generator = torch.default_generator
            torch.manual_seed(7)
            assert generator.initial_seed() == 7
            generator.set_offset(generator.get_offset() + 12)
            assert generator.get_offset() == 12
        assert torch.default_generator is before


@given(
    st.tuples(*[st.integers(3, 9)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1, 5]),
    st.data(),
)
def test_pooling_is_that_of_torch(
    size: tuple[int, int],
    window: tuple[int, int],
    stride: tuple[int, int],
    ceil: bool,
    exclusive: bool,
    divisor: int,
    data: st.DataObject,
) -> None:
    pads = [data.draw(st.integers(0, each // 2)) for each in window]
    assume(all(length + 2 * pad >= kernel for length, pad, kernel in zip(size, pads, window)))
    x = torch.arange(2.0 * size[0] * size[1]).reshape(1, 2, *size)
    attrs = {
        "ksize": [1, 1, *window],
        "strides": [1, 1, *stride],
        "pads": [pads[0], pads[0], pads[1], pads[1]],
        "ceil_mode": ceil,
    }
    found = run("AvgPoolV2", x, exclusive=exclusive, divisor_override=divisor, **attrs)
    pool = torch.nn.functional.avg_pool2d
    torch.testing.assert_close(found, pool(x, window, stride, tuple(pads), ceil, not exclusive, divisor or None))
    highest = torch.nn.functional.max_pool2d(x, window, stride, tuple(pads), 1, ceil)
    torch.testing.assert_close(run("MaxPoolV3", x, **attrs), highest)


@given(
    st.tuples(*[st.integers(3, 9)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.booleans(),
    st.data(),
)
def test_the_mask_of_a_pooling_says_where_each_value_was(
    size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], ceil: bool, data: st.DataObject
) -> None:
    pads = [data.draw(st.integers(0, each // 2)) for each in window]
    assume(all(length + 2 * pad >= kernel for length, pad, kernel in zip(size, pads, window)))
    x = torch.arange(2.0 * size[0] * size[1]).reshape(1, 2, *size).sin().requires_grad_()
    attrs = {"ksize": [1, *window, 1], "strides": [1, *stride, 1], "pads": [1, *pads, 1], "ceil_mode": ceil}
    values, mask = run("MaxPoolWithArgmaxV1", x.detach(), **attrs)
    wanted = torch.nn.functional.max_pool2d(x, window, stride, tuple(pads), 1, ceil)
    assert torch.equal(values, wanted)
    bits = np.unpackbits(mask.numpy().view(np.uint8), axis=-1, bitorder="little")[..., : values[0, 0].numel()]
    assert bits.sum(axis=2).tolist() == np.ones((1, 2, values[0, 0].numel())).tolist()
    rows, columns = np.divmod(np.argmax(bits, axis=2).reshape(values.shape), window[1])
    places = np.indices(values.shape)
    rows, columns = rows + places[2] * stride[0] - pads[0], columns + places[3] * stride[1] - pads[1]
    assert torch.equal(x.detach()[0, places[1], rows, columns], values)
    wanted.sum().backward()
    found = run("MaxPoolGradWithArgmaxV1", x.detach(), torch.ones_like(wanted), mask, **attrs)
    torch.testing.assert_close(found, x.grad)


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.sampled_from(["reflect", "edge"]))
def test_padding_and_its_gradient_are_those_of_torch(widths: list[int], mode: str) -> None:
    left, right, top, bottom = widths
    x = torch.arange(40.0).reshape(1, 2, 5, 4).requires_grad_()
    wanted = torch.nn.functional.pad(x, (left, right, top, bottom), {"edge": "replicate"}.get(mode, mode))
    paddings = torch.tensor([0, 0, 0, 0, top, bottom, left, right])
    assert torch.equal(run("PadV3", x.detach(), paddings, None, mode=mode), wanted)
    if mode == "reflect":
        assert torch.equal(run("MirrorPad", x.detach(), paddings.reshape(4, 2), mode="REFLECT"), wanted)
    gradient = torch.arange(float(wanted.numel())).reshape(wanted.shape)
    wanted.backward(gradient)
    assert x.grad is not None
    torch.testing.assert_close(run("PadV3Grad", gradient, paddings, mode=mode), x.grad)


@pytest.mark.parametrize("attrs", [{"mode": "constant"}, {"mode": "reflect", "paddings_contiguous": False}])
def test_other_gradients_of_padding_are_refused(attrs: dict[str, Any]) -> None:
    with pytest.raises(NotSupported, match="pads with a mode or order"):
        run("PadV3Grad", torch.ones(3, 5), torch.tensor([0, 0, 1, 1]), **attrs)


def test_a_mirror_may_repeat_the_outermost_element() -> None:
    found = run("MirrorPad", torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[2, 3]]), mode="SYMMETRIC")
    assert found.tolist() == [2, 1, 1, 2, 3, 3, 2, 1]


def test_a_transposed_convolution_is_that_of_torch_and_checks_its_size() -> None:
    x, weight = torch.randn(1, 4, 5, 5), torch.randn(4, 3, 3, 3)
    wanted = torch.nn.functional.conv_transpose2d(x, weight, None, 2, 1, 1)
    attrs = {"strides": [1, 1, 2, 2], "pads": [1, 1, 1, 1], "output_padding": [0, 0, 1, 1], "data_format": "NCHW"}
    torch.testing.assert_close(run("Conv2DTranspose", shape(1, 3, 10, 10), x, weight, **attrs), wanted)
    with pytest.raises(ConfigError, match=r"input_size is \[1, 3, 9, 9\], the attributes imply \[1, 3, 10, 10\]"):
        run("Conv2DTranspose", shape(1, 3, 9, 9), x, weight, **attrs)


def test_lists_are_told_apart_by_their_length() -> None:
    x, y = [torch.ones(2), torch.ones(3)], [torch.full((2,), 2.0), torch.full((3,), 3.0)]
    two, three = run("ForeachAddList", *x, *y, torch.tensor(10.0))
    assert (two.tolist(), three.tolist()) == ([21, 21], [31, 31, 31])
    two, three = run("ForeachMulScalarList", *y, torch.tensor([2.0, 5.0]))
    assert (two.tolist(), three.tolist()) == ([4, 4], [15, 15, 15])
    two, three = run("ForeachLerpList", *x, *y, torch.tensor(0.5), torch.tensor(0.0))
    assert (two.tolist(), three.tolist()) == ([1.5, 1.5], [1, 1, 1])
    assert [each.tolist() for each in run("ForeachNorm", *y, torch.tensor(1.0))] == [4, 9]


def test_indices_below_zero_count_from_the_end() -> None:
    found = run("ScatterElements", torch.zeros(1, 3), torch.tensor([[-1]]), torch.ones(1, 1), axis=1)
    assert found.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs"),
    [
        ("ResizeNearestNeighborV2", [torch.ones(1, 1, 2, 2), shape(4, 4)], {"half_pixel_centers": True}),
        ("ForeachRoundOffNumber", [torch.ones(2), torch.tensor([9], dtype=torch.int8)], {}),
        ("AvgPoolV2Grad", [shape(1, 1, 4, 4), torch.ones(1, 1, 2, 2)], {"data_format": "NHWC"}),
        ("EmbeddingBag", [torch.ones(3, 2), shape(0, 1)], {"mode": "sum"}),
        ("Conv3D", [torch.ones(1, 1, 2, 2, 2)] * 2, {"data_format": "NDHWC"}),
    ],
)
def test_what_is_not_done_here_says_so(op_type: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    with pytest.raises(NotSupported, match=f"{op_type} 'op'"):
        run(op_type, *inputs, **attrs)
