"""Describe which values of a program the outlines have checked for NaN and Inf, and which they have not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ascend_dump.common.units import counted
from ascend_dump.dump_format import Outline, Over

__all__ = ["looked_at", "not_looked_at"]

#: Kinds of checked values, and the words for them.
_WORDS = {
    "loss": "loss",
    "gradient": "set of gradients",
    "parameter": "set of parameters",
    "output": "result of a top-level call",
    "read": "number that the program reads",
}
_PLURALS = {"loss": "losses", "gradient": "sets of gradients", "parameter": "sets of parameters"}
_MORE = {"output": "results of top-level calls", "read": "numbers that the program reads"}


def looked_at(outlines: Sequence[Outline]) -> str:
    """Return the numbers of steps and of checked values: `12 steps: 12 losses, 12 sets of gradients`."""
    counts = _counts(outlines)
    parts = [
        f"{counts[kind]} {word if counts[kind] == 1 else {**_PLURALS, **_MORE}[kind]}"
        for kind, word in _WORDS.items()
        if counts[kind]
    ]
    steps = max((outline.last for outline in outlines), default=-1) + 1
    return f"{counted(steps, 'step')}: {', '.join(parts)}"


def not_looked_at(outlines: Sequence[Outline]) -> Iterator[str]:
    """Yield a sentence for each process whose later steps were not checked."""
    for outline in outlines:
        if outline.over in ("", Over.FAILED):
            yield f"not checked: process {outline.name} after step {outline.last}: {outline.reason}".rstrip(": ")


def _counts(outlines: Sequence[Outline]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for outline in outlines:
        counts.update(outline.looked)
    return counts
