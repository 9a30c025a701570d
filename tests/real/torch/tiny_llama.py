"""A Llama of random weights, small enough to run many requests in a test."""

from __future__ import annotations

from typing import Any

import torch
import transformers

__all__ = ["tiny_llama"]


def tiny_llama(**settings: Any) -> Any:
    """The same weights each time; settings: of `LlamaConfig`, besides the sizes."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, **settings)).eval()
