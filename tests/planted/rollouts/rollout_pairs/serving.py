"""Rollouts by the engines of this package, as lists of answers."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Optional

import torch

from rollout_pairs.engines import functional, mla_style, sglang_style, vllm_style
from rollout_pairs.hf import Answer, Record


def _answers(requests: Sequence[Any]) -> list[Answer]:
    return [Answer(list(r.prompt), list(r.tokens), list(r.scores)) for r in requests]


def vllm(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    budget: int = 64,
    arrivals: Sequence[int] = (),
    drafts: Sequence[Sequence[int]] = (),
    forced: Sequence[Answer] = (),
    sampled: bool = False,
    code: Optional[ModuleType] = None,
    repeats: int = 1,
) -> list[Answer]:
    """Answer prompts with the paged engine. repeats: the same server answers again; the second answers are returned."""
    code = code or vllm_style
    runner = code.ModelRunner(reference)
    engine = code.Engine(runner, budget, drafts)
    tokens = [answer.tokens for answer in forced]
    with record(runner):
        results = [
            engine.serve(prompts, steps, arrivals=arrivals, forced=tokens, sampled=sampled) for _ in range(repeats)
        ]
    return _answers(results[min(1, repeats - 1)])


def sglang(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    at_once: bool = True,
    forced: Sequence[Answer] = (),
    code: Optional[ModuleType] = None,
    warm: Sequence[Sequence[int]] = (),
) -> list[Answer]:
    """Answer prompts with the engine that shares prefixes. warm: prompts that were answered before the record."""
    code = code or sglang_style
    model = code.Model(reference)
    engine = code.Engine(model, reference.config)
    if warm:
        engine.serve(warm, 2)
    with record(model):
        return _answers(engine.serve(prompts, steps, forced=[a.tokens for a in forced], at_once=at_once))


def plain(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    code: Optional[ModuleType] = None,
) -> list[Answer]:
    """Answer prompts with the engine of functions."""
    code = code or functional
    is_gemma = reference.config.model_type == "gemma2"
    params = (code.load_gemma2 if is_gemma else code.load_neox)(reference)
    forward = code.gemma2 if is_gemma else code.neox
    results = code.serve(forward, params, reference.config, prompts, steps, record, reference.dtype)
    return [Answer(list(prompt), tokens, scores) for prompt, (tokens, scores) in zip(prompts, results)]


@torch.no_grad()
def mla(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    forced: Sequence[Answer] = (),
    code: Optional[ModuleType] = None,
) -> list[Answer]:
    """Answer prompts with the engine of latents."""
    code = code or mla_style
    server = code.Server(reference)
    with record(server):
        results = server.serve(prompts, steps, [a.tokens for a in forced] or None)
    return [Answer(list(prompt), tokens, scores) for prompt, (tokens, scores) in zip(prompts, results)]
