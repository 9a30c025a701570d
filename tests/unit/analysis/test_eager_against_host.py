"""An eager NPU dump against a dump of the same program on the CPU: API calls are paired with ATen operators."""

from __future__ import annotations

import eager_dumps
import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes
from ascend_dump.analysis.operators.names import aten_names, operation

torch = pytest.importorskip("torch")

RANDOM = np.random.default_rng(3)


def randn(*shape):
    return RANDOM.standard_normal(shape).astype("f4")


class Npu:
    """Writes API calls with one kernel each; the result is computed in double precision, so it differs by rounding."""

    def __init__(self, root, wrong=""):
        self.device = eager_dumps.device(root)
        self.wrong = wrong

    def __call__(self, api, function, *inputs, stored=None):
        result = function(*(array.astype("f8") for array in inputs)).astype("f4")
        if api == self.wrong:
            result.reshape(-1)[1] += 5
        kernel = api.removeprefix("aclnn").removeprefix("Inplace")
        self.device.call(api, inputs if stored is None else stored, [result], [(kernel, inputs, [result])])
        return result


def recorded(path, function, *arrays):
    with ascend_dump.capture(path=path, framework="torch"):
        function(*map(torch.from_numpy, arrays))
    return path


def pairs_of(comparison):
    """The types of paired operators by the first pair of outputs."""
    return {
        (pair.actual.op_type, pair.reference.op_type)
        for pair in comparison.pairs
        if pair.actual is not None and pair.reference is not None and pair.actual.io == "output"
    }


def mlp(x, w, b, v):
    h = torch.relu(torch.addmm(b, x, w))
    h.add_(1.0)
    return torch.softmax(h @ v, dim=-1)


def mlp_on_npu(npu, x, w, b, v):
    h = npu("aclnnAddmm", lambda b, x, w: b + x @ w, b, x, w)
    h = npu("aclnnRelu", lambda h: np.maximum(h, 0), h)
    h = npu("aclnnInplaceAdds", lambda h: h + 1, h)
    h = npu("aclnnMm", lambda h, v: h @ v, h, v)
    return npu("aclnnSoftmax", lambda h: np.exp(h) / np.exp(h).sum(-1, keepdims=True), h)


MLP = (randn(4, 8), randn(8, 6), randn(6), randn(6, 5))


def test_the_same_program_agrees_and_every_operator_is_paired(tmp_path):
    mlp_on_npu(Npu(tmp_path / "npu"), *MLP)
    reference = recorded(tmp_path / "cpu", mlp, *MLP)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert comparison.verdict in ("equal", "noise")
    assert pairs_of(comparison) == {
        ("aclnnAddmm", "aten::addmm"),
        ("aclnnRelu", "aten::relu"),
        ("aclnnInplaceAdds", "aten::add_"),
        ("aclnnMm", "aten::mm"),
        ("aclnnSoftmax", "aten::_softmax"),
    }
    assert not comparison.unmatched


@pytest.mark.parametrize("api", ["aclnnAddmm", "aclnnInplaceAdds", "aclnnMm", "aclnnSoftmax"])
def test_a_wrong_call_is_the_origin(tmp_path, api):
    mlp_on_npu(Npu(tmp_path / "npu", wrong=api), *MLP)
    reference = recorded(tmp_path / "cpu", mlp, *MLP)
    origins = ascend_dump.compare(tmp_path / "npu", reference).origins
    assert origins[0].pair.actual.op_type == api


def test_views_with_an_offset_take_the_tensor_of_the_kernel(tmp_path):
    storage, w = randn(10, 8), randn(8, 6)
    npu = Npu(tmp_path / "npu")
    h = npu("aclnnMm", lambda x, w: x @ w, storage[4:], w, stored=[storage, w])
    npu("aclnnRelu", lambda h: np.maximum(h, 0), h)
    reference = recorded(tmp_path / "cpu", lambda x, w: torch.relu(x[4:] @ w), storage, w)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert comparison.verdict in ("equal", "noise")
    assert pairs_of(comparison) == {("aclnnMm", "aten::mm"), ("aclnnRelu", "aten::relu")}


def test_a_view_is_not_taken_for_an_element_that_the_kernel_reads_too(tmp_path):
    storage = randn(10, 8)
    factor = storage[5, :1].copy()
    npu = Npu(tmp_path / "npu")
    npu("aclnnMul", lambda factor, x: factor * x, factor, storage[4:], stored=[factor, storage])
    reference = recorded(tmp_path / "cpu", lambda factor, x: factor * x[4:], factor, storage)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert comparison.verdict == "equal"
    paired = [pair for pair in comparison.pairs if pair.actual is not None and pair.reference is not None]
    assert [pair.actual.shape for pair in paired if pair.actual.io == "input"] == [(1,), (6, 8)]


def attention(q, k, v):
    scores = np.einsum("bnsd,bntd->bnst", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnst,bntd->bnsd", weights / weights.sum(-1, keepdims=True), v)


def heads_apart(array, layout, batch=2, heads=4):
    """An array of (batch, sequence, heads * dim) or the like as (batch, heads, sequence, dim)."""
    if layout == "BNSD":
        return array
    return array.reshape(batch, -1, heads, array.shape[-1] // (heads if layout == "BSH" else 1)).transpose(0, 2, 1, 3)


def in_layout(array, layout):
    if layout == "BNSD":
        return array
    batch, heads, length, size = array.shape
    moved = np.ascontiguousarray(array.transpose(0, 2, 1, 3))
    return moved.reshape({"BSH": (batch, length, heads * size), "TND": (batch * length, heads, size)}[layout])


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "TND"])
@pytest.mark.parametrize("wrong", ["", "aclnnFlashAttentionScore"])
def test_fused_attention_in_each_layout(tmp_path, layout, wrong):
    arrays = [randn(2, 4, 6, 8) for _ in range(3)]
    npu = Npu(tmp_path / "npu", wrong)
    api = "aclnnFlashAttentionScore"

    def on_npu(*tensors):
        return in_layout(attention(*(heads_apart(tensor, layout) for tensor in tensors)), layout)

    h = npu(api, on_npu, *(in_layout(array, layout) for array in arrays))
    npu("aclnnRelu", lambda h: np.maximum(h, 0), h)

    def on_cpu(q, k, v):
        torch.relu(torch.nn.functional.scaled_dot_product_attention(q, k, v))

    comparison = ascend_dump.compare(tmp_path / "npu", recorded(tmp_path / "cpu", on_cpu, *arrays))
    types = dict(pairs_of(comparison))
    assert "attention" in types[api]
    assert types["aclnnRelu"] == "aten::relu"
    if wrong:
        assert comparison.origins[0].pair.actual.op_type == api
    else:
        assert comparison.verdict in ("equal", "noise")


@pytest.mark.parametrize("wrong", ["", "aclnnFlashAttentionVarLenScore"])
def test_packed_sequences_of_unequal_lengths(tmp_path, wrong):
    """TND with lengths 2, 5 and 3 against a host that packs them too and keeps them apart by a mask."""
    lengths = (2, 5, 3)
    arrays = [randn(1, 4, sum(lengths), 8) for _ in range(3)]
    npu = Npu(tmp_path / "npu", wrong)
    api = "aclnnFlashAttentionVarLenScore"
    starts = np.cumsum((0, *lengths))

    def on_npu(*tensors):
        parts = [
            attention(*(tensor[start:end].transpose(1, 0, 2)[None] for tensor in tensors))[0].transpose(1, 0, 2)
            for start, end in zip(starts, starts[1:])
        ]
        return np.concatenate(parts)

    h = npu(api, on_npu, *(np.ascontiguousarray(array[0].transpose(1, 0, 2)) for array in arrays))
    npu("aclnnRelu", lambda h: np.maximum(h, 0), h)
    sequence = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))

    def on_cpu(q, k, v):
        apart = sequence[:, None] == sequence[None, :]
        torch.relu(torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=apart))

    comparison = ascend_dump.compare(tmp_path / "npu", recorded(tmp_path / "cpu", on_cpu, *arrays))
    assert dict(pairs_of(comparison))["aclnnRelu"] == "aten::relu"
    if wrong:
        assert comparison.origins[0].pair.actual.op_type == api
    else:
        assert comparison.origins == ()
        assert comparison.verdict in ("equal", "noise")


def rms_norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def rms_norm_of_torch(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def rotated_by_torch(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


FUSED = {
    "aclnnRmsNorm": (rms_norm, rms_norm_of_torch, [randn(4, 8), randn(8)]),
    "aclnnSwiGlu": (
        lambda x: x[:, :4] / (1 + np.exp(-x[:, :4])) * x[:, 4:],
        lambda x: torch.nn.functional.silu(x[:, :4]) * x[:, 4:],
        [randn(4, 8)],
    ),
    "aclnnRotaryPositionEmbedding": (rotated, rotated_by_torch, [randn(4, 8), randn(4, 8), randn(4, 8)]),
    "aclnnAddRmsNorm": (
        lambda x, y, w: rms_norm(x + y, w),
        lambda x, y, w: rms_norm_of_torch(x + y, w),
        [randn(4, 8), randn(4, 8), randn(8)],
    ),
}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("api", FUSED)
def test_fused_operators_are_paired_with_what_they_fuse(tmp_path, api, wrong):
    on_npu, on_cpu, arrays = FUSED[api]
    weight = randn(arrays[0].shape[-1] // (2 if api == "aclnnSwiGlu" else 1), 5)
    npu = Npu(tmp_path / "npu", api if wrong else "")
    h = npu(api, on_npu, *arrays)
    npu("aclnnMm", lambda h, w: h @ w, h, weight)
    reference = recorded(tmp_path / "cpu", lambda w, *x: on_cpu(*x) @ w, weight, *arrays)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    paired = {actual for actual, _ in pairs_of(comparison)}
    assert paired == {api, "aclnnMm"}
    if wrong:
        assert comparison.origins[0].pair.actual.op_type == api
    else:
        assert comparison.verdict in ("equal", "noise")


def adamw(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-3) - 0.1 * (m / 0.1) / (np.sqrt(v / 0.001) + 1e-8)


def test_an_optimizer_that_updates_tensors_one_by_one_agrees_with_one_of_lists(tmp_path):
    parameters, gradients = ([randn(3, 4), randn(5)] for _ in range(2))
    npu = Npu(tmp_path / "npu")
    for parameter, gradient in zip(parameters, gradients):
        zero = np.zeros_like(parameter)
        npu("aclnnApplyAdamWV2", adamw, parameter, zero, zero, gradient)
        npu("aclnnMuls", lambda p: p * 2, adamw(parameter, zero, zero, gradient).astype("f4"))

    def on_cpu(*arrays):
        tensors = [array.clone().requires_grad_() for array in arrays[:2]]
        for tensor, gradient in zip(tensors, arrays[2:]):
            tensor.grad = gradient
        torch.optim.AdamW(tensors, lr=0.1, weight_decay=0.01, fused=True).step()
        [tensor.detach() * 2 for tensor in tensors]

    reference = recorded(tmp_path / "cpu", on_cpu, *parameters, *gradients)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert not comparison.origins
    assert ("aclnnApplyAdamWV2", "aten::_fused_adamw_") in pairs_of(comparison)
    assert {pair.verdict for pair in comparison.pairs if pair.actual and pair.reference} <= {"equal", "noise"}


@pytest.mark.skipif(not hasattr(torch, "_C") or not hasattr(torch._C, "_acc"), reason="the fake needs PyTorch 2.13")
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_an_optimizer_of_lists_on_the_simulated_device(tmp_path, foreach, eps):
    """AdamW as PyTorch chooses it on a device: every step calls APIs on lists of tensors."""

    def train(device, path, **settings):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **settings)
        with ascend_dump.capture(model, path=path, steps="0-1", mode="all", quiet=True):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 8).to(device)).square().mean().backward()
                optimizer.step()
        return path

    reference = train("cpu", tmp_path / "cpu", foreach=foreach)
    with fakes.install("torch_npu", environ={}):
        actual = train("npu", tmp_path / "npu", foreach=True, eps=eps)
    comparison = ascend_dump.compare(actual, reference)
    if eps == 1e-8:
        assert comparison.origins == ()
        assert not any(pair.differs for pair in comparison.pairs)
        assert "aclnnForeachSqrt" in {pair.actual.op_type for pair in comparison.pairs if pair.actual is not None}
    else:
        first = comparison.origins[0].pair.record.op_type
        # One by one, the host's operators have no partner among those on lists; the last one has the parameter.
        assert first == ("ForeachAddScalar" if foreach else "aten::addcdiv_")


def test_an_operator_that_one_side_adds_is_the_origin(tmp_path):
    """It stands before one that both run, with equal inputs: the one behind it is not wrong."""
    x, w, b = randn(4, 8), randn(8, 6), randn(6)

    def on_npu(path, factor):
        npu = Npu(path)
        h = npu("aclnnRelu", lambda x: np.maximum(x, 0), x)
        if factor:
            h = npu("aclnnMuls", lambda h: h * factor, h)
        h = npu("aclnnAddmm", lambda b, h, w: b + h @ w, b, h, w)
        npu("aclnnTanh", np.tanh, h)
        return path

    reference = recorded(tmp_path / "cpu", lambda x, w, b: torch.tanh(torch.addmm(b, torch.relu(x), w)), x, w, b)
    assert ascend_dump.compare(on_npu(tmp_path / "healthy", None), reference).origins == ()
    [origin] = ascend_dump.compare(on_npu(tmp_path / "added", 1.01), reference).origins
    assert (origin.op_name, origin.kind) == ("aclnnMuls_0", "structure")
    assert origin.evidence[0] == "aclnnMuls runs in actual only"
    assert "equal" not in " ".join(origin.evidence)


def test_clipped_gradients_one_by_one_against_a_list(tmp_path):
    """Gradients are near to those with weight decay, which the next operator makes."""
    gradients = [randn(16), randn(16), randn(16)]
    weights = [gradient * 1e-4 for gradient in gradients]
    npu = Npu(tmp_path / "npu")
    clipped = [npu("aclnnInplaceMul", lambda g: g * 0.5, gradient) for gradient in gradients]
    for gradient, weight in zip(clipped, weights):
        npu("aclnnAdd", lambda g, w: g + w, gradient, weight)

    def on_cpu(*tensors):
        torch._foreach_mul_(list(tensors[:3]), 0.5)
        for gradient, weight in zip(tensors[:3], tensors[3:]):
            gradient.add(weight)

    reference = recorded(tmp_path / "cpu", on_cpu, *gradients, *weights)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert comparison.origins == ()
    assert ("aclnnInplaceMul", "aten::_foreach_mul_") in pairs_of(comparison)


def test_a_mask_that_an_api_fills_in_is_no_overflow(tmp_path):
    npu = Npu(tmp_path / "npu")
    mask = npu("aclnnInplaceFillScalar", lambda x: x * 0 - np.inf, np.ones((4, 4), "f4"))
    npu("aclnnSoftmax", lambda s, m: np.exp(s + np.triu(m, 1) * 0), randn(4, 4), np.where(mask < 0, 0, mask))
    report = ascend_dump.overflow(tmp_path / "npu")
    assert (report.answer, report.masks) == ("none", 1)
    assert ascend_dump.triage(tmp_path / "npu").suspects == ()


def test_the_memory_that_a_call_overwrites_is_not_read(tmp_path):
    npu = Npu(tmp_path / "npu")
    x = randn(3, 4)
    npu("aclnnInplaceZero", lambda garbage: garbage * 0, np.where(x > 0, 7, x).astype("f4"))
    npu("aclnnAdd", lambda a, b: a + b, x, np.zeros_like(x))
    reference = recorded(tmp_path / "cpu", lambda x: x + torch.empty(3, 4).zero_(), x)
    comparison = ascend_dump.compare(tmp_path / "npu", reference)
    assert comparison.origins == ()
    assert not any(pair.differs for pair in comparison.pairs)


def test_operators_of_torch_npu_alone_are_reported_as_such(tmp_path):
    npu = Npu(tmp_path / "npu")
    x, w = randn(4, 8), randn(8, 6)
    npu("aclnnMm", lambda x, w: x @ w, x, w)
    npu("aclnnMoeInitRouting", lambda x: x[::-1] + 1, x)
    reference = recorded(tmp_path / "cpu", lambda x, w: x @ w, x, w)
    [reason] = {pair.reason for pair in ascend_dump.compare(tmp_path / "npu", reference).unmatched}
    assert "op-plugin calls it for npu_moe_init_routing, which is no operator of ATen" in reason


def test_names_of_apis():
    assert aten_names("aclnnInplaceAdd") == ("add_",)
    assert operation("aclnnInplaceAdd") == operation("aclnnAdds") == operation("aten::add_.Tensor")
    assert operation("aclnnMm") == operation("aten::mm")
    assert operation("aclnnSoftmax") == operation("aten::_softmax")
    assert operation("aclnnRmsNormV9") == operation("aclnnRmsNorm") == operation("aten::_fused_rms_norm")
    assert aten_names("aclnnApplyAdamWV2") == ("_fused_adamw_",)
    # A dump names the API that another one calls in its place, and a generated API by its operator.
    assert aten_names("aclnnLayerNormWithImplMode") == ("native_layer_norm",)
    assert set(aten_names("aclnnAdd")) == {"add", "add_"}
    assert operation("ForeachAddScalar") == operation("aten::_foreach_add_.Scalar")
    assert (aten_names("aclnnNoSuchApi"), operation("aclnnNoSuchApi")) == ((), "aclnnNoSuchApi")
