"""Checkpoints that transformers saves, and dumps of its models, against the layouts of engines and trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

import ascend_dump
from ascend_dump import WeightComparison, compare_weights

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def model_of(design: str) -> Any:
    name, settings = DESIGNS[design]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):  # zeros otherwise, in which no order shows
                parameter.normal_(std=0.02)
    return model


def joined(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights as vLLM has them, but for experts."""
    fused = {}
    for name, value in state.items():
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            fused[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif "gate_proj" in name:
            fused[name.replace("gate_proj", "gate_up_proj")] = torch.cat([value, state[name.replace("gate", "up")]])
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            fused[name] = value
    return fused


def changed(comparison: WeightComparison) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [
        (finding.relation, finding.actual, finding.reference)
        for finding in comparison.findings
        if finding.verdict not in ("equal", "noise")
    ]


@pytest.mark.parametrize("design", DESIGNS)
def test_what_transformers_saves(design: str, tmp_path: Path) -> None:
    """One file, shards with an index, and the state dict as the model has it in memory are the same weights."""
    model = model_of(design)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 1
    torch.save(model.state_dict(), tmp_path / "state.pt")
    for path in (tmp_path / "shards", tmp_path / "state.pt"):
        comparison = compare_weights(path, tmp_path / "whole")
        assert comparison.verdict == "equal", comparison.groups()
        assert not {"missing", "added"} & comparison.counts.keys()


@pytest.mark.parametrize("design", ["llama", "qwen2"])
def test_an_engine_and_its_faults(design: str, tmp_path: Path) -> None:
    model = model_of(design)
    model.save_pretrained(tmp_path / "whole")
    state = {name: value.detach() for name, value in model.state_dict().items()}
    engine = joined({name: value.clone() for name, value in state.items()})
    engine.pop("lm_head.weight")
    torch.save({name: value.bfloat16() for name, value in engine.items()}, tmp_path / "engine.pt")
    comparison = compare_weights(tmp_path / "engine.pt", tmp_path / "whole")
    missing = [] if design == "qwen2" else [("missing", (), ("lm_head.weight",))]
    assert changed(comparison) == missing

    fused = "model.layers.1.self_attn.qkv_proj.weight"
    # Rows 2 and 3 of k, which begins at row 64.
    engine[fused][[66, 67]] = engine[fused][[67, 66]]
    save_file(engine, tmp_path / "swapped.safetensors")
    found = changed(compare_weights(tmp_path / "swapped.safetensors", tmp_path / "whole"))
    names = tuple(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")
    assert [finding for finding in found if finding not in missing] == [("concatenated", (fused,), names)]


@pytest.mark.parametrize("design", DESIGNS)
def test_the_parameters_of_a_dump(design: str, tmp_path: Path) -> None:
    model = model_of(design).eval()
    model.save_pretrained(tmp_path / "whole")
    with ascend_dump.capture(model, path=tmp_path / "dumps") as cap:
        model(torch.arange(8)[None])
    for sides in ((cap.dump(), tmp_path / "whole"), (tmp_path / "whole", cap.path)):
        comparison = compare_weights(*sides)
        assert comparison.verdict == "equal", comparison.groups()
        assert comparison.counts["equal"] >= 10
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[3, 5] += 1
    model.save_pretrained(tmp_path / "changed")
    [(relation, actual, _)] = changed(compare_weights(cap.dump(), tmp_path / "changed"))
    assert (relation, actual) == ("different", ("model.layers.1.self_attn.o_proj.weight",))
