"""Count the runs of graphs, once MindSpore has left that to the user.

A dump that was paused can only be resumed with iterations that the user counts. Each run of a root graph goes
through one of two methods, so each is one iteration.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

__all__ = ["Counter", "can_count"]

#: The module moved in MindSpore 2.10.
_MODULES = ("mindspore.graph.api", "mindspore.common.api")
_METHODS = (("_CellGraphExecutor", "run"), ("_JitExecutor", "__call__"))


def can_count() -> bool:
    return len(_places()) == len(_METHODS)


class Counter:
    """Calls `advance` after each run of a graph, until `remove()`."""

    def __init__(self, advance: Callable[[], Any]) -> None:
        self._replaced: list[tuple[type, str, Any, Any]] = []
        for owner, name in _places():
            original = owner.__dict__[name]
            counting = _counting(original, advance)
            setattr(owner, name, counting)
            self._replaced.append((owner, name, original, counting))

    def remove(self) -> None:
        replaced, self._replaced = self._replaced, []
        for owner, name, original, counting in replaced:
            # Somebody else may have wrapped it meanwhile; then ours stays inside and is harmless when paused.
            if owner.__dict__.get(name) is counting:
                setattr(owner, name, original)


def _places() -> list[tuple[type, str]]:
    for module in map(sys.modules.get, _MODULES):
        found = [(getattr(module, owner, None), name) for owner, name in _METHODS]
        if all(isinstance(owner, type) and name in owner.__dict__ for owner, name in found):
            return [(owner, name) for owner, name in found if owner is not None]
    return []


def _counting(original: Callable[..., Any], advance: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        advance()
        return result

    return run
