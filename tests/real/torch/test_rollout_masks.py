"""Faults in attention whose scores are added to a mask of -3.4e38: the mask is no scale for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

import ascend_dump

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def made(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **settings})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def rollout(path: Path, model: Any, lengths: tuple[int, ...]) -> list[list[int]]:
    """Return the sequences of requests that are decoded one after another, each with a cache of its own."""
    sequences = [torch.randint(3, 64, (length,)).tolist() for length in lengths]
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0-99"):
        for sequence in sequences:
            cache, part = transformers.DynamicCache(config=model.config), sequence
            for _ in range(4):
                logits = model(input_ids=torch.tensor([part]), past_key_values=cache, use_cache=True).logits
                part = [int(logits[0, -1].argmax())]
                sequence += part
    return sequences


def trainer(path: Path, model: Any, sequences: list[list[int]]) -> Path:
    """Run all sequences as one batch that is padded on the left."""
    width = max(map(len, sequences)) + 2
    ids = torch.tensor([[0] * (width - len(sequence)) + sequence for sequence in sequences])
    mask = torch.tensor([[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0"):
        model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    return path


def compared(path: Path, of_rollout: Any, of_trainer: Any, lengths: tuple[int, ...]) -> ascend_dump.Comparison:
    sequences = rollout(path / "rollout", of_rollout, lengths)
    return ascend_dump.compare(path / "rollout", trainer(path / "trainer", of_trainer, sequences), align="tokens")


def test_scores_without_a_cap(tmp_path: Path) -> None:
    right, wrong = (made("VaultGemma", attn_logit_softcapping=4.0, query_pre_attn_scalar=16, head_dim=8) for _ in "ab")
    wrong.model.layers[0].self_attn.attn_logit_softcapping = None
    assert compared(tmp_path / "right", right, right, (3, 8, 5)).verdict in ("equal", "noise")
    [origin, *_] = compared(tmp_path / "wrong", wrong, right, (3, 8, 5)).origins
    assert origin.module == "model.layers.0.self_attn"


def test_another_weight_of_a_norm_of_queries(tmp_path: Path) -> None:
    right, wrong = made("Olmo3"), made("Olmo3")
    with torch.no_grad():
        wrong.model.layers[0].self_attn.q_norm.weight.mul_(1.1)
    assert compared(tmp_path / "right", right, right, (9,)).verdict in ("equal", "noise")
    [origin, *_] = compared(tmp_path / "wrong", right, wrong, (9,)).origins
    assert origin.module == "model.layers.0.self_attn.q_norm"


#: Sizes of latent attention, in which queries and keys are made of several parts.
LATENT = {
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "layer_types": ["full_attention"] * 2,
}


def test_another_scale_in_other_attention(tmp_path: Path) -> None:
    """Operators that only one kind of attention needs tell nothing: the attention is named, and no part of a tensor."""
    right, wrong = made("DeepseekV3", **LATENT), made("DeepseekV3", **LATENT)
    wrong.set_attn_implementation("sdpa")
    assert compared(tmp_path / "right", wrong, right, (7, 9)).verdict in ("equal", "noise")
    wrong.model.layers[1].self_attn.scaling *= 1.3
    [origin, *_] = compared(tmp_path / "wrong", wrong, right, (7, 9)).origins
    assert origin.module == "model.layers.1.self_attn"
    assert "sdpa_attention.py" in origin.pair.record.source, "where the scale is an argument of an operator"
