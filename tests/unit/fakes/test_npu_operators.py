"""Operators of torch_npu on the fake: against the same computation of PyTorch, and as models use them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._C._acc", reason="devices written in Python came with PyTorch 2.13")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from ascend_dump import NotSupported, fakes  # noqa: E402
from ascend_dump.fakes.device.npu import Npu  # noqa: E402

HEADS, SIZE = 4, 8
SCALE = 1 / math.sqrt(SIZE)


@pytest.fixture(autouse=True)
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    with fakes.install("torch_npu", environ={}) as device:
        yield device


@pytest.fixture
def ops() -> Any:
    import torch_npu

    return torch_npu


def agree(on_npu: Callable[..., Any], on_host: Callable[..., Any], *inputs: Any) -> bool:
    """Compare results and gradients of a function of tensors of the device and of one of host tensors."""
    host = [value.clone().requires_grad_() for value in inputs]
    device = [value.npu().requires_grad_() for value in inputs]
    expected, result = on_host(*host), on_npu(*device)
    assert result.device.type == "npu"
    weights = torch.randn(expected.shape)
    (expected * weights).sum().backward()
    (result * weights.npu()).sum().backward()
    pairs = [(expected, result), *((a.grad, b.grad) for a, b in zip(host, device))]
    return all(torch.allclose(a, b.cpu(), atol=1e-5) for a, b in pairs)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def causal_mask(size: int = 2048) -> Any:
    return torch.ones(size, size, dtype=torch.bool).triu(1).npu()


def test_norms_and_activations(npu: Npu, ops: Any) -> None:
    x, gamma = torch.randn(2, 5, 16), torch.rand(16)
    assert agree(lambda a, g: ops.npu_rms_norm(a, g)[0], lambda a, g: F.rms_norm(a, (16,), g, 1e-6), x, gamma)
    normal, scale, total = ops.npu_add_rms_norm(x.npu(), x.npu(), gamma.npu())
    assert torch.allclose(normal.cpu(), F.rms_norm(x * 2, (16,), gamma, 1e-6), atol=1e-6)
    assert (scale.shape, total.tolist()) == ((2, 5, 1), (x * 2).tolist())
    assert agree(ops.npu_swiglu, lambda a: F.silu(a[..., :8]) * a[..., 8:], x)
    assert agree(lambda a: ops.npu_gelu(a, approximate="tanh"), lambda a: F.gelu(a, approximate="tanh"), x)
    half = ops.npu_rms_norm(x.half().npu(), gamma.half().npu())[0]
    assert half.dtype == torch.float16
    names = {one.op_type for one in npu.executed}
    assert {"aclnnRmsNorm", "aclnnRmsNormGrad", "aclnnAddRmsNorm", "aclnnSwiGlu", "aclnnSwiGluGrad"} <= names


def test_rotary_embeddings(ops: Any) -> None:
    x, cos, sin = torch.randn(2, 5, HEADS, SIZE), torch.randn(1, 5, 1, SIZE), torch.randn(1, 5, 1, SIZE)
    assert agree(ops.npu_rotary_mul, rotated, x, cos, sin)
    query, key = ops.npu_apply_rotary_pos_emb(x.npu(), x.npu(), cos.npu(), sin.npu())
    assert torch.equal(query, key)

    def neighbours(a: Any, c: Any, s: Any) -> Any:
        return a * c + torch.stack((-a[..., 1::2], a[..., ::2]), -1).flatten(-2) * s

    assert agree(lambda a, c, s: ops.npu_rotary_mul(a, c, s, "interleave"), neighbours, x, cos, sin)


def test_products_and_layouts(ops: Any) -> None:
    x = torch.randn(2, 5, 8)
    assert agree(ops.npu_linear, F.linear, x, torch.randn(3, 8), torch.randn(3))
    assert agree(lambda a, b: ops.npu_bmmV2(a, b, []), torch.bmm, x, torch.randn(2, 8, 4))
    first = {"perm": [0, 2, 1, 3], "shape": [2, 2, 20], "transpose_first": True}
    pieces = torch.randn(2, 5, 2, 4)
    assert agree(
        lambda a: ops.npu_confusion_transpose(a, **first), lambda a: a.permute(0, 2, 1, 3).reshape(2, 2, 20), pieces
    )
    last = {"perm": [0, 2, 1, 3], "shape": [2, 5, 2, 4], "transpose_first": False}
    assert agree(
        lambda a: ops.npu_confusion_transpose(a, **last), lambda a: a.reshape(2, 5, 2, 4).permute(0, 2, 1, 3), x
    )
    assert torch.equal(ops.npu_format_cast(x.npu(), 29).cpu(), x)
    assert ops.get_npu_format(x.npu()) == 2
    hot = ops.npu_one_hot(torch.tensor([0, 3], dtype=torch.int32).npu(), depth=5)
    assert hot.cpu().tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]


def to_layout(x: Any, layout: str) -> Any:
    """Convert batch, heads, tokens, values."""
    by_token = x.transpose(1, 2)
    converted = {
        "BNSD": lambda: x,
        "BSND": lambda: by_token,
        "BSH": lambda: by_token.flatten(2),
        "SBH": lambda: by_token.flatten(2).transpose(0, 1),
        "TND": lambda: by_token.flatten(0, 1),
    }
    return converted[layout]()


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH", "TND"])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("mode", ["full", "mask", "causal"])
def test_fused_attention(ops: Any, layout: str, key_heads: int, mode: str) -> None:
    ends = {"actual_seq_qlen": [6, 12], "actual_seq_kvlen": [6, 12]} if layout == "TND" else {}
    settings: dict[str, Any] = {"full": {}, "mask": {"atten_mask": causal_mask(6)}}.get(
        mode, {"atten_mask": causal_mask(), "sparse_mode": 3}
    )

    def on_npu(*tensors: Any) -> Any:
        converted = (to_layout(tensor, layout) for tensor in tensors)
        return ops.npu_fusion_attention(*converted, HEADS, layout, scale=SCALE, **ends, **settings)[0]

    def on_host(query: Any, key: Any, value: Any) -> Any:
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=mode != "full", enable_gqa=True)
        return to_layout(attended, layout)

    shapes = ((2, HEADS, 6, SIZE), (2, key_heads, 6, SIZE), (2, key_heads, 6, SIZE))
    assert agree(on_npu, on_host, *map(torch.randn, shapes))


def test_attention_with_bias_band_and_dropout(npu: Npu, ops: Any) -> None:
    tensors = [torch.randn(2, HEADS, 6, SIZE) for _ in range(3)]
    bias = torch.randn(1, HEADS, 6, 6)
    assert agree(
        lambda q, k, v, b: ops.npu_fusion_attention(q, k, v, HEADS, "BNSD", pse=b, scale=SCALE)[0],
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b),
        *tensors,
        bias,
    )
    distance = torch.arange(6) - torch.arange(6).unsqueeze(1)
    band = {"sparse_mode": 4, "pre_tockens": 2, "next_tockens": 1, "atten_mask": causal_mask()}
    assert agree(
        lambda q, k, v: ops.npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=SCALE, **band)[0],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= -2) & (distance <= 1)),
        *tensors,
    )
    device = [tensor.npu().requires_grad_() for tensor in tensors]
    result, highest, total, *_, numels = ops.npu_fusion_attention(*device, HEADS, "BNSD", keep_prob=0.5)
    assert (highest.shape, total.shape, numels) == ((2, HEADS, 6, 8), (2, HEADS, 6, 8), 2 * HEADS * 36)
    result.sum().backward()
    # The result is linear in the values, so this holds only if both passes drop the same elements.
    assert (device[2] * device[2].grad).sum().item() == pytest.approx(result.sum().item(), abs=1e-3)
    names = [one.op_type for one in npu.executed]
    assert "aclnnFlashAttentionScore" in names
    assert "aclnnFlashAttentionScoreGrad" in names
    with pytest.raises(NotSupported, match="sparse_mode 6"):
        ops.npu_fusion_attention(*device, HEADS, "BNSD", sparse_mode=6)


def test_pytorchs_attention_is_the_fused_one(npu: Npu) -> None:
    shapes = ((2, HEADS, 6, SIZE), (2, 2, 6, SIZE), (2, 2, 6, SIZE))
    keep = torch.rand(6, 6) > 0.3
    keep[:, 0] = True
    for settings in ({"is_causal": True}, {"attn_mask": keep}, {}):

        def attend(*tensors: Any, settings: Any = settings) -> Any:
            moved = {k: v.to(tensors[0].device) if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
            return F.scaled_dot_product_attention(*tensors, enable_gqa=True, **moved)

        assert agree(attend, attend, *map(torch.randn, shapes))
    assert len([one for one in npu.executed if one.op_type == "aclnnFlashAttentionScore"]) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)), ((5,), (5,)), ((4, 5), (5,)), ((5,), (2, 5, 3))],
)
def test_a_product_is_one_call_in_each_direction(npu: Npu, first: Any, second: Any) -> None:
    assert agree(torch.matmul, torch.matmul, torch.randn(first), torch.randn(second))
    assert len([one for one in npu.executed if one.name == "MatMulCommon"]) == 3


class Expert(nn.Module):
    """The mixture of experts as MindSpeed builds it: tokens to their experts, grouped products, and back."""

    def __init__(self, experts: int = 3, size: int = SIZE) -> None:
        super().__init__()
        self.router = nn.Linear(size, experts)
        self.entry = nn.Parameter(torch.randn(experts, size, 2 * size))
        self.exit = nn.Parameter(torch.randn(experts, size, size))

    def forward(self, x: Any, ops: Any) -> Any:
        weights, chosen = torch.softmax(self.router(x), -1).topk(2, -1)
        permuted, rows = ops.npu_moe_token_permute(x, chosen.to(torch.int32))
        ends = torch.bincount(chosen.flatten(), minlength=3).cumsum(0)
        grouped = {"group_list": ends, "split_item": 3, "group_type": 0}
        [hidden] = ops.npu_grouped_matmul([permuted], [self.entry], **grouped)
        [result] = ops.npu_grouped_matmul([ops.npu_swiglu(hidden)], [self.exit], **grouped)
        return ops.npu_moe_token_unpermute(result, rows, probs=weights)

    def on_host(self, x: Any) -> Any:
        weights, chosen = torch.softmax(self.router(x), -1).topk(2, -1)
        total = torch.zeros_like(x)
        for choice in range(2):
            hidden = torch.einsum("th,tho->to", x, self.entry[chosen[:, choice]])
            hidden = F.silu(hidden[:, :SIZE]) * hidden[:, SIZE:]
            total += torch.einsum("th,tho->to", hidden, self.exit[chosen[:, choice]]) * weights[:, choice : choice + 1]
        return total


def test_experts(npu: Npu, ops: Any) -> None:
    model, x = Expert(), torch.randn(6, SIZE)
    with torch.no_grad():
        expected = model.on_host(x)
        assert torch.allclose(model.npu()(x.npu(), ops).cpu(), expected, atol=1e-4)
    sizes = torch.tensor([1, 0, 3]).npu()
    weight, rows = torch.randn(3, SIZE, 5), torch.randn(4, SIZE)
    [counted] = ops.npu_grouped_matmul(
        [rows.npu()], [weight.npu()], group_list=sizes, group_list_type=1, split_item=2, group_type=0
    )
    assert torch.allclose(counted.cpu(), torch.cat((rows[:1] @ weight[0], rows[1:] @ weight[2])), atol=1e-5)
    assert {"aclnnGroupedMatmulV4", "aclnnMoeTokenPermute"} & {one.op_type for one in npu.executed}


def test_tokens_come_back_from_their_experts(ops: Any) -> None:
    tokens, chosen, weights = torch.randn(6, 4), torch.randint(0, 3, (6, 2)), torch.rand(6, 2)

    def there_and_back(x: Any, probs: Any) -> Any:
        permuted, rows = ops.npu_moe_token_permute(x, chosen.npu())
        return ops.npu_moe_token_unpermute(permuted, rows, probs=probs)

    assert agree(there_and_back, lambda x, p: (x.unsqueeze(1) * p.unsqueeze(-1)).sum(1), tokens, weights)


def test_quantized_products(ops: Any) -> None:
    x, weight = torch.randn(5, 64), torch.randn(7, 64)
    values, scale = ops.npu_dynamic_quant(x.npu())
    assert (values.dtype, scale.shape) == (torch.int8, (5,))
    assert torch.allclose(values.cpu() * scale.cpu().unsqueeze(-1), x, atol=scale.max().item())
    columns, weight_scale = ops.npu_dynamic_quant(weight.npu())
    for given in (weight_scale, ops.npu_trans_quant_param(weight_scale)):
        product = ops.npu_quant_matmul(
            values, columns.t(), given, pertoken_scale=scale, output_dtype=torch.bfloat16, bias=None
        )
        assert product.dtype == torch.bfloat16
        assert (product.cpu() - x @ weight.t()).abs().max() < 0.5
    integers = ops.npu_quant_matmul(values, columns.t(), torch.full((1,), 1e-3).npu())
    exact = values.cpu().int() @ columns.cpu().int().t()
    assert torch.equal(integers.cpu(), (exact * 1e-3).round().clamp(-128, 127).to(torch.int8))
    with pytest.raises(NotSupported, match="without the argument group_sizes"):
        ops.npu_quant_matmul(values, columns.t(), weight_scale, group_sizes=[1, 1, 32])


class Layer(nn.Module):
    """An attention layer as vLLM runs it: keys and values in blocks of a cache, one token a step."""

    BLOCKS, BLOCK_SIZE, KEY_HEADS = 8, 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, HEADS * SIZE, bias=False)
        self.key = nn.Linear(32, self.KEY_HEADS * SIZE, bias=False)
        self.value = nn.Linear(32, self.KEY_HEADS * SIZE, bias=False)
        shape = (self.BLOCKS, self.BLOCK_SIZE, self.KEY_HEADS, SIZE)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: Any, slots: Any, table: Any, ends: list[int], lengths: list[int], ops: Any) -> Any:
        key, value = (each(x).unflatten(-1, (-1, SIZE)) for each in (self.key, self.value))
        ops.npu_scatter_pa_kv_cache(key, value, self.keys, self.values, slots, cache_mode="Norm")
        result, _ = ops.npu_fused_infer_attention_score(
            self.query(x).unflatten(-1, (-1, SIZE)),
            self.keys.flatten(2),
            self.values.flatten(2),
            atten_mask=causal_mask(),
            block_table=table,
            block_size=self.BLOCK_SIZE,
            input_layout="TND",
            num_heads=HEADS,
            num_key_value_heads=self.KEY_HEADS,
            scale=SCALE,
            sparse_mode=3,
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=lengths,
        )
        return result

    def whole(self, x: Any) -> Any:
        """Return the results for one sequence without a cache."""
        heads = [each(x).unflatten(-1, (-1, SIZE)).transpose(0, 1)[None] for each in (self.query, self.key, self.value)]
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


@torch.no_grad()
def test_decoding_with_a_cache_is_the_whole_sequence(npu: Npu, ops: Any) -> None:
    layer, tokens, others = Layer(), torch.randn(9, 32), torch.randn(3, 32)
    expected, expected_others = layer.whole(tokens), layer.whole(others)
    layer.npu()
    table = torch.tensor([[3, 5, 1], [6, 7, 7]], dtype=torch.int32).npu()

    def slots(row: int, *positions: int) -> list[int]:
        return [int(table[row][at // 4]) * 4 + at % 4 for at in positions]

    prompt = torch.cat((tokens[:6], others[:2])).npu()
    where = torch.tensor(slots(0, *range(6)) + slots(1, 0, 1), dtype=torch.int32).npu()
    first = layer(prompt, where, table, [6, 8], [6, 2], ops).cpu()
    assert torch.allclose(first, torch.cat((expected[:6], expected_others[:2])), atol=1e-5)
    for step in range(6, 9):
        where = torch.tensor(slots(0, step), dtype=torch.int32).npu()
        result = layer(tokens[step : step + 1].npu(), where, table[:1], [1], [step + 1], ops).cpu()
        assert torch.allclose(result[0], expected[step], atol=1e-5)
    assert {"aclnnScatterPaKvCache"} & {one.op_type for one in npu.executed}


def test_a_captured_attention_gets_other_lengths(ops: Any) -> None:
    query, key, value = (torch.randn(1, HEADS, 6, SIZE).npu() for _ in range(3))
    out, lse = torch.empty_like(query), torch.empty(1, device="npu")
    settings = {"num_heads": HEADS, "input_layout": "BNSD", "scale": SCALE}

    def expected(length: int) -> Any:
        return F.scaled_dot_product_attention(query.cpu(), key.cpu()[:, :, :length], value.cpu()[:, :, :length])

    stream, graph = torch.npu.current_stream(), torch.npu.NPUGraph()
    workspace = ops._npu_fused_infer_attention_score_get_max_workspace(query, key, value, **settings)
    with torch.npu.graph(graph, pool=torch.npu.graph_pool_handle()):
        torch.npu.graph_task_group_begin(stream)
        attend = ops.npu_fused_infer_attention_score.out
        attend(*(query, key, value), actual_seq_lengths_kv=[6], workspace=workspace, out=[out, lse], **settings)
        handle = torch.npu.graph_task_group_end(stream)
        doubled = out * 2
    for length in (6, 4):
        torch.npu.graph_task_update_begin(stream, handle)
        attend(*(query, key, value), actual_seq_lengths_kv=[length], workspace=workspace, out=[out, lse], **settings)
        torch.npu.graph_task_update_end(stream)
        graph.replay()
        assert torch.allclose(doubled.cpu(), expected(length) * 2, atol=1e-5)
    with pytest.raises(RuntimeError, match="no graph is being captured"):
        torch.npu.graph_task_group_begin(stream)


def test_a_graph_updates_its_attention_itself(ops: Any) -> None:
    query, key, value = (torch.randn(1, HEADS, 6, SIZE).npu() for _ in range(3))
    graph, other = torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        result, _ = ops.npu_fused_infer_attention_score(
            query, key, value, num_heads=HEADS, input_layout="BNSD", scale=SCALE, actual_seq_lengths_kv=[6]
        )
    with torch.npu.graph(other, pool=graph.pool()):
        pass
    assert other.pool() == graph.pool()
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [3]}])
    graph.replay()
    host = query.cpu(), key.cpu()[:, :, :3], value.cpu()[:, :, :3]
    assert torch.allclose(result.cpu(), F.scaled_dot_product_attention(*host), atol=1e-5)
    with pytest.raises(RuntimeError, match="auto_dispatch_capture"):
        other.update(cpu_update_input=[{}])


class Block(nn.Module):
    """A decoder block in the fused operators that MindSpeed replaces Megatron's by."""

    def __init__(self, size: int = HEADS * SIZE) -> None:
        super().__init__()
        self.before, self.after = (nn.Parameter(torch.rand(size)) for _ in range(2))
        self.joined, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.entry, self.exit = nn.Linear(size, 4 * size), nn.Linear(2 * size, size)

    def forward(self, x: Any, cos: Any, sin: Any, ops: Any) -> Any:
        """Compute a batch in tokens, batch, size."""
        heads = self.joined(ops.npu_rms_norm(x, self.before)[0]).unflatten(-1, (HEADS, 3 * SIZE))
        query, key, value = heads.chunk(3, -1)
        query, key = ops.npu_rotary_mul(query, cos, sin), ops.npu_rotary_mul(key, cos, sin)
        flat = (each.flatten(2).contiguous() for each in (query, key, value))
        attended = ops.npu_fusion_attention(
            *flat, HEADS, "SBH", atten_mask=causal_mask(), sparse_mode=2, scale=SCALE, next_tockens=0
        )[0]
        x = x + self.out(attended)
        return x + self.exit(ops.npu_swiglu(self.entry(ops.npu_rms_norm(x, self.after)[0])))

    def on_host(self, x: Any, cos: Any, sin: Any) -> Any:
        heads = self.joined(F.rms_norm(x, x.shape[-1:], self.before, 1e-6)).unflatten(-1, (HEADS, 3 * SIZE))
        query, key, value = heads.chunk(3, -1)
        parts = (each.permute(1, 2, 0, 3) for each in (rotated(query, cos, sin), rotated(key, cos, sin), value))
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).permute(2, 0, 1, 3).flatten(2))
        gate, value = self.entry(F.rms_norm(x, x.shape[-1:], self.after, 1e-6)).chunk(2, -1)
        return x + self.exit(F.silu(gate) * value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_of_fused_operators(ops: Any, dtype: Any) -> None:
    block, x = Block(), torch.randn(6, 2, HEADS * SIZE)
    angles = torch.outer(torch.arange(6.0), torch.rand(SIZE // 2)).repeat(1, 2).view(6, 1, 1, SIZE)
    expected = block.on_host(x, angles.cos(), angles.sin())
    expected.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in block.parameters()]
    block.zero_grad()
    block.npu().to(dtype)
    result = block(x.npu().to(dtype), angles.cos().npu().to(dtype), angles.sin().npu().to(dtype), ops)
    result.float().square().mean().backward()
    tolerance = {"atol": 1e-4} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.1}
    assert torch.allclose(result.detach().cpu().float(), expected, **tolerance)
    for parameter, gradient in zip(block.parameters(), gradients):
        assert torch.allclose(parameter.grad.cpu().float(), gradient, **tolerance)


def test_other_operators_name_what_is_missing(ops: Any) -> None:
    with pytest.raises(NotSupported, match=r"has no torch_npu\.npu_batch_nms"):
        ops.npu_batch_nms(torch.ones(1).npu())
    x = torch.ones(1, HEADS, 6, SIZE).npu()
    with pytest.raises(NotSupported, match="without the argument prefix"):
        ops.npu_fusion_attention(x, x, x, HEADS, "BNSD", prefix=[1])
    with pytest.raises(NotImplementedError, match="npu::npu_swiglu"):
        ops.npu_swiglu(torch.ones(2, 2))
    with pytest.raises(AttributeError):
        ops.npu_no_operator  # noqa: B018
