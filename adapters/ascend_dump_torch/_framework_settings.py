"""Read the settings of PyTorch that a dump records, and run compiled code eagerly while a step is recorded."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ascend_dump.adapter.pytorch.calls import keep_hooks_quiet

__all__ = ["can_force_eager", "force_eager", "settings_of_torch"]

#: Functions that read the settings that change results, by the expression with which a program reads each setting.
_SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.initial_seed()": torch.initial_seed,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.is_autocast_enabled()": torch.is_autocast_enabled,
    "torch.is_autocast_cpu_enabled()": lambda: torch.is_autocast_enabled("cpu"),
    "torch.backends.mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
    "torch.backends.cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "torch.backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.backends.cuda.flash_sdp_enabled()": lambda: torch.backends.cuda.flash_sdp_enabled(),
    "torch.backends.cuda.mem_efficient_sdp_enabled()": lambda: torch.backends.cuda.mem_efficient_sdp_enabled(),
    "torch.backends.cuda.math_sdp_enabled()": lambda: torch.backends.cuda.math_sdp_enabled(),
}


def settings_of_torch() -> dict[str, str]:
    """Return the values of the settings as texts, without settings that this version of PyTorch does not have."""
    found = {}
    for name, read in _SETTINGS.items():
        try:
            found[name] = str(read())
        except (AttributeError, RuntimeError, TypeError):
            continue
    return found


def can_force_eager() -> bool:
    """Return True if PyTorch can run compiled code eagerly, which it can from version 2.6 on."""
    return hasattr(torch.compiler, "set_stance")


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """A context in which compiled code runs eagerly, also code that the program compiles inside the context.

    `torch._dynamo` is not imported for this, because the import takes seconds. If the program imports it inside the
    context, by compiling a function, eager execution begins at the import. If it did not begin then, PyTorch would
    compile the recording functions too.
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


#: The exit stack of each open `force_eager` context that was entered before `torch._dynamo` was imported.
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
