"""Run compiled code operator by operator while a step is recorded."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator

import torch

from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet

__all__ = ["can_force_eager", "force_eager"]


def can_force_eager() -> bool:
    """Return True if PyTorch can run compiled code eagerly: since 2.6."""
    return hasattr(torch.compiler, "set_stance")


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Run compiled code eagerly, also code that is compiled only inside.

    `torch._dynamo` is not imported for that, because it takes seconds. The program may import it inside by compiling a
    function; then eager execution begins there. Else PyTorch would compile the functions that record.
    """
    if not can_force_eager():
        yield
        return
    with contextlib.ExitStack() as undo:
        if "torch._dynamo" in sys.modules:
            _enter(undo)
        else:
            _follow_import()
            _waiting.append(undo)
        try:
            yield
        finally:
            if undo in _waiting:
                _waiting.remove(undo)


#: One for each `force_eager` that was entered before `torch._dynamo` was imported.
_waiting: list[contextlib.ExitStack] = []


def _enter(undo: contextlib.ExitStack) -> None:
    keep_hooks_quiet()
    undo.callback(_remove_filter, warnings.filters[0])
    undo.enter_context(torch.compiler.set_stance("force_eager"))


def _remove_filter(entry: object) -> None:
    with contextlib.suppress(ValueError):  # the user has replaced the filters
        warnings.filters.remove(entry)  # type: ignore[attr-defined]  # typed as a Sequence


@functools.cache
def _follow_import() -> None:
    from wrapt import register_post_import_hook

    register_post_import_hook(_imported, "torch._dynamo")


def _imported(module: object) -> None:
    while _waiting:
        _enter(_waiting.pop(0))
