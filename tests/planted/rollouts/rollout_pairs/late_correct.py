"""Correct pairs of further designs of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rollout_pairs.cases import Case, Scores
from rollout_pairs.designs import build
from rollout_pairs.hf import Record
from rollout_pairs.late_designs import LATE
from rollout_pairs.scenarios import OPTIONS, SCENARIOS, SIDES

BF16 = torch.bfloat16
_FUSED = {"attention": "sdpa"}

#: Float32 on both sides; bfloat16 on both sides; bfloat16 against float32.
_EXACT, _NARROW, _MIXED = 2e-5, 0.15, 0.2

#: Design, scenario and, for the rollout and the trainer, what differs.
_PAIRS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("arcee", "packed", _FUSED, {}),
    ("seed_oss", "generate", {}, _FUSED),
    ("ernie45", "right", {}, {}),
    ("hunyuan", "batch4", _FUSED, {}),
    ("helium", "static", {}, {}),
    ("olmo", "train", {}, {}),
    ("olmo3", "chunked", {}, _FUSED),
    ("olmo3", "static_padded", {}, {}),
    ("cohere2", "left", {}, {}),
    ("exaone4", "right", _FUSED, {}),
    ("apertus", "function", {}, {}),
    ("persimmon", "packed", {}, {}),
    ("diffllama", "right", {}, {}),
    ("gemma", "beams", {}, {}),
    ("vaultgemma", "uncached_padded", {}, {}),
    ("bitnet", "plain", {}, _FUSED),
    ("codegen", "generate", {}, {}),
    ("bigcode", "right", {}, {}),
    ("gptneo", "rows_padded", {}, {}),
    ("xglm", "left", {}, {}),
    ("phimoe", "right", {}, {}),
    ("ernie45moe", "packed", {"experts": "eager"}, {}),
    ("glm4moe", "train", {}, {}),
    ("dots1", "rows", {}, {}),
    ("deepseek2", "chunked", {}, {}),
    ("granitemoeshared", "batch4", {}, {"experts": "batched_mm"}),
    ("minimaxm2", "right", {}, {"experts": "eager"}),
    ("dbrx", "function", {}, {}),
    ("jetmoe", "plain", {}, _FUSED),
    ("lfm2", "right", {}, {}),
    ("mbart", "decoder", {}, _FUSED),
    ("m2m", "decoder", {}, {}),
    ("hunyuan", "right", {"dtype": BF16}, {"dtype": BF16, "attention": "sdpa"}),
    ("arcee", "packed", {"dtype": BF16}, {}),
]


def _bound(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    if "dtype" not in ours:
        return _EXACT
    return _NARROW if "dtype" in theirs else _MIXED


def cases() -> Iterator[Case]:
    """Pairs of transformers models."""
    for design, scenario, ours, theirs in _PAIRS:
        assert design in LATE

        def run(
            a: Record,
            b: Record,
            _: Path,
            design: str = design,
            scenario: str = scenario,
            ours: dict[str, Any] = ours,
            theirs: dict[str, Any] = theirs,
        ) -> tuple[Scores, Scores]:
            return SCENARIOS[scenario](build(design, **ours), build(design, **theirs), a, b)

        suffix = "" if "dtype" not in ours else "-bf16" if "dtype" in theirs else "-mixed"
        yield Case(
            f"late-{design}-{scenario}{suffix}",
            run,
            _bound(ours, theirs),
            SIDES.get(scenario, ("actual", "reference")),
            OPTIONS.get(scenario, {}),
        )
