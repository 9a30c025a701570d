"""Rollouts by the engines of the `late-` cases, and trainers whose attention rounds keys and values as a cache does."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Optional

from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from rollout_pairs import hf
from rollout_pairs.cases import Scores
from rollout_pairs.engines import packed_style, quant_style, ring_style
from rollout_pairs.hf import Answer, Record
from rollout_pairs.scenarios import THREE

#: Prompts that begin alike.
SHARED = [THREE[0], THREE[0][:6] + THREE[1][:3], THREE[0][:8] + THREE[2]]

#: Score answers: the second program of a pair whose first is an engine.
TRAINERS: dict[str, Callable[..., Scores]] = {
    "right": hf.score,
    "plain": lambda model, answers, record: hf.score(model, answers, record, masked=False),
    "left": lambda model, answers, record: hf.score(model, answers, record, side="left"),
    "packed": hf.score_packed,
    "train": hf.train,
    "function": hf.score_function,
}


def _tokens(forced: Sequence[Answer]) -> Optional[list[list[int]]]:
    return [answer.tokens for answer in forced] or None


def ring(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 8,
    piece: int = 64,
    forced: Sequence[Answer] = (),
    code: Optional[ModuleType] = None,
) -> list[Answer]:
    """Answer prompts with the script whose layers have rings."""
    results = (code or ring_style).serve(reference, prompts, steps, record, piece, _tokens(forced))
    return [Answer(list(prompt), tokens, scores) for prompt, (tokens, scores) in zip(prompts, results)]


def packed(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    forced: Sequence[Answer] = (),
    code: Optional[ModuleType] = None,
) -> list[Answer]:
    """Answer prompts with the engine that packs them."""
    code = code or packed_style
    model = code.make(reference)
    with record(model):
        results = code.Engine(model).serve(prompts, steps, _tokens(forced))
    return [Answer(list(prompt), tokens, scores) for prompt, (tokens, scores) in zip(prompts, results)]


def quant(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    record: Record,
    *,
    kind: str = "int8",
    steps: int = 7,
    forced: Sequence[Answer] = (),
    code: Optional[ModuleType] = None,
) -> list[Answer]:
    """Answer prompts with the server whose cache is quantised."""
    code = code or quant_style
    model = code.Transformer(reference, kind)
    with record(model):
        results = code.Server(model).serve(prompts, steps, _tokens(forced))
    return [Answer(list(prompt), list(r.tokens), list(r.scores)) for prompt, r in zip(prompts, results)]


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], scaling: float) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    weights = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        weights = weights + mask
    weights = weights.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _rounded(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round() * scale


def int8_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attend to keys and values as an int8 cache has them."""
    return _attend(query, _rounded(key), _rounded(value), mask, scaling)


def bf16_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attend to keys and values as a bfloat16 cache has them."""
    return _attend(query, key.bfloat16().to(key.dtype), value.bfloat16().to(value.dtype), mask, scaling)


def int8_keys_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attend to rounded keys, but to values as they are: a fault."""
    return _attend(query, _rounded(key), value, mask, scaling)  # planted


for _name, _function in (
    ("int8_cache", int8_attention),
    ("bf16_cache", bf16_attention),
    ("int8_keys", int8_keys_attention),
):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, eager_mask)
