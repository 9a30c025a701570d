"""Faults in norms, rotations and attention of further designs."""

from collections.abc import Iterator

from rollout_pairs.cases import Case, places
from rollout_pairs.faults_transformers import BF16, MASKS, ROTARY, _case, assign

_SLIDING, _FULL = "sliding_attention", "full_attention"

#: The lines of rotating queries and keys.
_TURNS = places(r"~q_embed|k_embed|x1|x2|cos = cos|sin = sin|q_pass|k_pass")
#: The operators that make a mask.
_MAKES_MASK = MASKS[:1]


def norms() -> Iterator[Case]:
    """Norms that are lost, moved or computed otherwise."""
    yield _case(
        "norms_before_rotation",
        "hunyuan",
        "right",
        "(query|key)_layernorm .",
        more=_TURNS,
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
        more=_TURNS,
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
        more=_TURNS,
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
        "self_attn$ ^clamp",
        r"~view\(hidden_shape\)",
        "(q|k|v)_proj .",
        clip_qkv=None,
    )
    yield _case(
        "layer_kinds_moved",
        "olmo3",
        "right",
        r"layers\.(1|2)\.self_attn$ ^(cat|slice|mul|add|neg|_?softmax)",
        layer_types=[_SLIDING, _FULL, _SLIDING, _SLIDING],
    )
    yield _case(
        "window_of_trainer",
        "cohere2",
        "packed",
        r"layers\.(0|2)\.self_attn$ ^(cat|slice|add|_?softmax)",
        more=_MAKES_MASK,
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
        "self_attn$ ^(split|chunk|repeat)",
        "~value_states|attn_output = torch.matmul",
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
        "attn$ ^split",
        "~qkv",
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


def cases() -> list[Case]:
    """Return all faults of this module."""
    return [*norms(), *rotations(), *attention()]
