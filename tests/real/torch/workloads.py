"""Models that this project did not write, trained, evaluated and generated from.

Imported by the tests, and run by them as a script: `python workloads.py llama result.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    get_linear_schedule_with_warmup,
)

VOCABULARY = 128
TRAIN_STEPS = 4
NEW_TOKENS = 5


class Outcome(NamedTuple):
    """Everything a run computed, exact: floats as hexadecimal text."""

    losses: list[str]
    evaluations: list[str]
    parameters: str
    tokens: list[list[int]]


def make_llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**{**config, **settings})).train()


def make_bert(**settings: Any) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "num_labels": 3,
    }
    return BertForSequenceClassification(BertConfig(**{**config, **settings})).train()


def make_batch(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The next random batch; padded at the end for BERT."""
    ids = torch.randint(3, VOCABULARY, (2, 12))
    if isinstance(getattr(model, "_orig_mod", model), LlamaForCausalLM):
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 2])}


def train(model: torch.nn.Module, steps: int = TRAIN_STEPS, **optimizer: Any) -> list[str]:
    """Losses of a few steps with AdamW, clipping, warm-up and decay."""
    torch.manual_seed(1)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    schedule = get_linear_schedule_with_warmup(adamw, 1, steps + 2)
    losses = []
    for _ in range(steps):
        loss = model(**make_batch(model)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        schedule.step()
        adamw.zero_grad()
        losses.append(loss.item().hex())
    return losses


def evaluate(model: torch.nn.Module) -> list[str]:
    """The loss in no_grad and in inference_mode."""
    torch.manual_seed(2)
    model.eval()
    losses = []
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            losses.append(model(**make_batch(model)).loss.item().hex())
    model.train()
    return losses


def generate(model: torch.nn.Module) -> list[list[int]]:
    """Tokens generated greedily, then sampled; each new token is one forward call."""
    torch.manual_seed(3)
    model.eval()
    ids = torch.randint(3, VOCABULARY, (2, 6))
    tokens = []
    for sample in (False, True):
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            do_sample=sample,
        )
        tokens += made.tolist()
    model.train()
    return tokens


def run(model: torch.nn.Module, **optimizer: Any) -> Outcome:
    """Calls 0-3 train, 4 and 5 evaluate; the Llama generates with 10 more."""
    losses = train(model, **optimizer)
    evaluations = evaluate(model)
    tokens = generate(model) if isinstance(model, LlamaForCausalLM) else []
    return Outcome(losses, evaluations, digest(model), tokens)


def digest(model: torch.nn.Module) -> str:
    """A hash of every parameter and buffer."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


MODELS = {"llama": make_llama, "bert": make_bert}


def main() -> None:
    name, where = sys.argv[1:]
    outcome = run(MODELS[name]())
    with open(where, "w") as file:
        json.dump(outcome._asdict(), file)


if __name__ == "__main__":
    main()
