"""A rollout with a cache against whole sequences of a trainer, in models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_transformers import SIZES

import ascend_dump

#: Design, attention, chunks of the prompt.
DESIGNS: dict[str, tuple[str, str, int]] = {
    "llama": ("Llama", "sdpa", 1),
    "gptneox": ("GPTNeoX", "eager", 2),
    "mixtral": ("Mixtral", "sdpa", 1),
}
NEW = 2


def model_of(design: str) -> Any:
    name, attention, _ = DESIGNS[design]
    torch.manual_seed(0)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if design == "mixtral" else {}
    config = getattr(transformers, f"{name}Config")(**SIZES, **experts, attn_implementation=attention)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def batch_of(sequences: list[Any], *, left: bool) -> tuple[Any, Any]:
    """Return ids and mask of a batch with padding."""
    longest = max(map(len, sequences))
    ids, mask = torch.zeros(2, len(sequences), longest, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        where = slice(longest - len(sequence), None) if left else slice(0, len(sequence))
        ids[row, where], mask[row, where] = sequence, 1
    return ids, mask


def positions_of(mask: Any) -> Any:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def rollout(path: Path, model: Any, sequences: list[Any], chunks: int) -> Path:
    ids, mask = batch_of([sequence[:-NEW] for sequence in sequences], left=True)
    positions, cache, begin = positions_of(mask), transformers.DynamicCache(), 0
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0-9"):
        for chunk in range(chunks):
            end = ids.shape[1] * (chunk + 1) // chunks
            part = slice(begin, end)
            model(ids[:, part], attention_mask=mask[:, :end], position_ids=positions[:, part], past_key_values=cache)
            begin = end
        for n in range(-NEW, 0):
            mask = torch.cat((mask, torch.ones(len(mask), 1, dtype=torch.long)), 1)
            ids = torch.stack([sequence[n] for sequence in sequences])[:, None]
            model(ids, attention_mask=mask, position_ids=mask.sum(-1, keepdim=True) - 1, past_key_values=cache)
    return path


@pytest.mark.parametrize("design", DESIGNS)
def test_a_rollout_and_a_trainer(design: str, tmp_path: Path) -> None:
    """A right pair is noise as a whole, and one norm with another eps is the origin."""
    model, chunks = model_of(design), DESIGNS[design][2]
    sequences = [torch.randint(1, 64, (length,)) for length in (9, 7, 8)]
    ids, mask = batch_of(sequences, left=False)
    with torch.no_grad(), ascend_dump.capture(model, path=tmp_path / "trainer", steps="0"):
        model(ids, attention_mask=mask, position_ids=positions_of(mask), use_cache=False)
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", model, sequences, chunks), tmp_path / "trainer")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()
    assert comparison.aligned[0].startswith("log-probabilities of 21 tokens: ")

    [*_, name] = (name for name, _ in model.named_modules() if name.endswith("1.post_attention_layernorm"))
    norm = model.get_submodule(name)
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 0.1)
    comparison = ascend_dump.compare(rollout(tmp_path / "faulty", model, sequences, chunks), tmp_path / "trainer")
    assert comparison.origins[0].module == name
    assert comparison.origins[0].evidence[0] == "first token 0 of request 0; 24 of 24 tokens differ"


def generated(path: Path, model: Any, prompts: list[Any]) -> list[Any]:
    """Return the sequences that `generate` samples with a static cache, on an engine that multiplies by 1."""
    ids, mask = batch_of(prompts, left=True)
    hook = model.model.embed_tokens.register_forward_hook(lambda _module, _args, output: output * 1.0)
    torch.manual_seed(0)
    settings = {"cache_implementation": "static", "disable_compile": True, "pad_token_id": 0, "do_sample": True}
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0-9"):
        result = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, **settings)
    hook.remove()
    return [row[-NEW - len(prompt) :] for row, prompt in zip(result, prompts)]


def packed_training(path: Path, model: Any, sequences: list[Any]) -> Path:
    """Dump one call of all sequences in one row, and a loop that keeps the logits of each token."""
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])[None]
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0"):
        logits = model(torch.cat(sequences)[None], position_ids=positions, use_cache=False).logits
        _kept = [logits[0, index].clone() for index in range(logits.shape[1])]
    return path


def test_generate_with_a_static_cache_and_packed_training(tmp_path: Path) -> None:
    """Logits that programs pick, and the length of a cache, are no differences; another eps is one."""
    model = model_of("llama")
    prompts = [torch.randint(1, 64, (length,)) for length in (7, 5)]
    sequences = generated(tmp_path / "rollout", model, prompts)
    trainer = packed_training(tmp_path / "trainer", model, sequences)
    comparison = ascend_dump.compare(tmp_path / "rollout", trainer)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise"), comparison.counts

    norm = model.model.layers[1].post_attention_layernorm
    norm.variance_epsilon = 0.1
    assert all(map(torch.equal, generated(tmp_path / "faulty", model, prompts), sequences)), "the same tokens"
    comparison = ascend_dump.compare(tmp_path / "faulty", trainer)
    assert comparison.origins[0].module == "model.layers.1.post_attention_layernorm"


def test_one_expert_instead_of_two(tmp_path: Path) -> None:
    """No tensor between the experts and the next attention is compared, which is no origin because it reads them."""
    model, sequences = model_of("mixtral"), [torch.randint(1, 64, (length,)) for length in (9, 7, 8)]
    model.set_attn_implementation("eager")
    packed_training(tmp_path / "trainer", model, sequences)
    for layer in model.model.layers:
        layer.mlp.gate.top_k = 1
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", model, sequences, 1), tmp_path / "trainer")
    assert (comparison.origins[0].module or "").startswith("model.layers.0.mlp"), comparison.origins
