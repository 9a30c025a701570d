"""Rollouts and trainers of transformers models: generation with a cache, and scoring of whole answers."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

#: Starts to record an object, or does nothing.
Record = Callable[[Any], AbstractContextManager[Any]]

PAD = 0


def nothing() -> AbstractContextManager[Any]:
    """Return a context that records nothing."""
    return nullcontext()


@dataclass
class Answer:
    """A prompt, the tokens that follow it, and the log-probability of each of these."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


def prompts(lengths: Iterable[int], seed: int = 5) -> list[list[int]]:
    """Return random prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 97, (length,), generator=generator).tolist() for length in lengths]


def call(model: Any, ids: Tensor, **values: Any) -> Tensor:
    """Call a model with the arguments that it has, and return its logits."""
    names = inspect.signature(model.forward).parameters
    return model(ids, **{name: value for name, value in values.items() if name in names}).logits


def pad(rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions of rows that are filled up on one side."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        columns = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[number, columns] = torch.tensor(row)
        mask[number, columns] = 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def choose(logits: Tensor, sampled: bool, generator: torch.Generator) -> Tensor:
    if not sampled:
        return logits.argmax(-1)
    return torch.multinomial(logits.float().softmax(-1), 1, generator=generator)[:, 0]


def _cache(model: Any, kind: Optional[str]) -> Any:
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=32)
    return DynamicCache(config=model.config) if kind == "dynamic" else None


@torch.no_grad()
def rollout(
    model: Any,
    requests: Sequence[Sequence[int]],
    record: Record,
    *,
    steps: int = 7,
    cache: Optional[str] = "dynamic",
    chunk: int = 0,
    sampled: bool = False,
    forced: Sequence[Answer] = (),
    masked: bool = True,
    head: Callable[[Tensor], Tensor] = lambda logits: logits,
    counts_padding: bool = False,
    restarts: bool = False,
) -> list[Answer]:
    """Answer prompts that are padded on the left.

    forced: answers whose tokens are taken; head: changes the logits. Faults: counts_padding gives positions to padding,
    restarts begins the positions of the second chunk at 0.
    """
    generator = torch.Generator().manual_seed(3)
    answers = [Answer(list(request)) for request in requests]
    ids, mask, positions = pad(requests, "left")
    if counts_padding:
        positions = torch.arange(ids.shape[1]).expand_as(ids)
    values = _cache(model, cache)
    options: dict[str, Any] = {"use_cache": cache is not None, "cache": values}
    with record(model):
        new, new_positions = ids, positions
        if chunk:
            part = call(
                model, ids[:, :chunk], attention_mask=mask[:, :chunk], position_ids=positions[:, :chunk], **options
            )
            new, new_positions = ids[:, chunk:], positions[:, chunk:] - (chunk if restarts else 0)
        for step in range(steps):
            part = call(
                model,
                new,
                attention_mask=mask if masked else None,
                position_ids=new_positions,
                logits_to_keep=1 if chunk else 0,
                **options,
            )
            logits = head(part[:, -1].float())
            chosen = choose(logits, sampled, generator)
            if forced:
                chosen = torch.tensor([answer.tokens[step] for answer in forced])
            scores = logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
            for answer, token, score in zip(answers, chosen.tolist(), scores.tolist()):
                answer.tokens.append(token)
                answer.scores.append(score)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            positions = torch.cat([positions, positions[:, -1:] + 1], 1)
            ids = torch.cat([ids, chosen[:, None]], 1)
            new, new_positions = (ids[:, -1:], positions[:, -1:]) if cache else (ids, positions)
    return answers


@torch.no_grad()
def generate(model: Any, requests: Sequence[Sequence[int]], record: Record, steps: int = 7) -> list[Answer]:
    """Answer prompts with `generate` of transformers, sampled."""
    ids, mask, _ = pad(requests, "left")
    torch.manual_seed(4)
    with record(model):
        result = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=steps,
            do_sample=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    logits = torch.stack(result.logits, 1).float().log_softmax(-1)
    chosen = result.sequences[:, ids.shape[1] :]
    scores = logits.gather(-1, chosen[..., None])[..., 0]
    return [Answer(list(r), t, s) for r, t, s in zip(requests, chosen.tolist(), scores.tolist())]


@torch.no_grad()
def beams(
    model: Any, request: Sequence[int], record: Record, *, width: int = 3, steps: int = 7, reorders: bool = True
) -> list[Answer]:
    """Answer one prompt with a beam search, and return the last beams. reorders: the rows of the cache too."""
    ids = torch.tensor([list(request)] * width)
    scores = torch.zeros(width, 0)
    total = torch.tensor([0.0] + [-1e9] * (width - 1))
    cache = DynamicCache(config=model.config)
    with record(model):
        new, positions = ids, torch.arange(ids.shape[1]).expand(width, -1)
        for _ in range(steps):
            logits = call(model, new, position_ids=positions, use_cache=True, cache=cache, attention_mask=None)
            odds = logits[:, -1].float().log_softmax(-1)
            total, best = (total[:, None] + odds).flatten().topk(width)
            source, chosen = best // odds.shape[1], best % odds.shape[1]
            scores = torch.cat([scores[source], odds[source, chosen, None]], 1)
            ids = torch.cat([ids[source], chosen[:, None]], 1)
            if reorders:
                cache.reorder_cache(source)
            new, positions = ids[:, -1:], positions[:, -1:] + 1
    start = len(request)
    return [Answer(list(request), row[start:].tolist(), line.tolist()) for row, line in zip(ids, scores)]


def of_answers(
    logits: Tensor, rows: Sequence[Sequence[int]], answers: Sequence[Answer], side: str
) -> list[list[float]]:
    """Return the log-probabilities of the tokens of answers, from logits of padded rows."""
    scores = []
    for line, row, answer in zip(logits.float().log_softmax(-1), rows, answers):
        line = line[-len(row) :] if side == "left" else line[: len(row)]
        start = len(answer.prompt)
        chosen = torch.tensor(answer.tokens)
        scores.append(line[start - 1 : start - 1 + len(chosen)].gather(-1, chosen[:, None])[:, 0].tolist())
    return scores


@torch.no_grad()
def score(model: Any, answers: Sequence[Answer], record: Record, *, side: str = "right", masked: bool = True) -> Any:
    """Score answers in one forward pass of a padded batch, as a trainer does."""
    rows = [answer.ids for answer in answers]
    ids, mask, positions = pad(rows, side)
    with record(model):
        logits = call(
            model,
            ids,
            attention_mask=mask if masked else None,
            position_ids=positions if masked else None,
            use_cache=False,
        )
    return of_answers(logits, rows, answers, side)


@torch.no_grad()
def score_packed(model: Any, answers: Sequence[Answer], record: Record, *, leaks: bool = False) -> Any:
    """Score answers that stand one behind another in one row. leaks: with a mask that hides no other answer."""
    ids = torch.tensor([[token for answer in answers for token in answer.ids]])
    positions = torch.cat([torch.arange(len(answer.ids)) for answer in answers])[None]
    with record(model):
        mask = torch.ones_like(ids) if leaks else None
        logits = call(model, ids, position_ids=positions, attention_mask=mask, use_cache=False)[0]
    parts = logits.split([len(answer.ids) for answer in answers])
    return [of_answers(part[None], [a.ids], [a], "right")[0] for part, a in zip(parts, answers)]


@torch.no_grad()
def score_function(model: Any, answers: Sequence[Answer], record: Record, temperature: float = 1.0) -> Any:
    """Score answers with a function of the trainer that is recorded as a whole: log-probabilities and entropy."""
    rows = [answer.ids for answer in answers]
    ids, mask, positions = pad(rows, "right")

    def compute_log_prob(input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        logits = call(model, input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)
        odds = (logits.float() / temperature).log_softmax(-1)
        entropy = -(odds.exp() * odds).sum(-1)
        return odds[:, :-1].gather(-1, input_ids[:, 1:, None])[..., 0] + 0.0 * entropy[:, :-1]

    with record(None):
        odds = compute_log_prob(ids, mask, positions)
    return [line[len(a.prompt) - 1 : len(a.ids) - 1].tolist() for line, a in zip(odds, answers)]


def train(model: Any, answers: Sequence[Answer], record: Record) -> Any:
    """Score answers in a training step: policy loss, backward pass, optimizer."""
    rows = [answer.ids for answer in answers]
    ids, mask, positions = pad(rows, "right")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    old = torch.zeros(len(rows), ids.shape[1] - 1)
    is_answer = torch.zeros_like(old)
    for number, answer in enumerate(answers):
        part = slice(len(answer.prompt) - 1, len(answer.ids) - 1)
        old[number, part] = torch.tensor(answer.scores)
        is_answer[number, part] = 1
    advantages = torch.linspace(-1, 1, len(rows) + 1)[1:, None]
    model.train()
    with record(model):
        logits = call(model, ids, attention_mask=mask, position_ids=positions, use_cache=False)
        odds = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (odds - old).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -(gain * is_answer).sum() / is_answer.sum()
        loss.backward()
        optimizer.step()
    model.eval()
    return of_answers(logits.detach(), rows, answers, "right")


def odds_of(answers: Sequence[Answer]) -> list[list[float]]:
    return [answer.scores for answer in answers]


def largest(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the largest difference of two lists of log-probabilities."""
    if [len(a) for a in ours] != [len(a) for a in theirs]:
        raise ValueError("the two sides have scored different tokens")
    return max((abs(a - b) for left, right in zip(ours, theirs) for a, b in zip(left, right)), default=0.0)


@torch.no_grad()
def rollout_decoder(
    model: Any, requests: Sequence[Sequence[int]], record: Record, *, steps: int = 8, keeps_mask: bool = True
) -> list[Answer]:
    """Answer the texts of an encoder with a cached decoder; an answer begins with the start token of the decoder.

    keeps_mask: the mask of the encoder is passed in decoding steps too.
    """
    ids, mask, _ = pad(requests, "right")
    answers = [Answer([model.config.decoder_start_token_id]) for _ in requests]
    new = torch.tensor([answer.prompt for answer in answers])
    cache, encoded = None, None
    with record(model):
        for _ in range(steps):
            source = {"input_ids": ids} if encoded is None else {"encoder_outputs": encoded}
            shown = mask if keeps_mask or encoded is None else None
            out = model(**source, attention_mask=shown, decoder_input_ids=new, use_cache=True, cache=cache)
            cache, encoded = out.cache, (out.encoder_last_hidden_state,)
            odds = out.logits[:, -1].float().log_softmax(-1)
            new = odds.argmax(-1, keepdim=True)
            for answer, token, line in zip(answers, new[:, 0].tolist(), odds):
                answer.tokens.append(token)
                answer.scores.append(line[token].item())
    return answers


@torch.no_grad()
def score_decoder(model: Any, requests: Sequence[Sequence[int]], answers: Sequence[Answer], record: Record) -> Any:
    """Score answers of an encoder and decoder in one forward pass."""
    ids, mask, _ = pad(requests, "right")
    rows = [answer.ids[:-1] for answer in answers]
    with record(model):
        logits = model(ids, attention_mask=mask, decoder_input_ids=torch.tensor(rows), use_cache=False).logits
    return of_answers(logits, rows, answers, "right")
