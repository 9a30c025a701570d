"""Engines against trainers with a fault, and requests against a batch that changes them."""

from collections.abc import Iterator
from pathlib import Path

import torch

from rollout_pairs import hf, late_serving
from rollout_pairs.cases import Case, Scores, places
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import CLEAR, MASKS, stale
from rollout_pairs.hf import Record
from rollout_pairs.late_engine_cases import MODULES, engine_case, line
from rollout_pairs.mutation import mutate
from rollout_pairs.scenarios import THREE


def of_trainers() -> Iterator[Case]:
    """Engines that are right, and trainers with a fault; an origin is named on either side."""
    yield engine_case(
        "packed",
        "trainer_theta",
        "hunyuan",
        "right",
        "rotary$|rotary_emb .",
        theirs={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    )
    yield engine_case(
        "ring",
        "trainer_window",
        "cohere2",
        "train",
        r"~ring\[|slots|visible|masked_fill|softmax",
        more=MASKS,
        theirs={"sliding_window": 8},
    )
    yield engine_case(
        "quant",
        "trainer_top_k",
        "dots1",
        "packed",
        r"mlp\.(router|gate)$ ^(topk|gather|scatter|div|sum|mul)",
        kind="bf16",
        theirs={"attention": "bf16_cache", "num_experts_per_tok": 3},
    )

    def trainer_stale(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = late_serving.packed(build("arcee"), THREE, a)
        trainer = build("arcee")
        with torch.no_grad():
            stale("model.layers.1.mlp.down_proj.weight")(trainer)
        return hf.odds_of(answers), hf.score_packed(trainer, answers, b)

    place = places(r"layers\.1\.mlp\.(linear_fc2|down_proj)$ .")
    yield Case("late-packed-arcee-trainer_stale", trainer_stale, CLEAR, places=place)


def of_batches() -> Iterator[Case]:
    """A request alone against the same in a batch that changes it."""

    def longest_length(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        change = line(
            "padding = torch.arange(width) >= step.lengths[:, None]",
            "padding = torch.arange(width) >= step.lengths.max().expand(len(q), 1)",
        )
        batch = late_serving.packed(build("arcee"), THREE, b, code=mutate(MODULES["packed"], [change], folder))
        alone = late_serving.packed(build("arcee"), THREE[1:2], a, forced=batch[1:2])
        return hf.odds_of(alone), hf.odds_of(batch[1:2])

    def scale_of_batch(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        change = line(
            "scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127",
            "scale = x.abs().amax((0, -1), keepdim=True).clamp(min=1e-6).expand(*x.shape[:-1], 1) / 127",
        )
        batch = late_serving.quant(build("glm4moe"), THREE, b, code=mutate(MODULES["quant"], [change], folder))
        alone = late_serving.quant(build("glm4moe"), THREE[2:], a, forced=batch[2:])
        return hf.odds_of(alone), hf.odds_of(batch[2:])

    masked = places(r"core_attention$ ^(masked_fill|add|_?softmax|ge|gt)")
    yield Case("late-packed-arcee-longest_length", longest_length, CLEAR, places=masked)
    yield Case("late-quant-glm4moe-scale_of_batch", scale_of_batch, CLEAR, places=places(r"attention\.cache$ ."))


def cases() -> list[Case]:
    """Return all faults of this module."""
    return [*of_trainers(), *of_batches()]
