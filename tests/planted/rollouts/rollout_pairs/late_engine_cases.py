"""The cases of faults in the engines of the `late-` cases."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from rollout_pairs import hf, late_serving
from rollout_pairs.cases import Case, Place, Scores, places
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import CLEAR
from rollout_pairs.hf import Record
from rollout_pairs.late_serving import TRAINERS
from rollout_pairs.mutation import mutate
from rollout_pairs.scenarios import THREE

Changes = Sequence[tuple[str, str]]

MODULES = {name: f"rollout_pairs.engines.{name}_style" for name in ("ring", "packed", "quant")}


def engine_case(
    engine: str,
    name: str,
    design: str,
    trainer: str,
    *accepted: str,
    changes: Changes = (),
    edit: Optional[Callable[[Any], object]] = None,
    more: tuple[Place, ...] = (),
    bound: float = CLEAR,
    theirs: Optional[dict[str, Any]] = None,
    **options: Any,
) -> Case:
    """Return the case of a fault in an engine, or in its trainer.

    edit: of the model whose weights are loaded; theirs: arguments of `build` for the trainer; options: of the engine.
    """

    def run(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        values = dict(options)
        if changes:
            values["code"] = mutate(MODULES[engine], changes, folder)
        reference = build(design)
        if edit is not None:
            with torch.no_grad():
                edit(reference)
        answers = getattr(late_serving, engine)(reference, values.pop("prompts", THREE), a, **values)
        return hf.odds_of(answers), TRAINERS[trainer](build(design, **(theirs or {})), answers, b)

    return Case(f"late-{engine}-{design}-{name}", run, bound, places=(*places(*accepted), *more))


def line(old: str, new: str) -> tuple[str, str]:
    """Return a change whose new text is one marked line."""
    return old, f"{new}  # planted"
