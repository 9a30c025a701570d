"""A server for DeepSeek V3: latents in the cache, absorbed projections while it decodes, grouped top-k of experts."""

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight.clone()), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Linear(nn.Module):
    def __init__(self, *weights: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat(weights))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class LatentAttention(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], prefix: str, rows: int, length: int) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.nope, self.rope, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.rank, self.q_rank = config.kv_lora_rank, config.q_lora_rank
        self.scale = (self.nope + self.rope) ** -0.5
        self.fused_qkv_a_proj = Linear(state[f"{prefix}.q_a_proj.weight"], state[f"{prefix}.kv_a_proj_with_mqa.weight"])
        # These norms keep the default of their class, as in the reference.
        self.q_a_layernorm = RMSNorm(state[f"{prefix}.q_a_layernorm.weight"], 1e-6)
        self.kv_a_layernorm = RMSNorm(state[f"{prefix}.kv_a_layernorm.weight"], 1e-6)
        self.q_b_proj = Linear(state[f"{prefix}.q_b_proj.weight"])
        self.kv_b_proj = Linear(state[f"{prefix}.kv_b_proj.weight"])
        self.o_proj = Linear(state[f"{prefix}.o_proj.weight"])
        fused = self.kv_b_proj.weight.detach().view(self.heads, self.nope + self.value, self.rank)
        self.w_kc, self.w_vc = fused[:, : self.nope].contiguous(), fused[:, self.nope :].contiguous()
        self.latents = torch.zeros(rows, length, self.rank + self.rope)

    def forward(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rows: Tensor) -> Tensor:
        q_latent, latent, k_rope = self.fused_qkv_a_proj(x).split([self.q_rank, self.rank, self.rope], -1)
        q = self.q_b_proj(self.q_a_layernorm(q_latent)).unflatten(-1, (self.heads, -1))
        q_nope, q_rope = q.split([self.nope, self.rope], -1)
        q_rope = rotate(q_rope, cos[:, :, None], sin[:, :, None])
        latent = self.kv_a_layernorm(latent)
        k_rope = rotate(k_rope, cos, sin)
        self.latents[rows[:, None], positions] = torch.cat([latent, k_rope], -1)
        if x.shape[1] == 1:
            out = self.forward_absorbed(q_nope, q_rope, positions, rows)
        else:
            out = self.forward_expanded(q_nope, q_rope, latent, k_rope)
        return self.o_proj(out.flatten(2))

    def forward_expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor) -> Tensor:
        """Attend within a prompt, with keys and values of all heads."""
        k_nope, v = self.kv_b_proj(latent).unflatten(-1, (self.heads, -1)).split([self.nope, self.value], -1)
        k = torch.cat([k_nope, k_rope[:, :, None].expand(-1, -1, self.heads, -1)], -1)
        q = torch.cat([q_nope, q_rope], -1)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=self.scale
        )
        return out.transpose(1, 2)

    def forward_absorbed(self, q_nope: Tensor, q_rope: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Attend to the latents of the cache, one query of each row."""
        cached = self.latents[rows, : int(positions.max()) + 1]
        latent, k_rope = cached.split([self.rank, self.rope], -1)
        absorbed = torch.einsum("bthn,hnr->bthr", q_nope, self.w_kc)
        scores = torch.einsum("bthr,bsr->bhts", absorbed, latent)
        scores = scores + torch.einsum("bthr,bsr->bhts", q_rope, k_rope)
        scores = scores * self.scale
        hidden = torch.arange(cached.shape[1]) > positions[:, :, None]
        weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
        context = torch.einsum("bhts,bsr->bthr", weights, latent)
        return torch.einsum("bthr,hvr->bthv", context, self.w_vc)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbours."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


class MLP(nn.Module):
    def __init__(self, state: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = Linear(state[f"{prefix}.gate_proj.weight"], state[f"{prefix}.up_proj.weight"])
        self.down_proj = Linear(state[f"{prefix}.down_proj.weight"])

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class MoE(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.config = config
        self.gate = Linear(state[f"{prefix}.gate.weight"])
        self.correction_bias = nn.Parameter(state[f"{prefix}.gate.e_score_correction_bias"].clone())
        self.w13 = nn.Parameter(state[f"{prefix}.experts.gate_up_proj"].clone())
        self.w2 = nn.Parameter(state[f"{prefix}.experts.down_proj"].clone())
        self.shared_experts = MLP(state, f"{prefix}.shared_experts")

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.grouped_topk(self.gate(tokens))
        # Tokens are sorted by experts, and each expert gets one slice.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.w13)).tolist()
        batch = tokens[order // chosen.shape[1]]
        outputs = []
        for number, part in enumerate(batch.split(counts)):
            gate, up = F.linear(part, self.w13[number]).chunk(2, -1)
            outputs.append(F.linear(F.silu(gate) * up, self.w2[number]))
        unsorted = torch.empty_like(batch)
        unsorted[order] = torch.cat(outputs)
        routed = (unsorted.view(*chosen.shape, -1) * weights[..., None]).sum(1)
        routed = routed * self.config.routed_scaling_factor
        return routed.view_as(x) + self.shared_experts(x)

    def grouped_topk(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = router_logits.sigmoid()
        biased = scores + self.correction_bias
        groups = biased.unflatten(-1, (self.config.n_group, -1))
        group_scores = groups.topk(2, -1).values.sum(-1)
        best = group_scores.topk(self.config.topk_group, -1).indices
        is_best = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best, True)
        allowed = groups.masked_fill(~is_best[..., None], float("-inf")).flatten(1)
        chosen = allowed.topk(self.config.num_experts_per_tok, -1).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen


class Layer(nn.Module):
    def __init__(self, config: Any, state: dict[str, Tensor], number: int, rows: int, length: int) -> None:
        super().__init__()
        prefix = f"model.layers.{number}"
        self.input_layernorm = RMSNorm(state[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        self.self_attn = LatentAttention(config, state, f"{prefix}.self_attn", rows, length)
        self.post_attention_layernorm = RMSNorm(state[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        is_sparse = number >= config.first_k_dense_replace
        self.mlp = MoE(config, state, f"{prefix}.mlp") if is_sparse else MLP(state, f"{prefix}.mlp")

    def forward(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rows: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cos, sin, rows)
        return x + self.mlp(self.post_attention_layernorm(x))


class Server(nn.Module):
    def __init__(self, reference: Any, rows: int = 4, length: int = 40) -> None:
        super().__init__()
        config, state = reference.config, reference.state_dict()
        self.embed_tokens = nn.Embedding.from_pretrained(state["model.embed_tokens.weight"])
        self.layers = nn.ModuleList(
            Layer(config, state, number, rows, length) for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(state["model.norm.weight"], config.rms_norm_eps)
        self.lm_head = Linear(state["lm_head.weight"])
        self.theta, self.width = config.rope_parameters["rope_theta"], config.qk_rope_head_dim
        self.eval()

    @torch.no_grad()
    def forward(self, input_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        inv_freq = 1.0 / self.theta ** (torch.arange(0, self.width, 2).float() / self.width)
        angles = positions[..., None].float() * inv_freq
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, positions, cos, sin, rows)
        return self.lm_head(self.norm(x[:, -1]))

    def serve(
        self, prompts: Sequence[Sequence[int]], steps: int, forced: Optional[Sequence[Sequence[int]]] = None
    ) -> list[tuple[list[int], list[float]]]:
        """Answer prompts and return the tokens and log-probabilities of each."""
        results: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        for step in range(steps):
            if step:
                ids = torch.tensor([[tokens[-1]] for tokens, _ in results])
                places = torch.tensor([[len(prompt) + step - 1] for prompt in prompts])
                logits = self(ids, places, torch.arange(len(prompts)))
            else:
                lines = [
                    self(torch.tensor([list(prompt)]), torch.arange(len(prompt))[None], torch.tensor([row]))
                    for row, prompt in enumerate(prompts)
                ]
                logits = torch.cat(lines)
            for row, (line, (tokens, scores)) in enumerate(zip(logits.log_softmax(-1), results)):
                token = forced[row][step] if forced else int(line.argmax())
                tokens.append(token)
                scores.append(line[token].item())
        return results
