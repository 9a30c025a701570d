"""A server whose requests share prefixes by a radix tree, over a pool with one slot a token.

It loads Llama, Qwen2, Qwen2-MoE, Mixtral and OLMoE: projections are fused, experts are stacked, attention is PyTorch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class ForwardBatch:
    """One step of the server. extend_lens is None for a step that decodes."""

    positions: Tensor
    out_cache_loc: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    extend_lens: Optional[Tensor]


class Pool:
    """Keys and values of all layers, and the slots of each request's tokens."""

    def __init__(self, layers: int, size: int, heads: int, head: int, dtype: torch.dtype) -> None:
        self.k_buffer = [torch.zeros(size, heads, head, dtype=dtype) for _ in range(layers)]
        self.v_buffer = [torch.zeros(size, heads, head, dtype=dtype) for _ in range(layers)]
        self.req_to_token = torch.zeros(8, 64, dtype=torch.long)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


class RadixAttention(nn.Module):
    def __init__(self, layer_id: int, scaling: float) -> None:
        super().__init__()
        self.layer_id, self.scaling = layer_id, scaling

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, pool: Pool) -> Tensor:
        keys, values = pool.k_buffer[self.layer_id], pool.v_buffer[self.layer_id]
        keys.index_copy_(0, batch.out_cache_loc, k)
        values.index_copy_(0, batch.out_cache_loc, v)
        if batch.extend_lens is None:
            return self.forward_decode(q, keys, values, batch, pool)
        return self.forward_extend(q, keys, values, batch, pool)

    def forward_extend(self, q: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch, pool: Pool) -> Tensor:
        outputs, start = [], 0
        for request, length, count in zip(batch.req_pool_indices, batch.seq_lens.tolist(), batch.extend_lens.tolist()):
            slots = pool.req_to_token[request, :length]
            query = q.new_zeros(length, *q.shape[1:])
            query[length - count :] = q[start : start + count]
            out = F.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                keys[slots].transpose(0, 1)[None],
                values[slots].transpose(0, 1)[None],
                is_causal=True,
                scale=self.scaling,
                enable_gqa=True,
            )
            outputs.append(out[0].transpose(0, 1)[length - count :])
            start += count
        return torch.cat(outputs).flatten(1)

    def forward_decode(self, q: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch, pool: Pool) -> Tensor:
        width = int(batch.seq_lens.max())
        slots = pool.req_to_token[batch.req_pool_indices, :width]
        visible = torch.arange(width) < batch.seq_lens[:, None]
        out = F.scaled_dot_product_attention(
            q[:, :, None],
            keys[slots].transpose(1, 2),
            values[slots].transpose(1, 2),
            attn_mask=visible[:, None, None],
            scale=self.scaling,
            enable_gqa=True,
        )
        return out[:, :, 0].flatten(1)


class Attention(nn.Module):
    def __init__(self, config: Any, layer_id: int, bias: bool, qk_norm: bool) -> None:
        super().__init__()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head = config.hidden_size // heads
        self.q_size, self.kv_size = heads * self.head, kv_heads * self.head
        self.qkv_proj = nn.Linear(config.hidden_size, self.q_size + 2 * self.kv_size, bias=bias)
        self.o_proj = nn.Linear(self.q_size, config.hidden_size, bias=False)
        self.attn = RadixAttention(layer_id, self.head**-0.5)
        self.has_qk_norm = qk_norm
        if qk_norm:
            self.q_norm = RMSNorm(self.q_size, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.kv_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: ForwardBatch, pool: Pool) -> Tensor:
        q, k, v = self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        if self.has_qk_norm:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q, k, v = (part.unflatten(-1, (-1, self.head)) for part in (q, k, v))
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        return self.o_proj(self.attn(q, k, v, batch, pool))


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class FusedMoE(nn.Module):
    def __init__(self, config: Any, experts: int, inner: int, renormalize: bool, shared: int) -> None:
        super().__init__()
        self.top_k, self.renormalize = config.num_experts_per_tok, renormalize
        self.gate = nn.Linear(config.hidden_size, experts, bias=False)
        self.w13_weight = nn.Parameter(torch.empty(experts, 2 * inner, config.hidden_size))
        self.w2_weight = nn.Parameter(torch.empty(experts, config.hidden_size, inner))
        self.shared_expert = MLP(config.hidden_size, shared) if shared else None
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        router_logits = self.gate(x)
        topk_weights, topk_ids = self.select_experts(router_logits)
        gate_up = torch.einsum("th,tkoh->tko", x, self.w13_weight[topk_ids])
        gate, up = gate_up.chunk(2, dim=-1)
        expert_out = torch.einsum("tki,tkhi->tkh", F.silu(gate) * up, self.w2_weight[topk_ids])
        out = (expert_out * topk_weights.to(x.dtype)[..., None]).sum(1)
        if self.shared_expert is not None:
            out = out + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return out

    def select_experts(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.softmax(router_logits.float(), dim=-1)
        topk_weights, topk_ids = torch.topk(scores, self.top_k, dim=-1)
        if self.renormalize:
            topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)
        return topk_weights, topk_ids


class DecoderLayer(nn.Module):
    def __init__(self, config: Any, layer_id: int, bias: bool, qk_norm: bool, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer_id, bias, qk_norm)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: ForwardBatch, pool: Pool) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, batch, pool)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        config, state = reference.config, reference.state_dict()
        bias = "model.layers.0.self_attn.q_proj.bias" in state
        qk_norm = "model.layers.0.self_attn.q_norm.weight" in state
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, number, bias, qk_norm, make_mlp(config, state))
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        head = config.hidden_size // config.num_attention_heads
        theta = config.rope_parameters["rope_theta"]
        self.register_buffer("inv_freq", 1.0 / theta ** (torch.arange(0, head, 2).float() / head), persistent=False)
        self.load_weights(state)
        self.to(reference.dtype)
        self.inv_freq = self.inv_freq.float()
        self.eval()

    def load_weights(self, state: dict[str, Tensor]) -> None:
        own = {}
        for name, weight in state.items():
            name = name.removeprefix("model.")
            if "_proj" in name and "experts." not in name and "o_proj" not in name and "down_proj" not in name:
                continue
            name = name.replace("experts.gate_up_proj", "w13_weight").replace("experts.down_proj", "w2_weight")
            own[name] = weight
        for name in self.state_dict():
            if name in own:
                continue
            for fused, parts in (("qkv_proj", "q_proj k_proj v_proj"), ("gate_up_proj", "gate_proj up_proj")):
                if fused in name:
                    own[name] = torch.cat([state[f"model.{name}".replace(fused, part)] for part in parts.split()])
        self.load_state_dict(own)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        out_cache_loc: Tensor,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        extend_lens: Optional[Tensor],
        pool: Pool,
    ) -> Tensor:
        batch = ForwardBatch(positions, out_cache_loc, req_pool_indices, seq_lens, extend_lens)
        x = self.embed_tokens(input_ids)
        angles = batch.positions[:, None, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, batch, pool)
        if extend_lens is not None:
            x = x[extend_lens.cumsum(0) - 1]
        return self.lm_head(self.norm(x)).float()


def make_mlp(config: Any, state: dict[str, Tensor]) -> nn.Module:
    """Return the feed-forward network that the weights belong to."""
    stacked = state.get("model.layers.0.mlp.experts.down_proj")
    if stacked is None:
        return MLP(config.hidden_size, config.intermediate_size)
    shared = getattr(config, "shared_expert_intermediate_size", 0)
    renormalize = bool(getattr(config, "norm_topk_prob", config.model_type == "mixtral"))
    return FusedMoE(config, stacked.shape[0], stacked.shape[2], renormalize, shared)


@dataclass
class Request:
    """A request with the slots of its tokens in the pool."""

    prompt: list[int]
    row: int
    slots: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


class RadixCache:
    """Prefixes of finished requests, with their slots."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[int], list[int]]] = []

    def match_prefix(self, ids: Sequence[int]) -> list[int]:
        """Return the slots of the longest known prefix; the last token is always computed."""
        best: list[int] = []
        for known, slots in self.entries:
            count = 0
            while count < min(len(known), len(ids) - 1) and known[count] == ids[count]:
                count += 1
            if count > len(best):
                best = slots[:count]
        return best

    def insert(self, ids: Sequence[int], slots: Sequence[int]) -> None:
        self.entries.append((list(ids), list(slots)))

    def flush(self) -> None:
        """Forget all prefixes, as after an update of the weights."""
        self.entries.clear()


class Engine:
    """Extends new requests by what the tree lacks, then decodes them together."""

    def __init__(self, model: Model, config: Any, size: int = 160) -> None:
        self.model, self.tree = model, RadixCache()
        head = config.hidden_size // config.num_attention_heads
        dtype = model.embed_tokens.weight.dtype
        self.pool = Pool(config.num_hidden_layers, size, config.num_key_value_heads, head, dtype)
        self.free = [number * 11 % size for number in range(1, size)]

    def serve(
        self,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        forced: Sequence[Sequence[int]] = (),
        at_once: bool = True,
    ) -> list[Request]:
        """Answer prompts. at_once: in one batch, otherwise one after another."""
        requests = [Request(list(prompt), row) for row, prompt in enumerate(prompts)]
        for group in [requests] if at_once else [[request] for request in requests]:
            for step in range(steps):
                logits = self.decode(group) if step else self.extend(group)
                for request, odds in zip(group, logits.log_softmax(-1)):
                    token = forced[request.row][step] if forced else int(odds.argmax())
                    request.tokens.append(token)
                    request.scores.append(odds[token].item())
            for request in group:
                self.tree.insert(request.ids[:-1], request.slots)
        return requests

    def extend(self, group: Sequence[Request]) -> Tensor:
        ids, positions, new_slots, counts = [], [], [], []
        for request in group:
            request.slots = self.tree.match_prefix(request.prompt)
            known = len(request.slots)
            fresh = [self.free.pop(0) for _ in request.prompt[known:]]
            request.slots = request.slots + fresh
            ids += request.prompt[known:]
            positions += range(known, len(request.prompt))
            new_slots += fresh
            counts.append(len(fresh))
        return self.call(group, ids, positions, new_slots, counts)

    def decode(self, group: Sequence[Request]) -> Tensor:
        new_slots = []
        for request in group:
            request.slots.append(self.free.pop(0))
            new_slots.append(request.slots[-1])
        positions = [len(request.ids) - 1 for request in group]
        return self.call(group, [request.ids[-1] for request in group], positions, new_slots, None)

    def call(
        self,
        group: Sequence[Request],
        ids: list[int],
        positions: list[int],
        new_slots: list[int],
        counts: Optional[list[int]],
    ) -> Tensor:
        for request in group:
            self.pool.req_to_token[request.row, : len(request.slots)] = torch.tensor(request.slots)
        return self.model(
            torch.tensor(ids),
            torch.tensor(positions),
            torch.tensor(new_slots),
            torch.tensor([request.row for request in group]),
            torch.tensor([len(request.slots) for request in group]),
            None if counts is None else torch.tensor(counts),
            self.pool,
        )
