"""A server with a quantised cache in pages: int8 with a scale for each token and head, or bfloat16.

Prompts that begin alike share full pages. It loads dots1 and GLM-4 MoE; all experts compute all tokens, and a matrix
combines them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAGE = 4
PAGES = 40


class Norm(nn.Module):
    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight.clone()), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 numbers, and a scale for the last axis."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round().to(torch.int8), scale


class PagedCache(nn.Module):
    """Keys and values of a layer in pages of tokens."""

    def __init__(self, heads: int, head: int, kind: str) -> None:
        super().__init__()
        dtype = torch.int8 if kind == "int8" else torch.bfloat16
        self.kind = kind
        for name in ("k", "v"):
            self.register_buffer(f"{name}_pages", torch.zeros(PAGES, PAGE, heads, head, dtype=dtype))
            self.register_buffer(f"{name}_scales", torch.ones(PAGES, PAGE, heads, 1))

    def forward(self, k: Tensor, v: Tensor, tables: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens, and return all that the tables list."""
        pages = tables.gather(1, positions // PAGE)
        slots = positions % PAGE
        if self.kind == "bf16":
            self.k_pages[pages, slots] = k.bfloat16()
            self.v_pages[pages, slots] = v.bfloat16()
            return self.k_pages[tables].flatten(1, 2).to(k.dtype), self.v_pages[tables].flatten(1, 2).to(v.dtype)
        self.k_pages[pages, slots], self.k_scales[pages, slots] = quantise(k)
        self.v_pages[pages, slots], self.v_scales[pages, slots] = quantise(v)
        keys = self.k_pages[tables].to(k.dtype) * self.k_scales[tables]
        values = self.v_pages[tables].to(v.dtype) * self.v_scales[tables]
        return keys.flatten(1, 2), values.flatten(1, 2)


class Attention(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], prefix: str, kind: str) -> None:
        super().__init__()
        self.head, self.heads, self.kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.wq = nn.Parameter(state[f"{prefix}.q_proj.weight"].clone())
        self.wkv = nn.Parameter(torch.cat([state[f"{prefix}.k_proj.weight"], state[f"{prefix}.v_proj.weight"]]))
        self.wo = nn.Parameter(state[f"{prefix}.o_proj.weight"].clone())
        self.q_norm = Norm(state[f"{prefix}.q_norm.weight"], config.rms_norm_eps)
        self.k_norm = Norm(state[f"{prefix}.k_norm.weight"], config.rms_norm_eps)
        self.cache = PagedCache(self.kv_heads, self.head, kind)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, tables: Tensor, positions: Tensor) -> Tensor:
        q = F.linear(x, self.wq).unflatten(-1, (self.heads, self.head))
        k, v = F.linear(x, self.wkv).unflatten(-1, (2, self.kv_heads, self.head)).unbind(2)
        q = rotate(self.q_norm(q), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        keys, values = self.cache(k, v, tables, positions)
        # Heads of one group are neighbours.
        q = q.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4)
        scores = q @ keys.permute(0, 2, 3, 1)[:, :, None]
        scores = scores / self.head**0.5
        hidden = torch.arange(keys.shape[1]) > positions[:, :, None]
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        out = scores.softmax(-1) @ values.transpose(1, 2)[:, :, None]
        return F.linear(out.permute(0, 3, 1, 2, 4).flatten(2), self.wo)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first elements of each head by halves."""
    size = cos.shape[-1]
    a, b, rest = x[..., :size], x[..., size : 2 * size], x[..., 2 * size :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class MLP(nn.Module):
    def __init__(self, state: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = (
            nn.Parameter(state[f"{prefix}.{name}_proj.weight"].clone()) for name in ("gate", "up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.w1)) * F.linear(x, self.w3), self.w2)


class Router(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(state[f"{prefix}.weight"].clone())
        self.bias = nn.Parameter(state[f"{prefix}.e_score_correction_bias"].clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the weight of each expert for each token; those that are not chosen have 0."""
        config = self.config
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        biased = scores + self.bias
        groups = biased.unflatten(-1, (config.n_group, -1))
        best = groups.topk(2, -1).values.sum(-1).topk(config.topk_group, -1).indices
        allowed = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0)
        biased = torch.where(allowed[..., None] > 0, groups, float("-inf")).flatten(-2)
        chosen = biased.topk(config.num_experts_per_tok, -1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * config.routed_scaling_factor
        return torch.zeros_like(scores).scatter(-1, chosen, weights).to(x.dtype)


class SparseMLP(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.router = Router(config, state, f"{prefix}.gate")
        self.w13 = nn.Parameter(state[f"{prefix}.experts.gate_up_proj"].clone())
        self.w2 = nn.Parameter(state[f"{prefix}.experts.down_proj"].clone())
        self.shared = MLP(state, f"{prefix}.shared_experts")

    def forward(self, x: Tensor) -> Tensor:
        combine = self.router(x)
        gate, up = torch.einsum("bth,eih->btei", x, self.w13).chunk(2, -1)
        outputs = torch.einsum("btei,ehi->bteh", F.silu(gate) * up, self.w2)
        routed = (outputs * combine[..., None]).sum(2)
        return routed + self.shared(x)


class Block(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], number: int, kind: str) -> None:
        super().__init__()
        prefix = f"model.layers.{number}"
        self.norm1 = Norm(state[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        self.attention = Attention(config, state, f"{prefix}.self_attn", kind)
        self.norm2 = Norm(state[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        is_sparse = number >= config.first_k_dense_replace
        self.mlp = SparseMLP(config, state, f"{prefix}.mlp") if is_sparse else MLP(state, f"{prefix}.mlp")

    def forward(self, x: Tensor, *where: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), *where)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """The model; one call is one step of the server."""

    def __init__(self, reference: Any, kind: str) -> None:
        super().__init__()
        config, state = reference.config, reference.state_dict()
        self.embed = nn.Parameter(state["model.embed_tokens.weight"].clone())
        self.blocks = nn.ModuleList(Block(config, state, n, kind) for n in range(config.num_hidden_layers))
        self.norm = Norm(state["model.norm.weight"], config.rms_norm_eps)
        self.head = nn.Parameter(state["lm_head.weight"].clone())
        width = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        theta = config.rope_parameters["rope_theta"]
        self.register_buffer("inv_freq", 1.0 / theta ** (torch.arange(0, width, 2).float() / width), persistent=False)
        self.eval()

    @torch.no_grad()
    def forward(self, ids: Tensor, positions: Tensor, tables: Tensor) -> Tensor:
        x = self.embed[ids]
        angles = positions[..., None, None] * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin, tables, positions)
        return F.linear(self.norm(x[:, -1]), self.head).float()


@dataclass
class Request:
    """A request and its pages."""

    ids: list[int]
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


class Server:
    """Reads prompts one after another behind what earlier ones share with them, and decodes all together."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.free = [(7 * number) % PAGES for number in range(1, PAGES)]
        self.known: dict[tuple[int, ...], int] = {}

    def serve(
        self, prompts: Sequence[Sequence[int]], steps: int, forced: Optional[Sequence[Sequence[int]]] = None
    ) -> list[Request]:
        requests = [Request(list(prompt)) for prompt in prompts]
        for number, request in enumerate(requests):
            self.accept(request, self.read(request)[0], forced[number] if forced else None)
        for _ in range(steps - 1):
            logits = self.decode(requests)
            for number, (request, line) in enumerate(zip(requests, logits)):
                self.accept(request, line, forced[number] if forced else None)
        return requests

    def read(self, request: Request) -> Tensor:
        """Read a prompt, but for the full pages that are known."""
        ids = request.ids
        shared = 0
        while (shared + 1) * PAGE < len(ids) and self.key(ids, shared) in self.known:
            request.pages.append(self.known[self.key(ids, shared)])
            shared += 1
        self.reserve(request)
        for number in range(shared, len(ids) // PAGE):
            self.known[self.key(ids, number)] = request.pages[number]
        start = shared * PAGE
        positions = torch.arange(start, len(ids))[None]
        return self.model(torch.tensor([ids[start:]]), positions, torch.tensor([request.pages]))

    def key(self, ids: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(ids[: (number + 1) * PAGE])

    def reserve(self, request: Request) -> None:
        while len(request.pages) * PAGE < len(request.ids):
            request.pages.append(self.free.pop(0))

    def decode(self, requests: Sequence[Request]) -> Tensor:
        for request in requests:
            self.reserve(request)
        width = max(len(request.pages) for request in requests)
        tables = torch.tensor([request.pages + [0] * (width - len(request.pages)) for request in requests])
        ids = torch.tensor([request.ids[-1:] for request in requests])
        positions = torch.tensor([[len(request.ids) - 1] for request in requests])
        return self.model(ids, positions, tables)

    def accept(self, request: Request, logits: Tensor, forced: Optional[Sequence[int]]) -> None:
        odds = logits.log_softmax(-1)
        token = forced[len(request.tokens)] if forced else int(odds.argmax())
        request.scores.append(odds[token].item())
        request.tokens.append(token)
        request.ids.append(token)
