"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the question `did you mean 'steps'?` and a space, with the most similar name; "" if none is similar.

    cutoff: as in `difflib.get_close_matches`
    """
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""
