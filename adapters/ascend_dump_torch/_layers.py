"""`layers=`: select operators by operator name or module path."""

from __future__ import annotations

import difflib

from ascend_dump.adapter import text_matcher

__all__ = ["LayerFilter"]

#: Maximum number of names of operators that are stored for suggestions; ten times as many decisions are cached.
_REMEMBERED = 5000


class LayerFilter:
    """Matches globs and `re:` patterns with the names of operators (`layers.0.linear1/addmm_0`) and of modules."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self._layers = layers
        self._tests = [text_matcher(layer) for layer in layers]
        self._matched = [False] * len(layers)
        self._decided: dict[tuple[str, str], bool] = {}
        self._seen: dict[str, None] = {}

    def selects(self, name: str, module: str) -> bool:
        decided = self._decided.get((name, module))
        if decided is None:
            hits = [test(name) or test(module) for test in self._tests]
            self._matched = [before or hit for before, hit in zip(self._matched, hits)]
            decided = any(hits)
            if len(self._decided) < _REMEMBERED * 10:
                self._decided[name, module] = decided
            if len(self._seen) < _REMEMBERED:
                self._seen[module] = self._seen[name] = None
        return decided

    def reasons(self) -> list[str]:
        """Return a sentence for each pattern that matched nothing, with the most similar names of what ran.

        Returns [] if no operator was tested.
        """
        if not self._seen:
            return []
        reasons = []
        for layer, matched in zip(self._layers, self._matched):
            if not matched:
                near = difflib.get_close_matches(layer, list(self._seen), n=3, cutoff=0.3)
                guess = f"; nearest: {', '.join(near)}" if near else ""
                reasons.append(f"layers={layer!r} matched no operator{guess}")
        return reasons
