"""Count the runs of graphs as iterations of MindSpore.

MindSpore resumes a paused dump only if iterations are counted from outside, as this module does. Each run of a root
graph is one iteration. Root graphs run through one of two methods, which are wrapped.
"""

from __future__ import annotations

from typing import Any, Callable

from ascend_dump_mindspore._executors import Wrapped, find

__all__ = ["can_count", "count_runs"]

_RUNS = (("_CellGraphExecutor", "run"), ("_JitExecutor", "__call__"))


def can_count() -> bool:
    """Return True if this MindSpore has both methods through which graphs run."""
    return bool(find(_RUNS))


def count_runs(advance: Callable[[], Any]) -> Wrapped:
    """Call `advance` after each run of a root graph, until `remove()` of the result is called."""

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        advance()
        return result

    return Wrapped(_RUNS, around)
