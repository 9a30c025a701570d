"""The engine of transformers with a paged cache, and drafts that are rejected, against a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_llama import tiny_llama

import ascend_dump
from ascend_dump import Comparison


@contextmanager
def recorded_engine(model: Any, path: Path) -> Iterator[None]:
    """Record the loop of the engine, which runs in a thread of its own."""
    api = pytest.importorskip("transformers.generation.continuous_batching.continuous_api")
    manager = api.ContinuousBatchingManager
    run = manager._run_generation_loop

    def record(self: Any, *arguments: Any, **settings: Any) -> Any:
        with ascend_dump.capture(model, path=path, steps="0-9"):
            return run(self, *arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "_run_generation_loop", record)
        yield


def engine(path: Path, model: Any) -> list[Any]:
    """Return the sequences that the engine generates."""
    prompts = [torch.randint(1, 64, (length,)).tolist() for length in (9, 7)]
    settings = transformers.GenerationConfig(max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=-1)
    batching = transformers.ContinuousBatchingConfig(num_blocks=16, block_size=4, max_batch_tokens=32)
    with torch.no_grad(), recorded_engine(model, path):
        outputs = model.generate_batch(
            prompts, generation_config=settings, continuous_batching_config=batching, warmup=False
        )
    return [torch.tensor([*output.prompt_ids, *output.generated_tokens]) for output in outputs.values()]


def drafts(path: Path, model: Any) -> list[Any]:
    """Return the sequence that is generated with drafts of a model of other weights."""
    draft = tiny_llama()
    with torch.no_grad():
        draft.model.layers[0].mlp.up_proj.weight.add_(0.1)
        with ascend_dump.capture(model, path=path, steps="0-9"):
            settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            return list(model.generate(torch.randint(1, 64, (1, 9)), assistant_model=draft, **settings))


def compared(tmp_path: Path, run: Any, *, eps: float) -> Comparison:
    """Compare a rollout, with an eps in one norm, with the trainer."""
    model = tiny_llama()
    model.model.layers[1].post_attention_layernorm.variance_epsilon = eps
    torch.manual_seed(1)
    sequences = run(tmp_path / "rollout", model)
    with torch.no_grad(), ascend_dump.capture(tiny := tiny_llama(), path=tmp_path / "trainer", steps="0-9"):
        for sequence in sequences:
            tiny(sequence[None], use_cache=False)
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer", align="tokens")


@pytest.mark.parametrize("run", [engine, drafts])
def test_a_rollout_and_a_trainer(run: Any, tmp_path: Path) -> None:
    comparison = compared(tmp_path, run, eps=1e-6)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()

    faulty = compared(tmp_path / "faulty", run, eps=0.1)
    assert faulty.origins[0].module == "model.layers.1.post_attention_layernorm"
