"""Count the runs of graphs as iterations of MindSpore.

A paused dump can be resumed only if the user counts iterations. Each run of a root graph goes through one of two
methods, and is one iteration.
"""

from __future__ import annotations

from typing import Any, Callable

from ascend_dump_mindspore._executors import Wrapped, find

__all__ = ["can_count", "count_runs"]

_RUNS = (("_CellGraphExecutor", "run"), ("_JitExecutor", "__call__"))


def can_count() -> bool:
    return bool(find(_RUNS))


def count_runs(advance: Callable[[], Any]) -> Wrapped:
    """Call `advance` after each run of a graph, until the result's `remove()` is called."""

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        advance()
        return result

    return Wrapped(_RUNS, around)
