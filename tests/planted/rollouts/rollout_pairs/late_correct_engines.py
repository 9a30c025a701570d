"""Correct pairs of the engines of the `late-` cases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rollout_pairs import hf, late_serving
from rollout_pairs.cases import Case, Scores
from rollout_pairs.designs import build
from rollout_pairs.hf import Record
from rollout_pairs.late_serving import SHARED, TRAINERS
from rollout_pairs.scenarios import FOUR, ONE, THREE

#: Float32 on both sides; a bfloat16 cache on both sides, where a number near a border is rounded to the other side;
#: bfloat16 against float32.
_EXACT, _ROUNDED, _MIXED = 2e-5, 2e-3, 0.2

#: Engine, label, design and trainer, options of the engine, and arguments of `build` for the trainer.
_ENGINES: list[tuple[str, str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("ring", "batch", "olmo3", "right", {}, {}),
    ("ring", "alone", "olmo3", "plain", {"prompts": ONE, "steps": 10}, {"attention": "sdpa"}),
    ("ring", "pieces", "cohere2", "packed", {"piece": 4}, {}),
    ("ring", "train", "cohere2", "train", {}, {}),
    ("ring", "function", "olmo3", "function", {"piece": 5}, {}),
    ("packed", "batch", "arcee", "right", {}, {"attention": "sdpa"}),
    ("packed", "packed", "seed_oss", "packed", {}, {}),
    ("packed", "train", "ernie45", "train", {}, {}),
    ("packed", "left", "hunyuan", "left", {}, {}),
    ("packed", "function", "hunyuan", "function", {"prompts": FOUR}, {}),
    ("quant", "int8", "dots1", "right", {}, {"attention": "int8_cache"}),
    ("quant", "int8_prefix", "glm4moe", "right", {"prompts": SHARED}, {"attention": "int8_cache"}),
    ("quant", "int8_train", "glm4moe", "train", {}, {"attention": "int8_cache"}),
    ("quant", "bf16", "glm4moe", "packed", {"kind": "bf16"}, {"attention": "bf16_cache"}),
    ("quant", "bf16_prefix", "dots1", "function", {"kind": "bf16", "prompts": SHARED}, {"attention": "bf16_cache"}),
    ("ring", "mixed", "cohere2", "right", {"dtype": torch.bfloat16}, {}),
]


def _bound(options: dict[str, Any]) -> float:
    if "dtype" in options:
        return _MIXED
    return _ROUNDED if options.get("kind") == "bf16" else _EXACT


def of_trainers() -> Iterator[Case]:
    """Engines against transformers models."""
    for engine, label, design, trainer, options, theirs in _ENGINES:

        def run(
            a: Record,
            b: Record,
            _: Path,
            engine: str = engine,
            design: str = design,
            trainer: str = trainer,
            options: dict[str, Any] = options,
            theirs: dict[str, Any] = theirs,
        ) -> tuple[Scores, Scores]:
            values = dict(options)
            reference = build(design, dtype=values.pop("dtype", torch.float32))
            answers = getattr(late_serving, engine)(reference, values.pop("prompts", THREE), a, **values)
            return hf.odds_of(answers), TRAINERS[trainer](build(design, **theirs), answers, b)

        yield Case(f"late-{engine}-{design}-{label}", run, _bound(options))


def _packed_rows(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    """Serve a request alone, and the same packed with others."""
    reference = build("seed_oss")
    batch = late_serving.packed(reference, FOUR, b)
    alone = late_serving.packed(reference, FOUR[1:2], a, forced=batch[1:2])
    return hf.odds_of(alone), hf.odds_of(batch[1:2])


def _quant_rows(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    """Serve a request alone, and the same behind a prefix that an earlier one has left."""
    reference = build("dots1")
    batch = late_serving.quant(reference, SHARED, b)
    alone = late_serving.quant(reference, SHARED[2:], a, forced=batch[2:])
    return hf.odds_of(alone), hf.odds_of(batch[2:])


def cases() -> list[Case]:
    """Return all correct pairs of these engines."""
    others = [
        Case("late-packed-seed_oss-rows", _packed_rows, _EXACT),
        Case("late-quant-dots1-prefix_rows", _quant_rows, _EXACT),
    ]
    return [*of_trainers(), *others]
