"""Faults in copies, configurations and calls of transformers models."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollout_pairs import hf
from rollout_pairs.cases import Case, Place, Scores, places
from rollout_pairs.designs import DESIGNS, build
from rollout_pairs.hf import Record
from rollout_pairs.mutation import mutate
from rollout_pairs.scenarios import FOUR, ONE, OPTIONS, SCENARIOS, SIDES, THREE

Changes = Sequence[tuple[str, str]]

BF16 = torch.bfloat16

#: A fault changes log-probabilities by this at least; rounding changes them by some 1e-6.
CLEAR = 2e-3

#: Operators that make a mask, and those that apply it.
MASKS = places(
    r"^(model|transformer|gpt_neox|model\.decoder|decoder)$ "
    "^(le|gt|lt|ge|bitwise_|where|add|sub|expand|index|masked|mul|_to_copy|zeros|new_|arange|any|all|logical|eq|slice)",
    r"(self_attn|attention|attn|SelfAttention|EncDecAttention)$ "
    r"^(add|_?softmax|_?scaled_dot|masked|where|bmm|baddbmm|eq)",
)
#: Operators that turn positions into rotations.
ROTARY = places("rotary_emb .")
#: The operators of rotating queries and keys.
ROTATION = places(
    r"(self_attn|attention|attn)$ ^(mul|neg|cat|slice|add|sub|split|unsqueeze|view|clone|stack|transpose)"
)
#: Operators of a router, and those that use its weights.
ROUTER = places(
    r"mlp\.(gate|router)$ "
    r"^(topk|div|sum|mul|gather|add|sigmoid|_?softmax|masked_fill|_to_copy|index|where|scatter|view)",
    r"mlp\.experts$ ^(mul|index|div|where)",
)


def _case(
    name: str,
    design: str,
    scenario: str,
    *accepted: str,
    changes: Changes = (),
    edit: Callable[[Any], object] = lambda model: None,
    more: tuple[Place, ...] = (),
    on: str = "rollout",
    common: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    bound: float = CLEAR,
    **values: Any,
) -> Case:
    """Return the case of a fault in one model.

    accepted, more: places; changes: of the source; edit: of the model; values: of the configuration; on: the side that
    has the fault; common: arguments of `build` for both sides, trainer: for the trainer.
    """

    def run(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        shared = common or {}
        code = mutate(DESIGNS[design].module, changes, folder) if changes else None
        faulty = build(design, code=code, **{**shared, **values})
        with torch.no_grad():
            edit(faulty)
        sound = build(design, **{**shared, **(trainer or {})})
        sides = (faulty, sound) if on == "rollout" else (sound, faulty)
        return SCENARIOS[scenario](*sides, a, b)

    sides = SIDES.get(scenario, ("actual", "reference"))
    return Case(f"{design}-{name}", run, bound, sides, OPTIONS.get(scenario, {}), (*places(*accepted), *more))


def stale(path: str) -> Callable[[Any], object]:
    """Return an edit that leaves a parameter at a value from before an update of the weights."""

    def edit(model: Any) -> None:
        weight = model.get_parameter(path)
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(8))
        weight.add_(noise * 0.15 * weight.std())

    return edit


def _weights_of(design: str) -> Callable[[Any], object]:
    """Return an edit that loads the weights of a design: a model with fewer parameters is filled with other numbers."""
    return lambda model: model.load_state_dict(build(design).state_dict(), strict=False)


def assign(path: str, value: Any) -> Callable[[Any], object]:
    """Return an edit that sets an attribute of a module."""

    def edit(model: Any) -> None:
        module, _, name = path.rpartition(".")
        setattr(model.get_submodule(module), name, value)

    return edit


def numbers() -> Iterator[Case]:
    """Wrong constants: eps, scales, caps, windows, tables of rotations."""
    sdpa = {"attention": "sdpa"}
    yield _case(
        "eps",
        "llama",
        "plain",
        r"layers\.1\.post_attention_layernorm$ ^(add|rsqrt)",
        edit=assign("model.layers.1.post_attention_layernorm.variance_epsilon", 0.05),
        trainer=sdpa,
    )
    yield _case("eps_everywhere", "qwen2", "right", "norm$ ^(add|rsqrt)", rms_norm_eps=0.02)
    yield _case(
        "eps_head",
        "qwen3",
        "batch4",
        r"layers\.0\.self_attn\.q_norm$ ^(add|rsqrt)",
        edit=assign("model.layers.0.self_attn.q_norm.variance_epsilon", 0.1),
    )
    yield _case("eps_falcon", "falcon", "right", "ln_|norm ^(native_)?layer_norm", layer_norm_epsilon=0.05)
    yield _case(
        "eps_neox",
        "neox",
        "packed",
        "final_layer_norm$ ^(native_)?layer_norm",
        edit=assign("gpt_neox.final_layer_norm.eps", 0.1),
    )
    theta = {"rope_type": "default", "rope_theta": 500000.0}
    yield _case("theta", "qwen3", "right", more=ROTARY, rope_parameters=theta)
    yield _case("theta", "glm4", "chunked", more=ROTARY, rope_parameters={**theta, "partial_rotary_factor": 0.5})
    yield _case(
        "scaled_rope_lost",
        "llama3rope",
        "packed",
        more=ROTARY,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        trainer=sdpa,
    )
    yield _case(
        "linear_rope_lost",
        "llama_linear",
        "function",
        more=ROTARY,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    yield _case(
        "yarn_scale_lost",
        "llama_yarn",
        "left",
        more=ROTARY,
        changes=[
            ("cos = emb.cos() * self.attention_scaling", "cos = emb.cos()  # planted"),
            ("sin = emb.sin() * self.attention_scaling", "sin = emb.sin()  # planted"),
        ],
    )
    yield _case(
        "rotary_width",
        "phi",
        "right",
        more=ROTARY + ROTATION,
        rope_parameters={**theta, "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    )
    yield _case(
        "rotary_width",
        "neox",
        "plain",
        more=ROTARY + ROTATION,
        rope_parameters={**theta, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    yield _case("attention_multiplier", "granite", "right", r"self_attn$ ^mul", attention_multiplier=0.29)
    yield _case("residual_multiplier", "granite", "train", r"layers\.\d$ ^mul", residual_multiplier=1.0)
    yield _case("embedding_multiplier", "granite", "plain", r"^model$ ^mul", embedding_multiplier=1.0)
    yield _case("logits_scaling", "granite", "batch4", "^$ ^div", logits_scaling=1.0)
    yield _case("logit_scale", "cohere", "right", "^$ ^mul", logit_scale=0.5)
    yield _case("query_scalar", "gemma2", "left", "self_attn$ ^mul", query_pre_attn_scalar=12)
    yield _case(
        "attention_cap_lost",
        "gemma2",
        "right",
        r"self_attn$ ^(div|tanh|mul|add|_?softmax)",
        attn_logit_softcapping=None,
    )
    yield _case("attention_cap_value", "gemma2", "plain", r"self_attn$ ^(div|mul)", attn_logit_softcapping=50.0)
    yield _case("final_cap_lost", "gemma2", "generate", "^$ ^(div|tanh|mul)", "lm_head .", final_logit_softcapping=None)
    yield _case("window", "mistral", "right", more=MASKS, sliding_window=7)
    yield _case(
        "window_cached",
        "mistral",
        "plain",
        "self_attn$ ^(cat|slice)",
        more=MASKS,
        sliding_window=5,
        common={"attention": "sdpa"},
    )
    yield _case("window", "gemma3", "packed", more=MASKS, sliding_window=5)
    yield _case("window_lost", "gptoss", "right", more=MASKS, layer_types=["full_attention", "full_attention"])
    yield _case(
        "layer_kinds_exchanged",
        "gemma2",
        "chunked",
        "self_attn$ ^(cat|slice)",
        more=MASKS,
        layer_types=["full_attention", "sliding_attention"],
    )
    yield _case(
        "local_rope",
        "gemma3",
        "right",
        more=ROTARY,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e6},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    )
    yield _case(
        "no_rope_lost",
        "smollm3",
        "right",
        r"layers\.1\.self_attn$ ^(mul|neg|cat|slice|add|unsqueeze)",
        no_rope_layers=[1, 1, 1],
    )
    yield _case("activation", "llama", "static", r"mlp\.act_fn$ .", "mlp$ ^(silu|gelu|mul)", hidden_act="gelu")
    yield _case(
        "activation",
        "gpt2",
        "right",
        r"mlp\.act$ .",
        r"mlp$ ^(gelu|mul|pow|tanh)",
        bound=2e-4,
        activation_function="gelu",
    )
    yield _case("swiglu_alpha", "gptoss", "plain", "experts$ ^(mul|sigmoid)", swiglu_alpha=1.0)
    yield _case("scale_by_layer", "gpt2", "left", "attn$ ^(mul|div)", scale_attn_by_inverse_layer_idx=True)
    yield _case(
        "scale",
        "deepseek3",
        "right",
        r"layers\.0\.self_attn$ ^mul",
        edit=assign("model.layers.0.self_attn.scaling", 12**-0.5),
    )
    yield _case(
        "scale",
        "bloom",
        "right",
        r"h\.1\.self_attention$ ^(baddbmm|mul)",
        edit=assign("transformer.h.1.self_attention.inv_norm_factor", 0.2),
    )
    yield _case(
        "scale",
        "t5",
        "decoder",
        r"decoder\.block\.0\.layer\.0\.SelfAttention$ ^(mul|bmm|add)",
        edit=assign("decoder.block.0.layer.0.SelfAttention.scaling", 12**-0.5),
    )
    yield _case(
        "embedding_scale",
        "bart",
        "decoder",
        "embed_tokens$|shared$ .",
        "^model.(en|de)coder$ ^(add|mul)",
        scale_embedding=True,
    )


def rotations() -> Iterator[Case]:
    """Wrong layouts, signs and orders of rotations."""
    yield _case(
        "rotary_layout",
        "llama",
        "right",
        changes=[
            ("emb = torch.cat((freqs, freqs), dim=-1)", "emb = torch.repeat_interleave(freqs, 2, dim=-1)  # planted")
        ],
    )
    yield _case(
        "rotary_sign",
        "mistral",
        "plain",
        more=ROTATION,
        changes=[("return torch.cat((-x2, x1), dim=-1)", "return torch.cat((x2, -x1), dim=-1)  # planted")],
    )
    yield _case(
        "rotary_keys",
        "qwen2",
        "packed",
        changes=[
            ("k_embed = (k * cos) + (rotate_half(k) * sin)", "k_embed = (k * cos) - (rotate_half(k) * sin)  # planted")
        ],
    )
    yield _case(
        "rotary_layout",
        "gptj",
        "right",
        more=ROTATION,
        changes=[
            ("x1 = x[:, :, :, ::2]", "x1 = x[:, :, :, : x.shape[-1] // 2]  # planted"),
            ("x2 = x[:, :, :, 1::2]", "x2 = x[:, :, :, x.shape[-1] // 2 :]  # planted"),
            ("x = torch.stack((-x2, x1), dim=-1)", "return torch.cat((-x2, x1), dim=-1)  # planted"),
        ],
    )
    yield _case("rotary_layout", "deepseek3", "batch4", more=ROTATION, rope_interleave=False)
    yield _case(
        "new_keys_unrotated",
        "stablelm",
        "plain",
        "self_attn$ ^(cat|bmm|unsqueeze|expand)",
        more=ROTATION,
        changes=[
            (
                "        key_states = torch.cat((key_rot, key_pass), dim=-1)\n",
                "        if q_len > 1:\n            key_states = torch.cat((key_rot, key_pass), dim=-1)  # planted\n",
            )
        ],
    )
    yield _case(
        "position_offset",
        "opt",
        "right",
        changes=[
            (
                "return super().forward(position_ids + self.offset)",
                "return super().forward(position_ids + self.offset - 1)  # planted",
            )
        ],
    )
    yield _case(
        "position_offset",
        "bart",
        "decoder",
        changes=[
            ("return super().forward(position_ids + self.offset)", "return super().forward(position_ids)  # planted")
        ],
    )
    yield _case(
        "bias_not_moved",
        "t5",
        "decoder",
        "relative_attention_bias .",
        "~relative_|position_bias|context_position|memory_position",
        changes=[
            (
                "input_shape[1], key_length, device=query_states.device, past_seen_tokens=past_seen_tokens",
                "input_shape[1], key_length, device=query_states.device, past_seen_tokens=0  # planted",
            )
        ],
    )
    yield _case(
        "slopes_reversed",
        "bloom",
        "left",
        changes=[
            (
                "slopes = _get_alibi_slopes(num_heads, attention_mask.device)",
                "slopes = _get_alibi_slopes(num_heads, attention_mask.device).flip(0)  # planted",
            ),
            ("alibi = slopes[..., None] * arange_tensor", "alibi = slopes[..., None] * arange_tensor  # planted"),
        ],
    )


def attention() -> Iterator[Case]:
    """Wrong heads, softmax, norms and caches of attention."""
    yield _case(
        "kv_heads",
        "llama",
        "right",
        "self_attn$ ^(bmm|_?scaled_dot)",
        changes=[
            (
                "    if n_rep == 1:\n        return hidden_states\n",
                "    return hidden_states.repeat(1, n_rep, 1, 1)  # planted\n",
            )
        ],
    )
    yield _case(
        "kv_heads",
        "qwen2moe",
        "batch4",
        "self_attn$ ^(bmm|_?scaled_dot)",
        changes=[
            (
                "value_states = repeat_kv(value, module.num_key_value_groups)",
                "value_states = value.repeat(1, module.num_key_value_groups, 1, 1)  # planted",
            )
        ],
    )
    yield _case(
        "kv_heads_narrow",
        "phi3",
        "right",
        "self_attn$ ^(bmm|_?scaled_dot)",
        common={"dtype": BF16},
        bound=0.25,
        changes=[
            (
                "    if n_rep == 1:\n        return hidden_states\n",
                "    return hidden_states.repeat(1, n_rep, 1, 1)  # planted\n",
            )
        ],
    )
    softmax = "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)"
    yield _case(
        "softmax_type",
        "mixtral",
        "plain",
        bound=2e-4,
        changes=[(softmax, softmax.replace("float32", "bfloat16") + "  # planted")],
    )
    yield _case(
        "softmax_type",
        "starcoder2",
        "right",
        bound=2e-4,
        changes=[(softmax, softmax.replace("float32", "bfloat16") + "  # planted")],
    )
    yield _case(
        "scale",
        "llama",
        "beams",
        changes=[
            (
                "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling",
                "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) / "
                "(query.shape[-1] * 2) ** 0.5  # planted",
            )
        ],
    )
    yield _case(
        "scale_lost",
        "olmo2",
        "packed",
        r"self_attn$ ^(mul|add|bmm)",
        changes=[
            (
                "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling",
                "attn_weights = torch.matmul(query, key_states.transpose(2, 3))  # planted",
            )
        ],
    )
    yield _case(
        "key_norm_lost",
        "qwen3",
        "generate",
        "k_norm .",
        "k_proj .",
        changes=[
            (
                "key_states = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)",
                "key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # planted",
            )
        ],
    )
    yield _case(
        "query_norm_lost",
        "olmoe",
        "right",
        "q_norm .",
        "q_proj .",
        changes=[
            (
                "query_states = self.q_norm(self.q_proj(hidden_states))",
                "query_states = self.q_proj(hidden_states)  # planted",
            )
        ],
    )
    yield _case(
        "norms_behind_rotation",
        "qwen3",
        "right",
        "(q|k)_norm .",
        "(q|k)_proj .",
        changes=[
            (
                "query_states = self.q_norm(self.q_proj(hidden_states).view(hidden_shape)).transpose(1, 2)",
                "query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # planted",
            ),
            (
                "key_states = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)",
                "key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # planted",
            ),
            (
                "        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n",
                "        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n"
                "        query_states, key_states = self.q_norm(query_states), self.k_norm(key_states)  # planted\n",
            ),
        ],
    )
    yield _case(
        "head_norms_lost",
        "cohere",
        "plain",
        "(q|k)_norm .",
        "(q|k)_proj .",
        r"self_attn$ ^(view|transpose|mul)",
        edit=_weights_of("cohere"),
        use_qk_norm=False,
    )
    yield _case(
        "latent_norm_lost",
        "deepseek3",
        "plain",
        "kv_a_layernorm .",
        "kv_b_proj .",
        r"self_attn$ ^(view|split|cat)",
        changes=[("        kv_nope = self.kv_a_layernorm(kv_nope)\n", "")],
    )
    yield _case(
        "sinks_lost",
        "gptoss",
        "static",
        r"self_attn$ ^(cat|sub|_?softmax|slice|amax|max)",
        changes=[
            (
                "probs = F.softmax(combined_logits, dim=-1, dtype=combined_logits.dtype)",
                "probs = F.softmax(combined_logits[..., :-1], dim=-1, dtype=combined_logits.dtype)  # planted",
            ),
            ("scores = probs[..., :-1]  # we drop the sink here", "scores = probs  # planted"),
        ],
    )
    yield _case(
        "split_of_qkv",
        "phi3",
        "right",
        changes=[
            (
                "key_states = qkv[..., query_pos : query_pos + self.num_key_value_heads * self.head_dim]",
                "value_states = qkv[..., query_pos : query_pos + self.num_key_value_heads * self.head_dim]  # planted",
            ),
            (
                "value_states = qkv[..., query_pos + self.num_key_value_heads * self.head_dim :]",
                "key_states = qkv[..., query_pos + self.num_key_value_heads * self.head_dim :]  # planted",
            ),
        ],
        more=(*ROTATION, *places("self_attn$ ^bmm")),
    )
    yield _case(
        "split_of_qkv",
        "gpt2",
        "right",
        "attn$ ^(split|view|transpose|cat|bmm)",
        changes=[
            (
                "query_states, key_states, value_states = self.c_attn(hidden_states).split(self.split_size, dim=2)",
                "query_states, value_states, key_states = "
                "self.c_attn(hidden_states).split(self.split_size, dim=2)  # planted",
            )
        ],
    )
    yield _case(
        "split_of_heads",
        "bloom",
        "plain",
        "self_attention$ ^(view|select|transpose|slice|cat|clone|baddbmm)",
        changes=[
            (
                "fused_qkv = fused_qkv.view(batch_size, seq_length, self.num_heads, 3, self.head_dim)",
                "fused_qkv = fused_qkv.view(batch_size, seq_length, 3, self.num_heads, -1).transpose(2, 3)  # planted",
            )
        ],
    )


def layers() -> Iterator[Case]:
    """Residuals, norms and products of feed-forward networks that are wrong or missing."""
    feed = "        hidden_states = self.mlp(hidden_states)\n        hidden_states = residual + hidden_states\n"
    after = (r"layers\.\d$ .", r"layers\.\d\.input_layernorm .", r"layers\.\d\.mlp\.down_proj .")
    yield _case(
        "residual_dropped",
        "llama",
        "right",
        *after,
        changes=[(feed, "        hidden_states = self.mlp(hidden_states)\n")],
    )
    yield _case(
        "residual_of_norm",
        "qwen3",
        "train",
        changes=[
            (
                "        residual = hidden_states\n        hidden_states = self.input_layernorm(hidden_states)\n",
                "        hidden_states = self.input_layernorm(hidden_states)\n        residual = hidden_states\n",
            )
        ],
        more=places(r"layers\.\d$ ^add"),
    )
    yield _case(
        "residual_narrow",
        "granite",
        "left",
        *after,
        common={"dtype": BF16},
        bound=0.25,
        changes=[
            (
                "hidden_states = self.mlp(hidden_states)\n        hidden_states = residual + "
                "hidden_states * self.residual_multiplier",
                "hidden_states = self.mlp(hidden_states)\n        hidden_states = residual + hidden_states  # planted",
            )
        ],
    )
    yield _case(
        "norm_twice",
        "mistral",
        "right",
        "input_layernorm .",
        changes=[
            (
                "hidden_states = self.input_layernorm(hidden_states)",
                "hidden_states = self.input_layernorm(self.input_layernorm(hidden_states))  # planted",
            )
        ],
    )
    yield _case(
        "post_norm_lost",
        "glm4",
        "right",
        "post_self_attn_layernorm .",
        r"layers\.0$ ^add",
        "o_proj .",
        changes=[("        hidden_states = self.post_self_attn_layernorm(hidden_states)\n", "")],
    )
    yield _case(
        "post_norm_lost",
        "gemma2",
        "plain",
        "post_feedforward_layernorm .",
        r"layers\.0$ ^add",
        r"layers\.0\.mlp .",
        changes=[("        hidden_states = self.post_feedforward_layernorm(hidden_states)\n", "")],
    )
    yield _case(
        "norm_without_one",
        "gemma2",
        "right",
        "norm$ ^(mul|add|_to_copy)",
        changes=[("output = output * (1.0 + self.weight.float())", "output = output * self.weight.float()  # planted")],
    )
    yield _case(
        "embedding_scale_lost",
        "gemma3",
        "plain",
        "embed_tokens .",
        changes=[
            (
                "return super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)",
                "return super().forward(input_ids)  # planted",
            )
        ],
    )
    yield _case(
        "serial_residual",
        "neox",
        "right",
        r"layers\.0$ ^add",
        r"layers\.0\.post_attention_layernorm .",
        use_parallel_residual=False,
    )
    yield _case(
        "norm_order",
        "opt",
        "plain",
        r"layers\.0\.self_attn_layer_norm .",
        r"layers\.0$ .",
        r"layers\.0\.self_attn\.\w+_proj .",
        do_layer_norm_before=False,
    )
    yield _case(
        "residual_of_norm",
        "bloom",
        "batch4",
        r"h\.0 ^(add|native_layer_norm)",
        apply_residual_connection_post_layernorm=True,
    )
    yield _case(
        "gate_and_up",
        "phi3",
        "chunked",
        r"mlp$ ^mul",
        r"mlp\.activation_fn .",
        changes=[
            ("gate, up_states = up_states.chunk(2, dim=-1)", "up_states, gate = up_states.chunk(2, dim=-1)  # planted")
        ],
    )
    yield _case(
        "residual_lost",
        "phi",
        "right",
        r"layers\.0$ ^add",
        r"layers\.1\.input_layernorm .",
        changes=[
            (
                "hidden_states = attn_outputs + feed_forward_hidden_states + residual",
                "hidden_states = attn_outputs + feed_forward_hidden_states  # planted",
            )
        ],
    )
    yield _case(
        "parallel_input",
        "cohere",
        "function",
        changes=[("hidden_states_mlp = self.mlp(hidden_states)", "hidden_states_mlp = self.mlp(residual)  # planted")],
        more=places(r"layers\.0\.mlp\.(gate|up)_proj ."),
    )


def experts() -> Iterator[Case]:
    """Faults of routers and experts."""
    yield _case("renormalised", "qwen2moe", "right", more=ROUTER, norm_topk_prob=True)
    yield _case("not_renormalised", "qwen3moe", "packed", more=ROUTER, norm_topk_prob=False)
    yield _case(
        "not_renormalised",
        "mixtral",
        "right",
        more=ROUTER,
        changes=[("        router_top_value /= router_top_value.sum(dim=-1, keepdim=True)\n", "")],
    )
    yield _case("one_expert", "mixtral", "batch4", more=ROUTER, num_experts_per_tok=1)
    yield _case(
        "wrong_expert",
        "mixtral",
        "plain",
        r"mlp\.experts$ .",
        experts="eager",
        changes=[
            (
                "current_hidden_states = nn.functional.linear(current_hidden_states, self.down_proj[expert_idx])",
                "current_hidden_states = nn.functional.linear(current_hidden_states, "
                "self.down_proj[expert_idx - 1])  # planted",
            )
        ],
    )
    yield _case(
        "halves",
        "qwen3moe",
        "right",
        "experts$ ^(silu|mul|split)",
        r"experts\.act_fn .",
        common={"experts": "eager"},
        changes=[
            (
                "gate, up = nn.functional.linear(current_state, self.gate_up_proj[expert_idx]).chunk(2, dim=-1)",
                "up, gate = nn.functional.linear(current_state, "
                "self.gate_up_proj[expert_idx]).chunk(2, dim=-1)  # planted",
            )
        ],
    )
    yield _case(
        "weights_of_other_rank",
        "olmoe",
        "right",
        common={"experts": "eager"},
        changes=[
            (
                "current_hidden_states = current_hidden_states * top_k_weights[token_idx, top_k_pos, None]",
                "current_hidden_states = current_hidden_states * top_k_weights[token_idx, 0, None]  # planted",
            )
        ],
    )
    yield _case(
        "shared_gate_lost",
        "qwen2moe",
        "packed",
        "shared_expert_gate .",
        "mlp$ ^(mul|sigmoid|add)",
        changes=[
            (
                "        shared_expert_output = "
                "F.sigmoid(self.shared_expert_gate(hidden_states_reshaped)) * shared_expert_output\n",
                "",
            )
        ],
    )
    yield _case(
        "router_bias_lost",
        "deepseek3",
        "right",
        more=ROUTER,
        changes=[
            ("scores_for_choice = scores + self.e_score_correction_bias", "scores_for_choice = scores  # planted")
        ],
    )
    yield _case(
        "router_bias_in_weights",
        "deepseek3",
        "packed",
        changes=[
            (
                "topk_weights = scores.gather(1, topk_indices)",
                "topk_weights = (scores + self.e_score_correction_bias).gather(1, topk_indices)  # planted",
            )
        ],
    )
    yield _case("routed_scale_lost", "deepseek3", "train", "gate$ ^mul", more=ROUTER, routed_scaling_factor=1.0)
    yield _case("group_limit", "deepseek3", "left", more=ROUTER, topk_group=4)
    yield _case("not_renormalised", "deepseek3", "function", more=ROUTER, norm_topk_prob=False)
    yield _case(
        "shared_experts_lost",
        "deepseek3",
        "chunked",
        "shared_experts .",
        "mlp$ ^(add|view)",
        r"layers\.1$ ^add",
        changes=[("        hidden_states = hidden_states + self.shared_experts(residuals)\n", "")],
    )
    yield _case(
        "gate_without_one",
        "gptoss",
        "batch4",
        "experts$ ^(add|mul)",
        changes=[("gated_output = (up + 1) * glu", "gated_output = up * glu  # planted")],
    )
    yield _case(
        "router_type",
        "olmoe",
        "batch4",
        bound=2e-4,
        more=ROUTER,
        changes=[
            (
                "router_probs = torch.nn.functional.softmax(router_logits, dtype=torch.float, dim=-1)",
                "router_probs = torch.nn.functional.softmax(router_logits, dtype=torch.bfloat16, dim=-1)  # planted",
            )
        ],
    )
    # Tokens beyond the capacity of an expert are dropped: the answer depends on the batch.
    yield _case(
        "capacity",
        "mixtral",
        "rows",
        r"mlp\.experts$ ^(slice|index|where|select)",
        on="trainer",
        common={"experts": "eager"},
        changes=[
            (
                "            current_state = hidden_states[token_idx]\n",
                "            top_k_pos, token_idx = top_k_pos[:9], token_idx[:9]  # planted\n"
                "            current_state = hidden_states[token_idx]\n",
            )
        ],
    )


def weights() -> Iterator[Case]:
    """Weights that are stale, lost, transposed or not tied."""
    for design, scenario, path in (
        ("llama3rope", "right", "model.layers.1.mlp.down_proj.weight"),
        ("starcoder2", "plain", "model.layers.0.self_attn.k_proj.weight"),
        ("qwen3", "left", "model.layers.1.post_attention_layernorm.weight"),
        ("gemma3", "generate", "model.layers.2.mlp.gate_proj.weight"),
        ("olmo2", "batch4", "model.embed_tokens.weight"),
        ("glm4", "train", "lm_head.weight"),
        ("mixtral", "function", "model.layers.1.mlp.experts.down_proj"),
        ("deepseek3", "static", "model.layers.0.self_attn.kv_b_proj.weight"),
        ("falcon", "packed", "transformer.h.1.self_attention.query_key_value.weight"),
    ):
        module = path.rpartition(".")[0]
        accepted = f"^{module}$ .".replace(".", r"\.", module.count("."))
        yield _case(f"stale_{module.rpartition('.')[2]}", design, scenario, accepted, edit=stale(path))
    yield _case("transposed", "llama", "left", r"layers\.0\.self_attn\.o_proj .", edit=_transpose)
    yield _case("bias_lost", "stablelm", "right", "(q|k|v)_proj .", edit=_weights_of("stablelm"), use_qkv_bias=False)
    yield _case(
        "bias_lost",
        "llama_linear",
        "plain",
        r"layers\.0\.mlp\.down_proj .",
        edit=assign("model.layers.0.mlp.down_proj.bias", None),
    )
    yield _case(
        "bias_zero",
        "qwen2",
        "batch4",
        r"layers\.1\.self_attn\.v_proj .",
        edit=lambda model: model.model.layers[1].self_attn.v_proj.bias.zero_(),
    )
    yield _case("head_not_tied", "qwen2", "right", "lm_head .", tie_word_embeddings=False, edit=_untie)


def _transpose(model: Any) -> None:
    weight = model.model.layers[0].self_attn.o_proj.weight
    weight.copy_(weight.T.clone())


def _untie(model: Any) -> None:
    """Give the embeddings of the tied model to a model whose head keeps its own random weights."""
    sound = build("qwen2").state_dict()
    model.load_state_dict({name: value for name, value in sound.items() if name != "lm_head.weight"}, strict=False)


def batches() -> Iterator[Case]:
    """Faults between the requests of a batch, and between steps."""
    yield _case(
        "norm_over_batch",
        "llama",
        "rows",
        on="trainer",
        changes=[
            (
                "variance = hidden_states.pow(2).mean(-1, keepdim=True)",
                "variance = hidden_states.pow(2).mean((0, -1), keepdim=True)  # planted",
            )
        ],
        more=places("norm$ ^mean"),
    )
    yield _case(
        "leak_of_values",
        "qwen3",
        "rows",
        r"self_attn$ ^(bmm|roll|transpose|clone|cat|expand|add|mul)",
        on="trainer",
        changes=[
            (
                "    attn_output = torch.matmul(attn_weights, value_states)\n",
                "    value_states = 0.9 * value_states + 0.1 * value_states.roll(1, 0)  # planted\n"
                "    attn_output = torch.matmul(attn_weights, value_states)\n",
            )
        ],
    )
    yield _case(
        "state_kept",
        "qwen2",
        "twice",
        more=ROTARY,
        changes=[
            (
                "        freqs = position_ids[..., None].float() *",
                "        position_ids = position_ids + getattr(self, 'seen', 0) * torch.arange(8)  # planted\n"
                "        self.seen = 1\n        freqs = position_ids[..., None].float() *",
            )
        ],
    )
    yield _case(
        "cap_kept",
        "mistral",
        "twice",
        changes=[
            (
                "    attn_output = torch.matmul(attn_weights, value_states)\n",
                "    limit = getattr(module, 'limit', float('inf'))\n"
                "    value_states = value_states.clamp(-limit, limit)  # planted\n    module.limit = 1.0\n"
                "    attn_output = torch.matmul(attn_weights, value_states)\n",
            )
        ],
    )


def calls() -> Iterator[Case]:
    """Models that are right and are called wrongly, by the rollout or the trainer."""

    def mask_lost(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("llama"), THREE, a, masked=False)
        return hf.odds_of(answers), hf.score(build("llama"), answers, b)

    def mask_lost_in_rows(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("phi"), THREE, b, masked=False)
        alone = hf.rollout(build("phi"), THREE[1:2], a, forced=answers[1:2])
        return hf.odds_of(alone), hf.odds_of(answers[1:2])

    def padding_counted(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("gpt2"), THREE, a, counts_padding=True)
        return hf.odds_of(answers), hf.score(build("gpt2"), answers, b)

    def chunk_restarts(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("llama_yarn"), ONE, a, chunk=4, restarts=True)
        return hf.odds_of(answers), hf.score(build("llama_yarn"), answers, b, masked=False)

    def beams_not_reordered(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.beams(build("llama"), ONE[0], a, reorders=False)
        return hf.odds_of(answers), hf.score(build("llama"), answers, b)

    def encoder_mask_lost(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout_decoder(build("bart"), THREE, a, keeps_mask=False)
        return hf.odds_of(answers), hf.score_decoder(build("bart"), THREE, answers, b)

    def packed_leak(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("qwen3"), THREE, a, sampled=True)
        return hf.odds_of(answers), hf.score_packed(build("qwen3", attention="sdpa"), answers, b, leaks=True)

    def temperature_of_rollout(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        def head(logits: Tensor) -> Tensor:
            return logits / 0.7  # planted

        answers = hf.rollout(build("qwen3"), FOUR, a, head=head, sampled=True)
        return hf.odds_of(answers), hf.score_function(build("qwen3"), answers, b)

    def temperature_of_trainer(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("llama"), THREE, a, sampled=True)
        return hf.odds_of(answers), hf.score_function(build("llama"), answers, b, temperature=0.8)

    yield Case("llama-mask_lost", mask_lost, CLEAR, places=MASKS)
    yield Case("phi-mask_lost_in_batch", mask_lost_in_rows, CLEAR, options={"rows": {0: 1}}, places=MASKS)
    yield Case("gpt2-padding_counted", padding_counted, CLEAR, places=places("wpe .", "^transformer$ ."))
    yield Case("llama_yarn-chunk_restarts", chunk_restarts, CLEAR, places=(*ROTARY, *places("^model$ .")))
    yield Case(
        "llama-beams_not_reordered",
        beams_not_reordered,
        CLEAR,
        places=places(r"self_attn$ ^(cat|index_select|index|unsqueeze|expand|clone|bmm)"),
    )
    yield Case(
        "bart-encoder_mask_lost",
        encoder_mask_lost,
        CLEAR,
        places=(*MASKS, *places("encoder_attn$ ^(add|_?softmax|bmm|where)")),
    )
    yield Case("qwen3-packed_leak", packed_leak, CLEAR, places=MASKS)
    yield Case("qwen3-temperature", temperature_of_rollout, CLEAR, places=places("~temperature|log_softmax"))
    yield Case("llama-temperature_of_trainer", temperature_of_trainer, CLEAR, places=places("~temperature|log_softmax"))


def of_trainers() -> Iterator[Case]:
    """Faults on the side of the trainer."""
    yield _case(
        "trainer_eps",
        "llama3rope",
        "train",
        r"layers\.2\.input_layernorm$ ^(add|rsqrt)",
        on="trainer",
        edit=assign("model.layers.2.input_layernorm.variance_epsilon", 0.05),
    )
    yield _case(
        "trainer_theta",
        "phi3",
        "packed",
        more=ROTARY,
        on="trainer",
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    yield _case(
        "trainer_stale",
        "qwen2",
        "function",
        r"layers\.0\.mlp\.up_proj .",
        on="trainer",
        edit=stale("model.layers.0.mlp.up_proj.weight"),
    )
    yield _case(
        "trainer_cap_lost",
        "gemma2",
        "train",
        r"self_attn$ ^(div|tanh|mul|add|_?softmax)",
        on="trainer",
        attn_logit_softcapping=None,
    )
    yield _case("trainer_window", "mistral", "train", more=MASKS, on="trainer", sliding_window=5)
    yield _case("trainer_multiplier", "granite", "function", r"layers\.\d$ ^mul", on="trainer", residual_multiplier=0.8)
    yield _case("trainer_renormalised", "olmoe", "right", more=ROUTER, on="trainer", norm_topk_prob=True)


def cases() -> list[Case]:
    """Return the faults of transformers models."""
    groups = (numbers, rotations, attention, layers, experts, weights, batches, calls, of_trainers)
    return [case for group in groups for case in group()]
