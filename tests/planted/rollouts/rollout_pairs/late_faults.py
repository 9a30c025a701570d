"""Faults in further designs of transformers."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from rollout_pairs import hf
from rollout_pairs.cases import Case, Scores, places
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import BF16, CLEAR, MASKS, ROTARY, ROTATION, ROUTER, _case, assign, stale
from rollout_pairs.hf import Record
from rollout_pairs.late_designs import LATE
from rollout_pairs.scenarios import ONE, THREE

_SLIDING, _FULL = "sliding_attention", "full_attention"


def norms() -> Iterator[Case]:
    """Norms that are lost, moved or computed otherwise."""
    yield _case(
        "norms_before_rotation",
        "hunyuan",
        "right",
        "(query|key)_layernorm .",
        more=ROTATION,
        changes=[
            (
                "        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n"
                "        query_states = self.query_layernorm(query_states)\n"
                "        key_states = self.key_layernorm(key_states)\n",
                "        query_states = self.query_layernorm(query_states)  # planted\n"
                "        key_states = self.key_layernorm(key_states)  # planted\n"
                "        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n",
            )
        ],
    )
    yield _case(
        "mean_kept",
        "cohere2",
        "right",
        "layernorm$ ^(sub|mul|rsqrt|pow|mean)",
        changes=[
            (
                "hidden_states = (hidden_states - mean) * torch.rsqrt(variance + self.variance_epsilon)",
                "hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)  # planted",
            )
        ],
    )
    yield _case(
        "norm_of_sum",
        "exaone4",
        "packed",
        r"layers\.\d$ ^add",
        "post_attention_layernorm .",
        changes=[
            (
                "        hidden_states = self.post_attention_layernorm(hidden_states)\n"
                "        hidden_states = residual + hidden_states\n",
                "        hidden_states = self.post_attention_layernorm(residual + hidden_states)  # planted\n",
            )
        ],
    )
    yield _case(
        "norm_without_one",
        "nemotron",
        "right",
        "norm$ ^(native_layer_norm|layer_norm|add)",
        changes=[
            (
                "device_type, input, self.normalized_shape, self.weight + 1.0, self.bias, self.eps",
                "device_type, input, self.normalized_shape, self.weight, self.bias, self.eps  # planted",
            )
        ],
    )
    yield _case(
        "sub_norm_lost",
        "bitnet",
        "left",
        "ffn_sub_norm .",
        "down_proj .",
        "mlp$ ^mul",
        changes=[
            (
                "self.down_proj(self.ffn_sub_norm(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))",
                "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))  # planted",
            )
        ],
    )
    yield _case(
        "key_norm_of_queries",
        "glm4moe",
        "function",
        "(q|k)_norm .",
        changes=[("key_states = self.k_norm(key_states)", "key_states = self.q_norm(key_states)  # planted")],
    )
    yield _case(
        "cross_norm_lost",
        "mbart",
        "decoder",
        "encoder_attn_layer_norm .",
        r"encoder_attn\.q_proj .",
        changes=[("            hidden_states = self.encoder_attn_layer_norm(hidden_states)\n", "")],
    )
    yield _case(
        "trainer_eps",
        "apertus",
        "train",
        r"layers\.1\.feedforward_layernorm$ ^(add|rsqrt)",
        on="trainer",
        edit=assign("model.layers.1.feedforward_layernorm.variance_epsilon", 0.1),
    )


def rotations() -> Iterator[Case]:
    """Wrong rotations and positions."""
    yield _case(
        "rotated_everywhere",
        "exaone4",
        "right",
        r"layers\.1\.self_attn$ ^(mul|neg|cat|slice|add|unsqueeze)",
        changes=[("if self.sliding_window is None or self.is_sliding:", "if cos is not None:")],
    )
    yield _case(
        "cosines_by_halves",
        "ernie45",
        "packed",
        more=ROTATION,
        changes=[
            (
                "cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, dim=-1)",
                "cos = cos[..., : cos.shape[-1] // 2].repeat(1, 1, 1, 2)  # planted",
            ),
        ],
    )
    yield _case(
        "narrow_frequencies",
        "helium",
        "plain",
        more=ROTARY,
        bound=2e-4,
        edit=lambda model: model.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.inv_freq.bfloat16()),
    )
    yield _case(
        "rotated_end",
        "nemotron",
        "plain",
        more=ROTATION,
        changes=[
            (
                "q, q_pass = q[..., :rot_dim], q[..., rot_dim:]",
                "q, q_pass = q[..., -rot_dim:], q[..., :-rot_dim]  # planted",
            ),
            (
                "k, k_pass = k[..., :rot_dim], k[..., rot_dim:]",
                "k, k_pass = k[..., -rot_dim:], k[..., :-rot_dim]  # planted",
            ),
            (
                "return torch.cat((q_embed, q_pass), dim=-1), torch.cat((k_embed, k_pass), dim=-1)",
                "return torch.cat((q_pass, q_embed), dim=-1), torch.cat((k_pass, k_embed), dim=-1)  # planted",
            ),
        ],
    )
    yield _case(
        "conjugate_keys",
        "deepseek2",
        "right",
        changes=[
            (
                "xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3).type_as(xk)",
                "xk_out = torch.view_as_real(xk_ * freqs_cis.conj()).flatten(3).type_as(xk)  # planted",
            )
        ],
    )
    yield _case(
        "later_positions",
        "xglm",
        "right",
        "embed_positions .",
        "^model$ ^add",
        changes=[
            (
                "position_ids = position_ids + self.offset",
                "position_ids = position_ids + self.offset + (cache_length > 0)  # planted",
            )
        ],
    )
    yield _case(
        "padding_index",
        "m2m",
        "decoder",
        r"encoder\.embed_positions .",
        changes=[
            ("return incremental_indices.long() + padding_idx", "return incremental_indices.long() + 1  # planted")
        ],
    )
    yield _case(
        "theta_narrow",
        "hunyuan",
        "batch4",
        more=ROTARY,
        common={"dtype": BF16},
        bound=0.25,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
    )
    yield _case(
        "linear_factor_lost",
        "arcee",
        "chunked",
        more=ROTARY,
        trainer={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    )


def attention() -> Iterator[Case]:
    """Wrong heads, scales, masks and windows of attention."""
    yield _case(
        "clip_lost",
        "olmo",
        "right",
        "self_attn$ ^(clamp|view|transpose)",
        "(q|k|v)_proj .",
        clip_qkv=None,
    )
    yield _case(
        "layer_kinds_moved",
        "olmo3",
        "right",
        r"layers\.(1|2)\.self_attn$ ^(cat|slice|mul|add|neg)",
        more=MASKS,
        layer_types=[_SLIDING, _FULL, _SLIDING, _SLIDING],
    )
    yield _case(
        "window_of_trainer",
        "cohere2",
        "packed",
        "self_attn$ ^(cat|slice)",
        more=MASKS,
        on="trainer",
        sliding_window=8,
    )
    yield _case(
        "heads_by_blocks",
        "persimmon",
        "right",
        "self_attn$ ^(view|select|transpose)",
        "(q|k)_layernorm .",
        changes=[
            (
                "fused_qkv = fused_qkv.view(batch_size, seq_length, self.num_heads, 3, self.head_dim)",
                "fused_qkv = fused_qkv.view(batch_size, seq_length, 3, self.num_heads, self.head_dim)  # planted",
            ),
            (
                "return fused_qkv[..., 0, :], fused_qkv[..., 1, :], fused_qkv[..., 2, :]",
                "return fused_qkv[:, :, 0], fused_qkv[:, :, 1], fused_qkv[:, :, 2]  # planted",
            ),
        ],
    )
    yield _case(
        "lambda_of_first_layer",
        "diffllama",
        "packed",
        r"layers\.1\.self_attn$ ^(add|mul|sub|rsub)",
        edit=assign("model.layers.1.self_attn.lambda_init", 0.2),
    )
    yield _case(
        "halves_of_values",
        "diffllama",
        "batch4",
        "self_attn$ ^(split|chunk|repeat|slice|bmm|expand|clone)",
        changes=[
            (
                "value_states1, value_states2 = (v.repeat(1, 2, 1, 1) for v in torch.chunk(value_states, 2, dim=1))",
                "value_states2, value_states1 = (v.repeat(1, 2, 1, 1) for v in torch.chunk(value_states, 2, dim=1))"
                "  # planted",
            )
        ],
    )
    yield _case(
        "cap_behind_mask",
        "vaultgemma",
        "right",
        r"self_attn$ ^(add|div|tanh|mul|_?softmax)",
        changes=[
            (
                "        attn_weights = attn_weights / softcap\n",
                "        attn_weights = (attn_weights + attention_mask) / softcap  # planted\n",
            ),
            (
                "        attn_weights = attn_weights * softcap\n"
                "    if attention_mask is not None:\n"
                "        attn_weights = attn_weights + attention_mask\n",
                "        attn_weights = attn_weights * softcap  # planted\n",
            ),
        ],
    )
    yield _case(
        "order_of_parts",
        "codegen",
        "right",
        "attn$ ^(split|view|reshape|permute|transpose|clone)",
        changes=[
            (
                "query, value, key = qkv.split(local_dim, dim=-1)",
                "query, key, value = qkv.split(local_dim, dim=-1)  # planted",
            )
        ],
    )
    yield _case("scale_lost", "bigcode", "beams", "attn$ ^(mul|bmm|add|div)", scale_attn_weights=False)
    yield _case(
        "scaled",
        "gptneo",
        "left",
        changes=[
            (
                "attn_weights = torch.matmul(query, key.transpose(-1, -2))",
                "attn_weights = torch.matmul(query, key.transpose(-1, -2)) / self.head_dim**0.5  # planted",
            )
        ],
    )
    yield _case(
        "local_layers",
        "gptneo",
        "plain",
        r"attn\.attention$ ^(where|slice|_?softmax|add)",
        attention_types=[[["local", "global"], 1]],
    )
    yield _case(
        "kv_heads",
        "seed_oss",
        "left",
        "self_attn$ ^(bmm|_?scaled_dot)",
        changes=[
            (
                "key_states = repeat_kv(key, module.num_key_value_groups)",
                "key_states = key.repeat(1, module.num_key_value_groups, 1, 1)  # planted",
            )
        ],
    )


def layers() -> Iterator[Case]:
    """Wrong activations, residuals, convolutions, embeddings and dropout."""
    yield _case("activation", "arcee", "batch4", r"mlp\.act_fn$ .", "mlp$ ^(relu|square|pow|mul)", hidden_act="relu")
    dropout = r"(self_attn|mlp)$ ^(native_dropout|_?fused_dropout|dropout|bernoulli|mul|div)"
    yield _case(
        "dropout_left_on",
        "seed_oss",
        "train",
        dropout,
        "~dropout",
        on="trainer",
        residual_dropout=0.1,
    )
    yield _case(
        "alpha_not_loaded",
        "apertus",
        "right",
        r"layers\.1\.mlp\.act_fn$ .",
        edit=lambda model: model.model.layers[1].mlp.act_fn.alpha_n.add_(0.8),
    )
    yield _case(
        "narrow_normalizer",
        "gemma",
        "right",
        "embed_tokens .",
        bound=2e-4,
        edit=lambda model: model.model.embed_tokens.embed_scale.copy_(model.model.embed_tokens.embed_scale.bfloat16()),
    )
    yield _case(
        "embedding_scale",
        "biogpt",
        "left",
        "embed_tokens .",
        "^biogpt$ ^(mul|add)",
        scale_embedding=False,
    )
    yield _case(
        "gates_exchanged",
        "lfm2",
        "plain",
        r"\.conv$ ^(split|chunk|slice|mul)",
        changes=[("B, C, x = BCx.chunk(3, dim=-2)", "C, B, x = BCx.chunk(3, dim=-2)  # planted")],
    )
    yield _case(
        "kernel_reversed",
        "lfm2",
        "right",
        r"\.conv$ .",
        changes=[
            (
                "hidden_states, conv_state, self.conv.weight.squeeze(1), self.conv.bias\n",
                "hidden_states, conv_state, self.conv.weight.squeeze(1).flip(-1), self.conv.bias  # planted\n",
            )
        ],
    )
    yield _case(
        "shared_of_residual",
        "granitemoeshared",
        "right",
        "shared_mlp .",
        changes=[("self.shared_mlp(hidden_states)", "self.shared_mlp(residual)  # planted")],
    )


def experts() -> Iterator[Case]:
    """Wrong routers."""
    yield _case(
        "second_not_masked",
        "phimoe",
        "packed",
        r"mlp(\.router|\.gate)?$ ^(masked_fill|_?softmax|gather|cat)",
        changes=[
            (
                'masked_gates_top2 = masked_scores.masked_fill(mask_logits_threshold, float("-inf"))',
                "masked_gates_top2 = masked_scores  # planted",
            ),
            (
                "masked_gates_top2 = torch.softmax(masked_gates_top2, dim=-1)",
                "masked_gates_top2 = torch.softmax(masked_gates_top2, dim=-1)  # planted",
            ),
        ],
    )
    yield _case(
        "router_bias_lost",
        "ernie45moe",
        "right",
        "moe_statics .",
        r"mlp\.gate$ ^(topk|add|gather)",
        changes=[
            (
                "_, selected_experts = torch.topk(self.moe_statics(routing_weights), self.top_k, dim=-1)",
                "_, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)  # planted",
            )
        ],
    )
    yield _case(
        "not_renormalised",
        "hunyuanmoe",
        "batch4",
        more=ROUTER,
        changes=[("        routing_weights /= routing_weights.sum(dim=-1, keepdim=True)\n", "")],
    )
    yield _case(
        "groups_by_best",
        "dots1",
        "right",
        r"mlp\.gate$ ^(max|amax)",
        more=ROUTER,
        changes=[
            (
                "            .topk(2, dim=-1)[0]\n            .sum(dim=-1)\n",
                "            .max(dim=-1)[0]  # planted\n",
            )
        ],
    )
    yield _case(
        "softmax_of_all",
        "granitemoe",
        "right",
        "router$ ^(_?softmax|gather|topk)",
        changes=[
            (
                "top_k_weights = torch.softmax(top_k_logits, dim=-1).type_as(hidden_states)",
                "top_k_weights = torch.softmax(router_logits, dim=-1).gather(1, top_k_index)  # planted\n"
                "        top_k_weights = top_k_weights.type_as(hidden_states)",
            )
        ],
    )
    yield _case(
        "narrow_router",
        "flexolmo",
        "left",
        bound=2e-4,
        changes=[
            (
                "router_logits = F.linear(hidden_states, self.weight)",
                "router_logits = F.linear(hidden_states.bfloat16(), self.weight.bfloat16())  # planted\n"
                "        router_logits = router_logits.float()",
            )
        ],
    )
    yield _case(
        "softmax_for_sigmoid",
        "minimaxm2",
        "packed",
        more=ROUTER,
        changes=[
            (
                "routing_weights = nn.functional.sigmoid(router_logits.float())",
                "routing_weights = nn.functional.softmax(router_logits.float(), -1)  # planted",
            )
        ],
    )
    yield _case(
        "norm_of_weights",
        "dbrx",
        "right",
        "ffn$ ^(linalg_vector_norm|norm|div)",
        ffn_config={**LATE["dbrx"].values["ffn_config"], "moe_normalize_expert_weights": 2.0},
    )
    yield _case(
        "trainer_scale",
        "glm4moe",
        "right",
        r"mlp\.gate$ ^mul",
        more=ROUTER,
        on="trainer",
        routed_scaling_factor=1.0,
    )


def weights() -> Iterator[Case]:
    """Parameters that are stale or stand in another place."""
    yield _case("layers_exchanged", "olmo3", "packed", r"layers\.(1|2)\.mlp\.down_proj .", edit=_exchange)
    yield _case(
        "trainer_stale",
        "jetmoe",
        "right",
        r"layers\.1\.self_attention\.kv_proj .",
        on="trainer",
        edit=stale("model.layers.1.self_attention.kv_proj.weight"),
    )
    yield _case("stale_norm", "helium", "generate", r"^model\.norm$ ^mul", edit=stale("model.norm.weight"))
    yield _case(
        "rows_of_experts",
        "granitemoe",
        "batch4",
        r"layers\.0\.block_sparse_moe\.experts .",
        edit=lambda model: _roll(model.model.layers[0].block_sparse_moe.experts.down_proj),
    )


def _exchange(model: Any) -> None:
    """Load a projection of two layers into the other one."""
    first, second = (model.model.layers[number].mlp.down_proj.weight for number in (1, 2))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def _roll(weight: Tensor) -> None:
    weight.copy_(weight.roll(1, 0))


def calls() -> Iterator[Case]:
    """Faults of the programs around a model."""

    def filtered(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        def head(logits: Tensor) -> Tensor:
            least = logits.topk(8).values[..., -1:]
            return logits.masked_fill(logits < least, float("-inf"))  # planted

        answers = hf.rollout(build("ernie45"), THREE, a, head=head)
        return hf.odds_of(answers), hf.score(build("ernie45"), answers, b)

    def batch_counts_padding(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("bigcode"), THREE, b, counts_padding=True)
        same = hf.rollout(build("bigcode"), THREE[1:2], a, forced=answers[1:2])
        return hf.odds_of(same), hf.odds_of(answers[1:2])

    def chunk_restarts(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("helium"), ONE, a, chunk=4, restarts=True)
        return hf.odds_of(answers), hf.score(build("helium"), answers, b, masked=False)

    def entropy_temperature(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("exaone4"), THREE, a)
        return hf.odds_of(answers), hf.score_function(build("exaone4"), answers, b, temperature=1.25)

    def encoder_mask_lost(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        model = build("mbart")
        answers = hf.rollout_decoder(model, THREE, a, keeps_mask=False)
        return hf.odds_of(answers), hf.score_decoder(build("mbart"), THREE, answers, b)

    yield Case("ernie45-filtered_odds", filtered, CLEAR, places=places("~masked_fill|topk|log_softmax"))
    yield Case(
        "bigcode-batch_counts_padding",
        batch_counts_padding,
        CLEAR,
        options={"rows": {0: 1}},
        places=places("wpe .", "^transformer$ ."),
    )
    yield Case("helium-chunk_restarts", chunk_restarts, CLEAR, places=(*ROTARY, *places("^model$ .")))
    yield Case("exaone4-temperature_of_trainer", entropy_temperature, CLEAR, places=places("~temperature|log_softmax"))
    yield Case(
        "mbart-encoder_mask_lost",
        encoder_mask_lost,
        CLEAR,
        places=places(r"encoder_attn$ ^(add|_?softmax|_?scaled_dot|bmm)", r"^model(\.decoder)?$ ."),
    )


def cases() -> list[Case]:
    """Return all faults of this module."""
    found = [*norms(), *rotations(), *attention(), *layers(), *experts(), *weights(), *calls()]
    return [dataclasses.replace(case, name=f"late-{case.name}") for case in found]
