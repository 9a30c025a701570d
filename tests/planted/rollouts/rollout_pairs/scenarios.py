"""The ways in which a rollout and a trainer of transformers are run, by name."""

from collections.abc import Callable
from typing import Any

from rollout_pairs import hf
from rollout_pairs.cases import Scores
from rollout_pairs.hf import Record

Scenario = Callable[[Any, Any, Record, Record], tuple[Scores, Scores]]

THREE = hf.prompts((9, 6, 8))
ONE = THREE[:1]
FOUR = hf.prompts((8, 8, 8, 8), seed=6)


def _plain(rollout: Any, trainer: Any, a: Record, b: Record, **options: Any) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, ONE, a, **options)
    return hf.odds_of(answers), hf.score(trainer, answers, b, masked=False)


def _padded(rollout: Any, trainer: Any, a: Record, b: Record, side: str, **options: Any) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, THREE, a, **options)
    return hf.odds_of(answers), hf.score(trainer, answers, b, side=side)


def _batch4(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, FOUR, a, sampled=True, steps=9)
    return hf.odds_of(answers), hf.score(trainer, answers, b, masked=False)


def _packed(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, THREE, a, sampled=True)
    return hf.odds_of(answers), hf.score_packed(trainer, answers, b)


def _beams(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.beams(rollout, ONE[0], a)
    return hf.odds_of(answers), hf.score(trainer, answers, b, masked=False)


def _generate(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.generate(rollout, THREE, a)
    return hf.odds_of(answers), hf.score(trainer, answers, b)


def _train(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, THREE, a, sampled=True)
    return hf.odds_of(answers), hf.train(trainer, answers, b)


def _function(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.rollout(rollout, THREE, a, sampled=True)
    return hf.odds_of(answers), hf.score_function(trainer, answers, b)


def _decoder(rollout: Any, trainer: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    answers = hf.rollout_decoder(rollout, THREE, a)
    return hf.odds_of(answers), hf.score_decoder(trainer, THREE, answers, b)


def _rows(alone: Any, batch: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    """Run a request alone, and the same request as row 2 of a batch."""
    answers = hf.rollout(batch, FOUR, b)
    same = hf.rollout(alone, FOUR[2:3], a, forced=answers[2:3])
    return hf.odds_of(same), hf.odds_of(answers[2:3])


def _rows_padded(alone: Any, batch: Any, a: Record, b: Record) -> tuple[Scores, Scores]:
    """Run a short request alone, and the same request as row 1 of a batch, where it is padded."""
    answers = hf.rollout(batch, THREE, b)
    same = hf.rollout(alone, THREE[1:2], a, forced=answers[1:2])
    return hf.odds_of(same), hf.odds_of(answers[1:2])


def _twice(model: Any, _: Any, a: Record, __: Record) -> tuple[Scores, Scores]:
    """Score the same batch in the steps of one dump. The first two of three are compared: both have a next step."""
    answers = [hf.Answer(prompt[:4], prompt[4:]) for prompt in FOUR]
    with a(model):
        scores = [hf.score(model, answers, lambda _: hf.nothing()) for _ in range(3)]
    return scores[1], scores[0]


SCENARIOS: dict[str, Scenario] = {
    "plain": _plain,
    "sampled": lambda *sides: _plain(*sides, sampled=True, steps=10),
    "static": lambda *sides: _plain(*sides, cache="static"),
    "uncached": lambda *sides: _plain(*sides, cache=None),
    "chunked": lambda *sides: _plain(*sides, chunk=4),
    "right": lambda *sides: _padded(*sides, side="right"),
    "left": lambda *sides: _padded(*sides, side="left"),
    "uncached_padded": lambda *sides: _padded(*sides, side="right", cache=None),
    "static_padded": lambda *sides: _padded(*sides, side="right", cache="static", sampled=True),
    "batch4": _batch4,
    "packed": _packed,
    "beams": _beams,
    "generate": _generate,
    "train": _train,
    "function": _function,
    "decoder": _decoder,
    "rows": _rows,
    "rows_padded": _rows_padded,
    "twice": _twice,
}

#: Options of `compare` that a scenario needs.
OPTIONS: dict[str, dict[str, Any]] = {"rows": {"rows": {0: 2}}, "rows_padded": {"rows": {0: 1}}}
SIDES: dict[str, tuple[str, str]] = {"twice": ("actual@1", "actual@0")}
