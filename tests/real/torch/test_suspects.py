"""Healthy trainings of models of `transformers`: triage names no suspect; with a planted fault, the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

import ascend_dump
from ascend_dump import Triage

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def llama() -> tuple[Any, Callable[[], dict[str, Any]]]:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **SMALL))

    def batch() -> dict[str, Any]:
        tokens = torch.randint(0, 64, (4, 16))
        mask = torch.ones_like(tokens)
        mask[0, : int(torch.randint(1, 8, ()))] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}

    return model, batch


def bert() -> tuple[Any, Callable[[], dict[str, Any]]]:
    model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=32, **SMALL))

    def batch() -> dict[str, Any]:
        tokens = torch.randint(0, 64, (4, 16))
        mask = torch.ones_like(tokens)
        mask[1, int(torch.randint(4, 12, ())) :] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.randint(0, 2, (4,))}

    return model, batch


def vit() -> tuple[Any, Callable[[], dict[str, Any]]]:
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_labels=5, **SMALL))
    return model, lambda: {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 5, (4,))}


def trained(path: Path, made: tuple[Any, Callable[[], dict[str, Any]]], before: Callable[[int], Any]) -> Triage:
    model, batch = made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ascend_dump.capture(path=path, data="stats") as cap:
        for step in range(4):
            if step:
                cap.step()
            before(step)
            optimizer.zero_grad()
            model(**batch()).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return ascend_dump.triage(cap.path)


@pytest.mark.parametrize("make", [llama, bert, vit])
def test_a_healthy_training_has_no_suspect(tmp_path: Path, make: Any) -> None:
    torch.manual_seed(0)
    found = trained(tmp_path, make(), lambda step: None)
    assert found.suspects == ()
    assert found.reasons == ()
    assert found.next is None


def test_a_norm_whose_weight_explodes_is_named_before_what_follows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = llama()

    def explode(step: int) -> None:
        if step == 3:
            made[0].model.layers[1].post_attention_layernorm.weight.data.mul_(500)

    found = trained(tmp_path, made, explode)
    first = found.suspects[0]
    assert (first.rule, first.module, first.step) == ("growth", "model.layers.1.post_attention_layernorm", 3)
    assert found.next is not None
    assert str(found.next.steps) == "3"
