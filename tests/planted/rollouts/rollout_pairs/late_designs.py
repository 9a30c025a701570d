"""Small random models of further designs, for the `late-` cases."""

from typing import Any

from rollout_pairs.designs import DESIGNS, Design

_BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GROUPS = {
    **_MOE,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.6,
    "norm_topk_prob": True,
}
_TEXT_PAIR = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 2,
}
_DECODER = ("num_key_value_heads", "intermediate_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def _design(stem: str, leave_out: tuple[str, ...] = (), suffix: str = "ForCausalLM", **values: Any) -> Design:
    base = {name: value for name, value in _BASE.items() if name not in leave_out}
    return Design(f"{stem}{suffix}", f"{stem}Config", {**base, **values})


LATE: dict[str, Design] = {
    # Dense decoders.
    "arcee": _design("Arcee", head_dim=16),
    "seed_oss": _design("SeedOss", head_dim=16, num_hidden_layers=3, residual_dropout=0.0),
    "ernie45": _design("Ernie4_5", head_dim=16, use_bias=False),
    "hunyuan": _design("HunYuanDenseV1", head_dim=16),
    "helium": _design("Helium", head_dim=12),
    "olmo": _design("Olmo", clip_qkv=1.5),
    "olmo3": _design(
        "Olmo3",
        num_hidden_layers=4,
        sliding_window=6,
        layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING],
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            _FULL: {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0},
        },
    ),
    "cohere2": _design(
        "Cohere2",
        num_hidden_layers=3,
        head_dim=12,
        sliding_window=6,
        layer_types=[_SLIDING, _FULL, _SLIDING],
        logit_scale=0.5,
        tie_word_embeddings=True,
    ),
    "exaone4": _design(
        "Exaone4", num_hidden_layers=3, head_dim=16, sliding_window=6, layer_types=[_SLIDING, _FULL, _SLIDING]
    ),
    "apertus": _design("Apertus", head_dim=12),
    "nemotron": _design("Nemotron", head_dim=16, partial_rotary_factor=0.5),
    "persimmon": _design("Persimmon", ("num_key_value_heads",), partial_rotary_factor=0.5),
    "diffllama": _design("DiffLlama", head_dim=12),
    "gemma": _design("Gemma", head_dim=16, num_key_value_heads=1, tie_word_embeddings=True),
    "vaultgemma": _design(
        "VaultGemma",
        head_dim=12,
        query_pre_attn_scalar=20,
        sliding_window=7,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=6.0,
        tie_word_embeddings=True,
    ),
    "bitnet": _design("BitNet"),
    "codegen": _design(
        "CodeGen",
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=128,
        n_ctx=128,
        rotary_dim=8,
    ),
    "bigcode": _design(
        "GPTBigCode",
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=128,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        multi_query=True,
        tie_word_embeddings=True,
    ),
    "gptneo": _design(
        "GPTNeo",
        ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=5,
        attention_dropout=0.0,
        embed_dropout=0.0,
        resid_dropout=0.0,
        tie_word_embeddings=True,
    ),
    "biogpt": _design(
        "BioGpt",
        ("num_key_value_heads",),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
    ),
    "xglm": _design(
        "XGLM",
        _DECODER,
        d_model=48,
        ffn_dim=64,
        num_layers=2,
        attention_heads=4,
        dropout=0.0,
        attention_dropout=0.0,
        tie_word_embeddings=True,
    ),
    # Experts.
    "phimoe": _design("Phimoe", num_local_experts=4, num_experts_per_tok=2, sliding_window=None, attention_bias=True),
    "ernie45moe": _design(
        "Ernie4_5_Moe",
        moe_num_experts=6,
        moe_k=2,
        moe_intermediate_size=24,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        moe_layer_end_index=1,
        moe_layer_interval=1,
    ),
    "hunyuanmoe": _design("HunYuanMoEV1", head_dim=16, num_experts=4, moe_topk=2),
    "glm4moe": _design("Glm4Moe", **_GROUPS, head_dim=16, partial_rotary_factor=0.5, use_qk_norm=True),
    "dots1": _design("Dots1", **_GROUPS, head_dim=16),
    "deepseek2": _design(
        "DeepseekV2",
        **{**_GROUPS, "norm_topk_prob": False},
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=12,
        topk_method="group_limited_greedy",
    ),
    "granitemoe": _design(
        "GraniteMoe",
        num_local_experts=4,
        num_experts_per_tok=2,
        embedding_multiplier=1.4,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=1.3,
    ),
    "granitemoeshared": _design(
        "GraniteMoeShared",
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=40,
        embedding_multiplier=1.4,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=1.3,
    ),
    "flexolmo": _design("FlexOlmo", num_experts=5, num_experts_per_tok=2),
    "jetmoe": _design("JetMoe", ("num_attention_heads",), num_key_value_heads=4, kv_channels=12, num_local_experts=4),
    "minimaxm2": _design("MiniMaxM2", head_dim=16, num_local_experts=4, num_experts_per_tok=2, rotary_dim=8),
    "dbrx": _design(
        "Dbrx",
        (*_DECODER, "max_position_embeddings"),
        d_model=48,
        n_heads=4,
        n_layers=2,
        max_seq_len=128,
        attn_config={"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 48},
    ),
    # State or convolutions beside attention.
    "lfm2": _design(
        "Lfm2",
        num_hidden_layers=3,
        layer_types=["conv", _FULL, "conv"],
        block_auto_adjust_ff_dim=False,
        conv_L_cache=3,
    ),
    # Encoder and decoder.
    "mbart": _design("MBart", _DECODER, "ForConditionalGeneration", **_TEXT_PAIR),
    "pegasus": _design("Pegasus", _DECODER, "ForConditionalGeneration", **_TEXT_PAIR, scale_embedding=True),
    "m2m": _design("M2M100", _DECODER, "ForConditionalGeneration", **_TEXT_PAIR),
}

DESIGNS.update(LATE)
