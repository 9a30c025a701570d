"""Handle complex numbers: MindSpore 2.10 refuses to compile a graph that contains them while its Dump is on.

With Dump, MindSpore serialises each graph in a format that has no complex types, which fails with `Unexpected type
Complex`. It does so even if no operator of the graph is selected, and while the dump is paused. The types of a graph's
inputs and parameters are known before it is compiled; the types inside the graph are not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Callable

from ascend_dump.adapter import Problem
from ascend_dump_mindspore._executors import Wrapped

__all__ = ["has_complex_parameters", "watch_compilations"]

log = logging.getLogger("ascend_dump")

_COMPILATIONS = (("_CellGraphExecutor", "compile"), ("_JitExecutor", "compile"))
_REFUSED = "Unexpected type Complex"


def has_complex_parameters(cell: Any) -> bool:
    """Return True if a parameter of a Cell, or an input described by `set_inputs`, is complex."""
    ask = getattr(cell, "get_parameters", None)
    inputs = getattr(cell, "get_inputs", None)
    described = inputs() if callable(inputs) else None
    return _holds_complex(list(ask()) if callable(ask) else ()) or _holds_complex(described)


def watch_compilations(can_give_up: Callable[[], bool], give_up: Callable[[], None]) -> Wrapped:
    """Check inputs and parameters of graphs for complex types before they are compiled, until `remove()` of the result.

    As long as MindSpore has not read its configuration (`can_give_up()` is True), `give_up()` is called before a graph
    with complex numbers is compiled, to prevent the dump. Later, MindSpore refuses to compile such a graph: the program
    gets MindSpore's error, and a warning explains it.
    """

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The cell is the first argument, or the attribute `obj` of the executor of a method under `jit`.
        cells = (*args[1:2], *(getattr(executor, "obj", None) for executor in args[:1]))
        if can_give_up() and (
            _holds_complex(args) or _holds_complex(kwargs) or any(map(has_complex_parameters, cells))
        ):
            give_up()
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            if str(error).startswith(_REFUSED):
                log.warning("%s", _refused())
            raise

    return Wrapped(_COMPILATIONS, around)


def _refused() -> Problem:
    return Problem(
        "AD279",
        "error",
        f"MindSpore compiles no graph with complex numbers in a process that dumps ({_REFUSED}), and its Dump "
        "cannot be switched off any more",
        "dump in a process without this part of the program; without a capture this part runs",
    )


def _holds_complex(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_complex, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_holds_complex, value))
    return "complex" in str(getattr(value, "dtype", "")).lower()
