"""The correct pairs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch

from rollout_pairs import hf, late_correct, late_correct_engines, serving
from rollout_pairs.cases import Case, Scores, unique
from rollout_pairs.designs import build
from rollout_pairs.hf import Record
from rollout_pairs.scenarios import FOUR, ONE, OPTIONS, SCENARIOS, SIDES, THREE

BF16 = torch.bfloat16

#: Float32 on both sides: a few units in the last place of numbers about 10.
EXACT = 2e-5
#: bfloat16 on both sides, in other orders.
NARROW = 0.15
#: bfloat16 against float32.
MIXED = 0.2
#: The same with experts: a token near the border between two experts goes to the other one.
ROUTED = 0.9

#: Pairs of transformers models: design, scenario and, for the rollout and the trainer, what differs.
_PAIRS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "plain", {}, {}),
    ("llama", "right", {}, {"attention": "sdpa"}),
    ("llama3rope", "packed", {"attention": "sdpa"}, {"attention": "sdpa"}),
    ("llama3rope", "beams", {}, {}),
    ("llama_yarn", "left", {}, {}),
    ("llama_yarn", "chunked", {}, {"attention": "sdpa"}),
    ("llama_linear", "train", {}, {}),
    ("llama_linear", "static", {}, {}),
    ("mistral", "right", {}, {}),
    ("mistral", "chunked", {"attention": "sdpa"}, {}),
    ("mistral", "generate", {}, {"attention": "sdpa"}),
    ("qwen2", "function", {}, {}),
    ("qwen2", "uncached", {}, {}),
    ("qwen2", "batch4", {"attention": "sdpa"}, {"attention": "sdpa"}),
    ("qwen3", "sampled", {}, {}),
    ("qwen3", "generate", {"attention": "sdpa"}, {}),
    ("qwen3", "rows", {}, {}),
    ("qwen2moe", "right", {}, {}),
    ("qwen2moe", "batch4", {}, {"experts": "batched_mm"}),
    ("qwen3moe", "packed", {}, {}),
    ("qwen3moe", "rows_padded", {}, {}),
    ("mixtral", "plain", {}, {"attention": "sdpa"}),
    ("mixtral", "train", {}, {}),
    ("mixtral", "left", {"experts": "eager"}, {}),
    ("olmoe", "packed", {"experts": "eager"}, {}),
    ("olmoe", "function", {}, {}),
    ("olmoe", "twice", {}, {}),
    ("olmo2", "left", {"attention": "sdpa"}, {}),
    ("olmo2", "uncached_padded", {}, {}),
    ("gemma2", "right", {}, {}),
    ("gemma2", "beams", {}, {}),
    ("gemma2", "generate", {}, {}),
    ("gemma3", "packed", {}, {"attention": "sdpa"}),
    ("gemma3", "static_padded", {}, {}),
    ("deepseek3", "plain", {}, {}),
    ("deepseek3", "right", {"attention": "sdpa"}, {}),
    ("neox", "batch4", {}, {}),
    ("neox", "packed", {"attention": "sdpa"}, {}),
    ("gptj", "right", {}, {}),
    ("gptj", "beams", {}, {}),
    ("gpt2", "left", {}, {"attention": "sdpa"}),
    ("gpt2", "train", {}, {}),
    ("gpt2", "twice", {}, {}),
    ("opt", "right", {}, {}),
    ("opt", "rows_padded", {}, {}),
    ("bloom", "right", {}, {}),
    ("bloom", "left", {}, {}),
    ("falcon", "packed", {}, {}),
    ("falcon", "chunked", {}, {"attention": "sdpa"}),
    ("phi", "right", {}, {}),
    ("phi3", "static", {}, {"attention": "sdpa"}),
    ("phi3", "generate", {}, {}),
    ("cohere", "function", {}, {}),
    ("cohere", "rows", {"attention": "sdpa"}, {"attention": "sdpa"}),
    ("granite", "right", {}, {"attention": "sdpa"}),
    ("stablelm", "batch4", {}, {}),
    ("starcoder2", "uncached", {"attention": "sdpa"}, {}),
    ("glm4", "train", {}, {}),
    ("glm4", "chunked", {}, {}),
    ("gptoss", "right", {}, {}),
    ("gptoss", "static", {}, {}),
    ("smollm3", "packed", {}, {}),
    ("t5", "decoder", {}, {}),
    ("bart", "decoder", {}, {"attention": "sdpa"}),
    # Narrow types.
    ("llama", "batch4", {"dtype": BF16, "attention": "sdpa"}, {"dtype": BF16}),
    ("qwen3", "right", {"dtype": BF16, "attention": "sdpa"}, {"dtype": BF16}),
    ("gemma2", "left", {"dtype": BF16}, {"dtype": BF16}),
    ("phi", "train", {"dtype": BF16}, {"dtype": BF16, "attention": "sdpa"}),
    ("qwen2", "plain", {"dtype": BF16}, {}),
    ("olmo2", "right", {"dtype": BF16}, {"attention": "sdpa"}),
    ("gpt2", "packed", {"dtype": BF16}, {}),
    ("qwen3moe", "right", {"dtype": BF16}, {}),
    ("deepseek3", "batch4", {"dtype": BF16}, {}),
    ("granite", "function", {"dtype": BF16}, {}),
    ("mistral", "train", {"dtype": BF16}, {}),
]


def _bound(design: str, ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    if "dtype" not in ours:
        return EXACT
    if "dtype" in theirs:
        return NARROW
    return ROUTED if design in ("qwen3moe", "deepseek3") else MIXED


def _suffix(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if "dtype" not in ours:
        return ""
    return "-bf16" if "dtype" in theirs else "-mixed"


def of_transformers() -> Iterator[Case]:
    """Pairs of transformers models."""
    for design, scenario, ours, theirs in _PAIRS:

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

        yield Case(
            f"{design}-{scenario}{_suffix(ours, theirs)}",
            run,
            _bound(design, ours, theirs),
            SIDES.get(scenario, ("actual", "reference")),
            OPTIONS.get(scenario, {}),
        )


#: Scores answers: the second program of a pair whose first is an engine.
_TRAINERS: dict[str, Callable[..., Scores]] = {
    "right": lambda model, answers, record: hf.score(model, answers, record),
    "plain": lambda model, answers, record: hf.score(model, answers, record, masked=False),
    "packed": hf.score_packed,
    "train": hf.train,
    "function": hf.score_function,
}

SHARED = [THREE[0], THREE[0][:6] + THREE[1][:3], THREE[0][:8] + THREE[2]]


def drafts(design: str, steps: int, **options: Any) -> list[list[int]]:
    """Return the answers of a model to three prompts, with two of three tokens exchanged."""
    answers = hf.rollout(build(design, **options), THREE, lambda _: hf.nothing(), steps=steps)
    return [[token if number % 3 == 1 else 50 for number, token in enumerate(a.tokens)] for a in answers]


_ENGINES: list[tuple[str, str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("vllm", "plain", "llama", "plain", {"prompts": ONE}, {}),
    ("vllm", "batch", "llama", "right", {}, {"attention": "sdpa"}),
    ("vllm", "chunked", "qwen2", "packed", {"budget": 5, "arrivals": (0, 2, 3)}, {}),
    ("vllm", "continuous", "qwen3", "right", {"arrivals": (0, 1, 4), "sampled": True}, {}),
    ("vllm", "window", "mistral", "right", {"budget": 6}, {"attention": "sdpa"}),
    ("vllm", "experts", "qwen3moe", "packed", {}, {}),
    ("vllm", "train", "qwen3", "train", {"sampled": True}, {}),
    ("vllm", "function", "qwen2", "function", {}, {"attention": "sdpa"}),
    ("vllm", "drafts", "llama", "right", {"steps": 9, "with_drafts": True}, {}),
    ("vllm", "drafts", "qwen3moe", "right", {"steps": 9, "with_drafts": True}, {}),
    ("vllm", "bf16", "llama", "right", {"dtype": BF16}, {"dtype": BF16}),
    ("vllm", "mixed", "qwen3", "packed", {"dtype": BF16}, {}),
    ("sglang", "plain", "llama", "plain", {"prompts": ONE}, {}),
    ("sglang", "batch", "qwen2", "right", {}, {}),
    ("sglang", "prefix", "llama", "right", {"prompts": SHARED, "at_once": False}, {}),
    ("sglang", "warm", "qwen2", "right", {"prompts": SHARED[1:2], "warm": SHARED[:1]}, {}),
    ("sglang", "experts", "mixtral", "packed", {}, {}),
    ("sglang", "shared", "qwen2moe", "right", {}, {}),
    ("sglang", "qknorm", "olmoe", "train", {}, {}),
    ("sglang", "mixed", "qwen2", "function", {"dtype": BF16}, {}),
    ("plain", "batch", "gemma2", "right", {}, {}),
    ("plain", "alone", "gemma2", "plain", {"prompts": ONE}, {}),
    ("plain", "batch", "neox", "packed", {}, {}),
    ("plain", "train", "neox", "train", {}, {"attention": "sdpa"}),
    ("plain", "mixed", "gemma2", "function", {"dtype": BF16}, {}),
    ("mla", "batch", "deepseek3", "right", {}, {}),
    ("mla", "alone", "deepseek3", "plain", {"prompts": ONE}, {"attention": "sdpa"}),
    ("mla", "packed", "deepseek3", "packed", {}, {}),
]


def of_engines() -> Iterator[Case]:
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
            if values.pop("with_drafts", False):
                values["drafts"] = drafts(design, values["steps"])
            answers = getattr(serving, engine)(reference, values.pop("prompts", THREE), a, **values)
            return hf.odds_of(answers), _TRAINERS[trainer](build(design, **theirs), answers, b)

        name = f"{engine}-{design}-{label}"
        yield Case(
            name, run, _bound(design, *({k: v for k, v in s.items() if k == "dtype"} for s in (options, theirs)))
        )


def _vllm_rows(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    """Serve a request alone, and the same in a batch."""
    reference = build("llama")
    batch = serving.vllm(reference, FOUR, b)
    alone = serving.vllm(reference, FOUR[2:3], a, forced=batch[2:3])
    return hf.odds_of(alone), hf.odds_of(batch[2:3])


def _sglang_rows(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    reference = build("mixtral")
    batch = serving.sglang(reference, FOUR, b)
    alone = serving.sglang(reference, FOUR[1:2], a, forced=batch[1:2])
    return hf.odds_of(alone), hf.odds_of(batch[1:2])


def _vllm_twice(a: Record, _: Record, __: Path) -> tuple[Scores, Scores]:
    """Serve the same requests twice, in other blocks of the cache."""
    answers = serving.vllm(build("qwen3"), FOUR, a, steps=1, repeats=3)
    first = serving.vllm(build("qwen3"), FOUR, lambda _: hf.nothing(), steps=1)
    return hf.odds_of(answers), hf.odds_of(first)


def _engine_against_engine(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    """Compare two engines: one has a paged cache, the other a pool with shared prefixes."""
    reference = build("qwen2")
    answers = serving.vllm(reference, THREE, a, budget=7)
    others = serving.sglang(reference, THREE, b, forced=answers)
    return hf.odds_of(answers), hf.odds_of(others)


def cases() -> list[Case]:
    """Return all correct pairs."""
    others = [
        Case("vllm-llama-rows", _vllm_rows, EXACT),
        Case("sglang-mixtral-rows", _sglang_rows, EXACT),
        Case("vllm-qwen3-twice", _vllm_twice, EXACT, ("actual@1", "actual@0")),
        Case("vllm-sglang-qwen2", _engine_against_engine, EXACT),
    ]
    return unique([*of_transformers(), *of_engines(), *others, *late_correct.cases(), *late_correct_engines.cases()])
