"""Small random models of transformers, one a design."""

import importlib
import logging
import math
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple, Optional

import torch
import transformers
from torch import nn

VOCABULARY = 97
POSITIONS = 128

logging.getLogger("transformers").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="transformers")


class Design(NamedTuple):
    """The name of a model class, its configuration class and the values of the configuration."""

    model: str
    config: str
    values: Mapping[str, Any]

    @property
    def module(self) -> str:
        """The module of transformers that defines the model."""
        return getattr(transformers, self.model).__module__


_BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}


def _rope(theta: float = 10000.0, **values: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **values}


_LLAMA3_ROPE = _rope(
    rope_type="llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
_YARN_ROPE = _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
_LINEAR_ROPE = _rope(rope_type="linear", factor=2.0)
_MOE = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _design(model: str, config: str, leave_out: tuple[str, ...] = (), **values: Any) -> Design:
    base = {name: value for name, value in _BASE.items() if name not in leave_out}
    return Design(model, config, {**base, **values})


DESIGNS: dict[str, Design] = {
    "llama": _design("LlamaForCausalLM", "LlamaConfig"),
    "llama3rope": _design("LlamaForCausalLM", "LlamaConfig", rope_parameters=_LLAMA3_ROPE, num_hidden_layers=3),
    "llama_yarn": _design("LlamaForCausalLM", "LlamaConfig", rope_parameters=_YARN_ROPE, attention_bias=True),
    "llama_linear": _design("LlamaForCausalLM", "LlamaConfig", rope_parameters=_LINEAR_ROPE, mlp_bias=True),
    "mistral": _design("MistralForCausalLM", "MistralConfig", sliding_window=6),
    "qwen2": _design("Qwen2ForCausalLM", "Qwen2Config", tie_word_embeddings=True),
    "qwen3": _design("Qwen3ForCausalLM", "Qwen3Config", head_dim=16),
    "qwen2moe": _design(
        "Qwen2MoeForCausalLM", "Qwen2MoeConfig", **_MOE, shared_expert_intermediate_size=48, norm_topk_prob=False
    ),
    "qwen3moe": _design("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_MOE, head_dim=16, norm_topk_prob=True),
    "mixtral": _design(
        "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
    "olmoe": _design("OlmoeForCausalLM", "OlmoeConfig", num_experts=6, num_experts_per_tok=3),
    "olmo2": _design("Olmo2ForCausalLM", "Olmo2Config"),
    "gemma2": _design(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        head_dim=12,
        query_pre_attn_scalar=20,
        sliding_window=7,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=6.0,
        tie_word_embeddings=True,
    ),
    "gemma3": _design(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        head_dim=12,
        query_pre_attn_scalar=16,
        sliding_window=6,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        tie_word_embeddings=True,
    ),
    "deepseek3": _design(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=12,
        n_routed_experts=8,
        num_local_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.7,
        norm_topk_prob=True,
    ),
    "neox": _design("GPTNeoXForCausalLM", "GPTNeoXConfig", ("num_key_value_heads", "hidden_size"), hidden_size=64),
    "gptj": _design(
        "GPTJForCausalLM",
        "GPTJConfig",
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        rotary_dim=8,
    ),
    "gpt2": _design(
        "GPT2LMHeadModel",
        "GPT2Config",
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        tie_word_embeddings=True,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    ),
    "opt": _design(
        "OPTForCausalLM", "OPTConfig", ("num_key_value_heads",), ffn_dim=64, word_embed_proj_dim=48, dropout=0.0
    ),
    "bloom": _design(
        "BloomForCausalLM", "BloomConfig", ("num_hidden_layers", "num_attention_heads"), n_layer=2, n_head=4
    ),
    "falcon": _design(
        "FalconForCausalLM",
        "FalconConfig",
        ("num_key_value_heads",),
        num_kv_heads=2,
        new_decoder_architecture=True,
        ffn_hidden_size=96,
        tie_word_embeddings=True,
    ),
    "phi": _design("PhiForCausalLM", "PhiConfig", num_key_value_heads=4, partial_rotary_factor=0.5),
    "phi3": _design("Phi3ForCausalLM", "Phi3Config", sliding_window=None),
    "cohere": _design("CohereForCausalLM", "CohereConfig", logit_scale=0.4, use_qk_norm=True, tie_word_embeddings=True),
    "granite": _design(
        "GraniteForCausalLM",
        "GraniteConfig",
        embedding_multiplier=1.5,
        residual_multiplier=0.6,
        attention_multiplier=0.2,
        logits_scaling=1.4,
    ),
    "stablelm": _design("StableLmForCausalLM", "StableLmConfig", partial_rotary_factor=0.5, use_qkv_bias=True),
    "starcoder2": _design("Starcoder2ForCausalLM", "Starcoder2Config", sliding_window=None, tie_word_embeddings=True),
    "glm4": _design("Glm4ForCausalLM", "Glm4Config", head_dim=12, partial_rotary_factor=0.5, attention_bias=True),
    "gptoss": _design(
        "GptOssForCausalLM",
        "GptOssConfig",
        head_dim=12,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=_rope(),
    ),
    "t5": _design(
        "T5ForConditionalGeneration",
        "T5Config",
        ("num_key_value_heads", "intermediate_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        d_model=48,
        d_kv=12,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=2,
    ),
    "bart": _design(
        "BartForConditionalGeneration",
        "BartConfig",
        ("num_key_value_heads", "intermediate_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        dropout=0.0,
        tie_word_embeddings=True,
        decoder_start_token_id=2,
    ),
    "smollm3": _design("SmolLM3ForCausalLM", "SmolLM3Config", num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
}


def rescale(model: nn.Module, seed: int) -> None:
    """Fill the parameters with numbers of the size that training leads to: attention and norms matter then."""
    generator = torch.Generator().manual_seed(seed)
    is_tied = bool(model.config.tie_word_embeddings)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in embeddings:
                # A tied head makes the logits as wide as the embeddings are.
                parameter.copy_(noise * (0.25 if is_tied else 0.7))
            elif parameter.dim() > 1:
                # Queries and keys are wider, or attention would be almost uniform.
                gain = 1.6 if any(part in name for part in ("q_proj", "k_proj", "qkv", "query_key")) else 1.1
                parameter.copy_(noise * gain / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(noise * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)


def build(
    name: str,
    *,
    attention: str = "eager",
    dtype: torch.dtype = torch.float32,
    seed: int = 11,
    code: Optional[ModuleType] = None,
    experts: Optional[str] = None,
    **values: Any,
) -> Any:
    """Return the model of a design. code: another module than that of transformers; values: of the configuration."""
    design = DESIGNS[name]
    config = getattr(transformers, design.config)(**{**design.values, **values})
    config._attn_implementation = attention
    if experts:
        config._experts_implementation = experts
    module = code or importlib.import_module(design.module)
    torch.manual_seed(seed)
    model = getattr(module, design.model)(config)
    rescale(model, seed)
    return model.to(dtype).eval()
