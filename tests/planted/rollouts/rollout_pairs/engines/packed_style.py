"""An engine in the manner of a training framework: packed prompts (TND, cu_seqlens), and a cache with rows (BNSD).

Queries, keys and values of a group of heads stand together in one projection, gate and up in another one; norms add
the residual. It loads Arcee, Seed-OSS, HunYuan and Ernie 4.5, each with its own class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH = 40


@dataclass
class Packed:
    """The prompts of a step, one behind another; rows are those of the cache."""

    cu_seqlens: Tensor
    position_ids: Tensor
    rows: Tensor

    @property
    def segments(self) -> Tensor:
        return torch.repeat_interleave(self.rows, self.cu_seqlens.diff())


@dataclass
class Decoding:
    """A step with one new token a row."""

    lengths: Tensor
    position_ids: Tensor
    rows: Tensor


class AddNorm(nn.Module):
    """Adds a new part to the residual and normalises the sum; returns both."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else x + residual
        wide = residual.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight, residual


class HeadNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class GroupedQKV(nn.Module):
    """Projects to the queries of a group, its key and its value, group by group."""

    def __init__(self, hidden: int, groups: int, queries: int, head: int, bias: bool) -> None:
        super().__init__()
        self.groups, self.queries, self.head = groups, queries, head
        self.weight = nn.Parameter(torch.empty(groups * (queries + 2) * head, hidden))
        self.bias = nn.Parameter(torch.zeros(groups * (queries + 2) * head)) if bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = F.linear(x, self.weight, self.bias).view(len(x), self.groups, self.queries + 2, self.head)
        q, k, v = mixed.split([self.queries, 1, 1], 2)
        return q.reshape(len(x), -1, self.head), k.squeeze(2), v.squeeze(2)


class Rotary(nn.Module):
    """Rotates heads of a packed batch by halves."""

    def __init__(self, parameters: dict[str, Any], head: int) -> None:
        super().__init__()
        inv_freq = parameters["rope_theta"] ** -(torch.arange(0, head, 2).float() / head)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        freqs = torch.outer(positions.float(), self.inv_freq)
        return freqs.cos()[:, None], freqs.sin()[:, None]

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.table(positions)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class PairRotary(Rotary):
    """Rotates neighbours."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.table(positions)
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


class CoreAttention(nn.Module):
    """Attends in a packed batch, or to the rows of the cache."""

    def __init__(self, heads: int, groups: int, head: int) -> None:
        super().__init__()
        self.repeats, self.scale = heads // groups, head**-0.5
        self.register_buffer("key_cache", torch.zeros(8, groups, LENGTH, head), persistent=False)
        self.register_buffer("value_cache", torch.zeros(8, groups, LENGTH, head), persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, step: Any) -> Tensor:
        if isinstance(step, Packed):
            self.key_cache[step.segments, :, step.position_ids] = k
            self.value_cache[step.segments, :, step.position_ids] = v
            return self.packed(q, k, v, step)
        self.key_cache[step.rows, :, step.lengths - 1] = k
        self.value_cache[step.rows, :, step.lengths - 1] = v
        return self.decode(q, step)

    def packed(self, q: Tensor, k: Tensor, v: Tensor, step: Packed) -> Tensor:
        """Attend within each segment, by one mask over all tokens (TND)."""
        k, v = (part.repeat_interleave(self.repeats, 1) for part in (k, v))
        scores = torch.einsum("tnd,snd->nts", q, k) * self.scale
        segments = step.segments
        allowed = torch.ones(len(q), len(q), dtype=torch.bool).tril()
        allowed = allowed & (segments[:, None] == segments)
        scores = scores + torch.zeros_like(scores[0]).masked_fill(~allowed, -1e9)
        return torch.einsum("nts,snd->tnd", scores.float().softmax(-1).to(q.dtype), v).flatten(1)

    def decode(self, q: Tensor, step: Decoding) -> Tensor:
        """Attend from one query a row (BNSD)."""
        width = int(step.lengths.max())
        keys = self.key_cache[step.rows, :, :width].repeat_interleave(self.repeats, 1)
        values = self.value_cache[step.rows, :, :width].repeat_interleave(self.repeats, 1)
        padding = torch.arange(width) >= step.lengths[:, None]
        scores = torch.matmul(q[:, :, None], keys.transpose(2, 3)) * self.scale
        scores = scores + torch.zeros_like(scores).masked_fill(padding[:, None, None], -1e9)
        return torch.matmul(scores.float().softmax(-1).to(q.dtype), values)[:, :, 0].flatten(1)


class SelfAttention(nn.Module):
    rotary_class: type[Rotary] = Rotary

    def __init__(self, config: Any, state: dict[str, Tensor]) -> None:
        super().__init__()
        heads, groups, head = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.linear_qkv = GroupedQKV(
            config.hidden_size, groups, heads // groups, head, any(name.endswith("q_proj.bias") for name in state)
        )
        self.rotary = self.rotary_class(config.rope_parameters, head)
        self.core_attention = CoreAttention(heads, groups, head)
        self.linear_proj = nn.Linear(heads * head, config.hidden_size, bias=False)

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotary(q, positions), self.rotary(k, positions)

    def forward(self, x: Tensor, step: Any) -> Tensor:
        q, k, v = self.linear_qkv(x)
        q, k = self.prepare(q, k, step.position_ids)
        return self.linear_proj(self.core_attention(q, k, v, step))


class PairAttention(SelfAttention):
    rotary_class = PairRotary


class NormedAttention(SelfAttention):
    """Normalises queries and keys when they are rotated."""

    def __init__(self, config: Any, state: dict[str, Tensor]) -> None:
        super().__init__(config, state)
        self.q_layernorm = HeadNorm(config.head_dim, config.rms_norm_eps)
        self.k_layernorm = HeadNorm(config.head_dim, config.rms_norm_eps)

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        return self.q_layernorm(q), self.k_layernorm(k)


class GatedMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.linear_fc1(x).chunk(2, -1)
        return self.linear_fc2(F.silu(gate) * up)


class SquaredMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.relu(self.linear_fc1(x)).square())


class Layer(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module, config: Any) -> None:
        super().__init__()
        self.input_norm = AddNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attention = attention
        self.mlp_norm = AddNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp

    def forward(self, x: Tensor, residual: Optional[Tensor], step: Any) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm(x, residual)
        x, residual = self.mlp_norm(self.self_attention(x, step), residual)
        return self.mlp(x), residual


class Decoder(nn.Module):
    """The decoder that the families of models share."""

    attention_class: type[SelfAttention] = SelfAttention
    mlp_class: Any = GatedMLP

    def __init__(self, reference: Any) -> None:
        super().__init__()
        config, state = reference.config, reference.state_dict()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(self.attention_class(config, state), self.mlp_class(config), config)
            for _ in range(config.num_hidden_layers)
        )
        self.final_norm = AddNorm(config.hidden_size, config.rms_norm_eps)
        self.output_layer = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.load_state_dict(convert(state, config))
        self.to(reference.dtype).eval()

    @torch.no_grad()
    def forward(self, input_ids: Tensor, step: Any) -> Tensor:
        x, residual = self.embedding(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        x, _ = self.final_norm(x, residual)
        if isinstance(step, Packed):
            x = x[step.cu_seqlens[1:] - 1]
        return self.output_layer(x).float()


class ArceeDecoder(Decoder):
    mlp_class = SquaredMLP


class ErnieDecoder(Decoder):
    attention_class = PairAttention


class HunYuanDecoder(Decoder):
    attention_class = NormedAttention


CLASSES = {"arcee": ArceeDecoder, "seed_oss": Decoder, "ernie4_5": ErnieDecoder, "hunyuan_v1_dense": HunYuanDecoder}

NAMES = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "output_layer",
    "model.layers": "layers",
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.query_layernorm": "self_attention.q_layernorm",
    "self_attn.key_layernorm": "self_attention.k_layernorm",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.up_proj": "mlp.linear_fc1",
    "mlp.down_proj": "mlp.linear_fc2",
}


def convert(state: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Return a state by the names of this engine, with fused projections."""
    result = {}
    for name, weight in state.items():
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            grouped = [part.unflatten(0, (config.num_key_value_heads, -1, config.head_dim)) for part in parts]
            mixed = torch.cat(grouped, 1).flatten(0, 2)
            result[rename(name.replace("self_attn.q_proj", "self_attention.linear_qkv"))] = mixed
        elif ".gate_proj." in name:
            up = state[name.replace("gate_proj", "up_proj")]
            result[rename(name.replace("gate_proj", "up_proj"))] = torch.cat([weight, up])
        elif not any(part in name for part in (".k_proj.", ".v_proj.")) and rename(name) not in result:
            result[rename(name)] = weight
    return result


def rename(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


class Engine:
    """Reads all prompts in one packed step, and decodes them together."""

    def __init__(self, model: Decoder) -> None:
        self.model = model

    def serve(
        self, prompts: Sequence[Sequence[int]], steps: int, forced: Optional[Sequence[Sequence[int]]] = None
    ) -> list[tuple[list[int], list[float]]]:
        results: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        rows = torch.arange(len(prompts)) + 1
        for number in range(steps):
            logits = self.prefill(prompts, lengths, rows) if number == 0 else self.decode(results, lengths, rows)
            lengths = lengths + (number > 0)
            odds = logits.log_softmax(-1)
            chosen = torch.tensor([line[number] for line in forced]) if forced else odds.argmax(-1)
            for (tokens, scores), token, line in zip(results, chosen.tolist(), odds):
                tokens.append(token)
                scores.append(line[token].item())
        return results

    def prefill(self, prompts: Sequence[Sequence[int]], lengths: Tensor, rows: Tensor) -> Tensor:
        ids = torch.tensor([token for prompt in prompts for token in prompt])
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0))
        positions = torch.cat([torch.arange(length) for length in lengths.tolist()])
        return self.model(ids, Packed(cu_seqlens, positions, rows))

    def decode(self, results: Sequence[Any], lengths: Tensor, rows: Tensor) -> Tensor:
        ids = torch.tensor([tokens[-1] for tokens, _ in results])
        return self.model(ids, Decoding(lengths + 1, lengths, rows))


def make(reference: Any) -> Decoder:
    """Return the decoder of a model of transformers."""
    return CLASSES[reference.config.model_type](reference)
