"""A program in bfloat16 against the same in float32: rounding hides no fault, and a cast is no cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CohereConfig,
    CohereForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import ascend_dump
from ascend_dump.analysis.compare import Comparison

WORDS = 97
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=WORDS))


def bert() -> Any:
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SIZES, **no_dropout, vocab_size=WORDS, max_position_embeddings=64))


def cohere() -> Any:
    return CohereForCausalLM(CohereConfig(**SIZES, num_key_value_heads=2, vocab_size=WORDS, pad_token_id=0))


def experts() -> Any:
    of_experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **of_experts, num_key_value_heads=2, vocab_size=WORDS))


def no_change(model: Any) -> None:
    pass


def other_scale(model: Any) -> None:
    attention = next(module for module in model.modules() if hasattr(module, "scaling"))
    attention.scaling *= 1.3


def other_eps(model: Any) -> None:
    norm = [module for module in model.modules() if type(module).__name__.endswith(("LayerNorm", "RMSNorm"))][1]
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 0.05)


def relu(model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "intermediate_act_fn"))
    block.intermediate_act_fn = nn.ReLU()


def gelu(model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "act_fn"))
    block.act_fn = nn.GELU()


def train(path: Path, build: Callable[[], Any], change: Callable[[Any], None], kind: str = "float32") -> Path:
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # of the size that trained weights have, so that attention and norms matter
    change(model)
    if kind == "bfloat16":
        model = model.bfloat16()  # its buffers too, from which rotary embeddings are computed
    generator, optimizer = torch.Generator().manual_seed(1), torch.optim.SGD(model.parameters(), lr=0.01)
    with ascend_dump.capture(model, steps="0|1", path=path):
        for _ in range(2):
            ids = torch.randint(1, WORDS, (2, 12), generator=generator)
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[Callable[[], Any], Path]:
    folder = tmp_path_factory.mktemp("references")
    return {build: train(folder / build.__name__, build, no_change) for build in (llama, bert, cohere, experts)}


@pytest.fixture
def compared(
    references: dict[Callable[[], Any], Path], tmp_path: Path
) -> Callable[[Callable[[], Any], Callable[[Any], None], str], Comparison]:
    def compare(build: Callable[[], Any], change: Callable[[Any], None], kind: str) -> Comparison:
        return ascend_dump.compare(train(tmp_path / "actual", build, change, kind), references[build])

    return compare


@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
@pytest.mark.parametrize("build", [llama, bert, cohere])
def test_another_type_alone_is_noise(compared: Any, build: Any, kind: str) -> None:
    found = compared(build, no_change, kind)
    assert (found.verdict, found.origins, found.changed) == ("noise", (), ())


@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
def test_tokens_that_rounding_sends_to_other_experts_are_noise(compared: Any, kind: str) -> None:
    """Experts are counted in floating-point numbers, and the order of tokens is written to memory without a value.

    Gradients are multiplied with results of other experts: both factors of an element may be far off.
    """
    found = compared(experts, no_change, kind)
    assert (found.verdict, found.origins) == ("noise", ())
    assert any("indices or flags that rounding changed" in text for text in found.undefined)


@pytest.mark.parametrize(
    ("build", "change", "operator"),
    [
        (llama, other_scale, "model.layers.0.self_attn/_scaled_dot_product_flash_attention_for_cpu_0"),
        (llama, other_eps, "model.layers.0.post_attention_layernorm/add_0"),
        (bert, other_scale, "bert.encoder.layer.0.attention.self/_scaled_dot_product_flash_attention_for_cpu_0"),
        (bert, other_eps, "bert.encoder.layer.0.attention.output.LayerNorm/native_layer_norm_0"),
        (bert, relu, "bert.encoder.layer.0.intermediate.intermediate_act_fn/relu_0"),
        (experts, gelu, "model.layers.0.mlp.experts.act_fn/gelu_0"),
    ],
)
def test_a_fault_comes_before_what_only_casts(compared: Any, build: Any, change: Any, operator: str) -> None:
    found = compared(build, change, "bfloat16")
    assert found.verdict == "different"
    assert found.origins[0].op_name == operator


def test_another_setting_whose_effect_ends_is_the_origin(compared: Any) -> None:
    """The next norm of BERT removes what another eps changes: only the output of its own operator differs."""
    found = compared(bert, other_eps, "autocast")
    [origin] = found.origins
    assert origin.op_name == "bert.encoder.layer.0.attention.output.LayerNorm/native_layer_norm_0"
    assert "eps: 0.05 here, 1e-12 in the reference" in origin.evidence
    assert all(call.op_name == origin.op_name for call in found.changed)
