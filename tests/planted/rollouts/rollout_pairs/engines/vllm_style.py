"""A server with a paged cache: flat batches, slot mappings, block tables, chunked prefill, drafts that are verified.

The model has fused projections, and norms that add the residual. It loads Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 4


@dataclass
class AttentionMetadata:
    """The place of each token of a flat batch in the paged cache."""

    slot_mapping: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor

    @property
    def is_decode(self) -> bool:
        return self.query_start_loc[-1].item() == len(self.seq_lens)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Any:
        dtype = x.dtype
        x = x.float()
        if residual is not None:
            x = x + residual.float()
            residual = x.to(dtype)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        x = x.to(dtype) * self.weight
        return x if residual is None else (x, residual)


class QKVParallelLinear(nn.Module):
    def __init__(self, hidden: int, head: int, heads: int, kv_heads: int, bias: bool) -> None:
        super().__init__()
        self.sizes = [heads * head, kv_heads * head, kv_heads * head]
        self.weight = nn.Parameter(torch.empty(sum(self.sizes), hidden))
        self.bias = nn.Parameter(torch.zeros(sum(self.sizes))) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class MergedColumnParallelLinear(nn.Module):
    def __init__(self, hidden: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(sum(sizes), hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class SiluAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return F.silu(x[..., :half]) * x[..., half:]


class RotaryEmbedding(nn.Module):
    def __init__(self, head: int, theta: float, positions: int) -> None:
        super().__init__()
        inv_freq = 1.0 / (theta ** (torch.arange(0, head, 2, dtype=torch.float) / head))
        angles = torch.outer(torch.arange(positions, dtype=torch.float), inv_freq)
        self.register_buffer("cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1), persistent=False)

    def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin_cache.index_select(0, positions).chunk(2, -1)
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class PagedAttention(nn.Module):
    def __init__(self, heads: int, kv_heads: int, head: int, window: Optional[int], blocks: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, head
        self.scale = head**-0.5
        self.window = window
        self.key_cache = torch.zeros(blocks, BLOCK, kv_heads, head)
        self.value_cache = torch.zeros(blocks, BLOCK, kv_heads, head)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, metadata: AttentionMetadata) -> Tensor:
        self.key_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = k
        self.value_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = v
        out = self.decode(q, metadata) if metadata.is_decode else self.extend(q, metadata)
        return out.reshape(len(q), -1)

    def decode(self, q: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Attend from one query of each request."""
        keys = self.key_cache[metadata.block_tables].flatten(1, 2)
        values = self.value_cache[metadata.block_tables].flatten(1, 2)
        q = q.view(len(q), self.kv_heads, -1, self.head)
        scores = torch.einsum("rkgd,rskd->rkgs", q, keys) * self.scale
        columns = torch.arange(keys.shape[1])
        visible = columns < metadata.seq_lens[:, None]
        if self.window is not None:
            visible = visible & (columns >= metadata.seq_lens[:, None] - self.window)
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
        weights = scores.float().softmax(-1).to(q.dtype)
        return torch.einsum("rkgs,rskd->rkgd", weights, values)

    def extend(self, q: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Attend from several queries of each request, one request after another."""
        outputs = []
        starts = metadata.query_start_loc.tolist()
        for number, length in enumerate(metadata.seq_lens.tolist()):
            table = metadata.block_tables[number, : -(-length // BLOCK)]
            keys = self.key_cache[table].flatten(0, 1)[:length].repeat_interleave(self.heads // self.kv_heads, 1)
            values = self.value_cache[table].flatten(0, 1)[:length].repeat_interleave(self.heads // self.kv_heads, 1)
            query = q[starts[number] : starts[number + 1]]
            scores = torch.einsum("qhd,shd->hqs", query, keys) * self.scale
            rows = torch.arange(length - len(query), length)[:, None]
            columns = torch.arange(length)
            visible = columns <= rows
            if self.window is not None:
                visible = visible & (columns > rows - self.window)
            weights = scores.masked_fill(~visible, float("-inf")).float().softmax(-1).to(q.dtype)
            outputs.append(torch.einsum("hqs,shd->qhd", weights, values))
        return torch.cat(outputs)


class Attention(nn.Module):
    def __init__(self, config: Any, blocks: int, bias: bool, qk_norm: bool, window: Optional[int]) -> None:
        super().__init__()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.head = head
        self.qkv_proj = QKVParallelLinear(config.hidden_size, head, heads, kv_heads, bias)
        self.o_proj = RowParallelLinear(heads * head, config.hidden_size)
        self.rotary_emb = RotaryEmbedding(head, config.rope_parameters["rope_theta"], config.max_position_embeddings)
        self.attn = PagedAttention(heads, kv_heads, head, window, blocks)
        self.has_qk_norm = qk_norm
        if qk_norm:
            self.q_norm = RMSNorm(head, config.rms_norm_eps)
            self.k_norm = RMSNorm(head, config.rms_norm_eps)

    def forward(self, positions: Tensor, x: Tensor, metadata: AttentionMetadata) -> Tensor:
        qkv = self.qkv_proj(x)
        q, k, v = qkv.split(self.qkv_proj.sizes, -1)
        q = q.view(len(q), -1, self.head)
        k = k.view(len(k), -1, self.head)
        v = v.view(len(v), -1, self.head)
        if self.has_qk_norm:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v, metadata))


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(hidden, [inner, inner])
        self.act_fn = SiluAndMul()
        self.down_proj = RowParallelLinear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class SparseMoe(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = RowParallelLinear(config.hidden_size, config.num_experts)
        self.experts = nn.ModuleList(
            MLP(config.hidden_size, config.moe_intermediate_size) for _ in range(config.num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.gate(x).float().softmax(-1)
        weights, chosen = probabilities.topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, ranks = torch.where(chosen == number)
            if len(tokens):
                out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, ranks, None])
        return out


class DecoderLayer(nn.Module):
    def __init__(self, config: Any, blocks: int, bias: bool, qk_norm: bool, window: Optional[int]) -> None:
        super().__init__()
        self.self_attn = Attention(config, blocks, bias, qk_norm, window)
        is_sparse = getattr(config, "num_experts", None)
        self.mlp = SparseMoe(config) if is_sparse else MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, positions: Tensor, x: Tensor, residual: Optional[Tensor], metadata: AttentionMetadata
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual = x
            x = self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(positions, x, metadata)
        x, residual = self.post_attention_layernorm(x, residual)
        x = self.mlp(x)
        return x, residual


class Model(nn.Module):
    def __init__(self, config: Any, blocks: int, bias: bool, qk_norm: bool, window: Optional[int]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, blocks, bias, qk_norm, window) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        x, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            x, residual = layer(positions, x, residual, metadata)
        x, _ = self.norm(x, residual)
        return x


class ModelRunner(nn.Module):
    """The model with its head; one call is one step of the server."""

    def __init__(self, reference: Any, blocks: int = 40) -> None:
        super().__init__()
        config = reference.config
        state = reference.state_dict()
        bias = "model.layers.0.self_attn.q_proj.bias" in state
        qk_norm = "model.layers.0.self_attn.q_norm.weight" in state
        window = config.sliding_window if config.model_type == "mistral" else None
        self.model = Model(config, blocks, bias, qk_norm, window)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.load_weights(state)
        dtype = reference.dtype
        self.to(dtype)
        for layer in self.model.layers:
            attention = layer.self_attn.attn
            attention.key_cache, attention.value_cache = attention.key_cache.to(dtype), attention.value_cache.to(dtype)
        self.eval()

    def load_weights(self, state: dict[str, Tensor]) -> None:
        own = {}
        for name, weight in state.items():
            if name.endswith("experts.gate_up_proj"):
                for number, part in enumerate(weight):
                    own[name.replace("gate_up_proj", f"{number}.gate_up_proj.weight")] = part
            elif name.endswith("experts.down_proj"):
                for number, part in enumerate(weight):
                    own[name.replace("down_proj", f"{number}.down_proj.weight")] = part
            elif ".q_proj." in name:
                parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                own[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
            elif ".gate_proj." in name:
                parts = [weight, state[name.replace("gate_proj", "up_proj")]]
                own[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
            elif not any(part in name for part in (".k_proj.", ".v_proj.", ".up_proj.")):
                own[name] = weight
        self.load_state_dict(own)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        logits_indices: Tensor,
    ) -> Tensor:
        metadata = AttentionMetadata(slot_mapping, block_tables, query_start_loc, seq_lens)
        hidden = self.model(input_ids, positions, metadata)
        logits = self.lm_head(hidden[logits_indices])
        return logits.float()


@dataclass
class Request:
    """A request of the server."""

    prompt: list[int]
    arrival: int = 0
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    computed: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


class Engine:
    """The scheduler. budget: tokens of one step; drafts: the tokens that a draft model proposes to each request."""

    def __init__(
        self, runner: ModelRunner, budget: int = 64, drafts: Sequence[Sequence[int]] = (), lookahead: int = 2
    ) -> None:
        self.runner = runner
        self.budget = budget
        self.drafts = drafts
        self.lookahead = lookahead
        # Blocks are handed out in no order, as in a server that has run for a while.
        count = len(runner.model.layers[0].self_attn.attn.key_cache)
        self.free = [number * 7 % count for number in range(1, count)] if count % 7 else list(range(1, count))

    def serve(
        self,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        arrivals: Sequence[int] = (),
        forced: Sequence[Sequence[int]] = (),
        sampled: bool = False,
    ) -> list[Request]:
        """Answer prompts, each with `steps` tokens. forced: tokens that are taken in place of the model's."""
        generator = torch.Generator().manual_seed(9)
        requests = [Request(list(p), a) for p, a in zip(prompts, arrivals or [0] * len(prompts))]
        time = 0
        while any(len(request.tokens) < steps for request in requests):
            running = [r for r in requests if r.arrival <= time and len(r.tokens) < steps]
            time += 1
            scheduled = self.schedule(running)
            if not scheduled:
                continue
            batch = self.prepare_inputs(scheduled)
            logits = self.runner(**batch)
            start = 0
            for request, count in scheduled:
                number = requests.index(request)
                rows = logits[start : start + 1 + len(request.draft)]
                start += len(rows)
                self.accept(request, count, rows, forced[number] if forced else None, sampled, generator)
                del request.tokens[steps:], request.scores[steps:]
            for number, request in enumerate(requests):
                self.propose(number, request, steps)
        return requests

    def schedule(self, running: Sequence[Request]) -> list[tuple[Request, int]]:
        scheduled, budget = [], self.budget
        # Requests that decode go first, as in vLLM.
        for request in sorted(running, key=lambda r: not r.tokens):
            count = min(len(request.ids) + len(request.draft) - request.computed, budget)
            if count:
                scheduled.append((request, count))
                budget -= count
        return scheduled

    def prepare_inputs(self, scheduled: Sequence[tuple[Request, int]]) -> dict[str, Tensor]:
        ids, positions, slots, starts, lengths, indices = [], [], [], [0], [], []
        for request, count in scheduled:
            end = request.computed + count
            while len(request.blocks) * BLOCK < end:
                request.blocks.append(self.free.pop(0))
            places = range(request.computed, end)
            ids += (request.ids + request.draft)[request.computed : end]
            positions += places
            slots += [request.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in places]
            starts.append(starts[-1] + count)
            lengths.append(end)
            indices += range(starts[-1] - 1 - len(request.draft), starts[-1])
        width = max(len(request.blocks) for request, _ in scheduled)
        tables = [request.blocks + [0] * (width - len(request.blocks)) for request, _ in scheduled]
        return {
            "input_ids": torch.tensor(ids),
            "positions": torch.tensor(positions),
            "slot_mapping": torch.tensor(slots),
            "block_tables": torch.tensor(tables),
            "query_start_loc": torch.tensor(starts),
            "seq_lens": torch.tensor(lengths),
            "logits_indices": torch.tensor(indices),
        }

    def accept(
        self,
        request: Request,
        count: int,
        logits: Tensor,
        forced: Optional[Sequence[int]],
        sampled: bool,
        generator: torch.Generator,
    ) -> None:
        request.computed += count
        if request.computed < len(request.ids):
            return
        draft, request.draft = request.draft, []
        request.computed -= len(draft)
        for number, line in enumerate(logits):
            odds = line.log_softmax(-1)
            token = int(torch.multinomial(odds.exp(), 1, generator=generator)) if sampled else int(odds.argmax())
            if forced:
                token = forced[len(request.tokens)]
            request.tokens.append(token)
            request.scores.append(odds[token].item())
            if number == len(draft) or token != draft[number]:
                break
            request.computed += 1

    def propose(self, number: int, request: Request, steps: int) -> None:
        if self.drafts and request.tokens and request.computed == len(request.ids) - 1:
            done = len(request.tokens)
            request.draft = list(self.drafts[number][done : min(done + self.lookahead, steps - 1)])
