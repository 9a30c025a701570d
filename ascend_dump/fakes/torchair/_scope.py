"""`torchair.scope.data_dump()`: two marks in the graph; GE operators between them get the dump attribute.

Source: torchair 2.13, scope/_scope.py (two operators without a result, but with a side effect, so that the compiler
keeps them) and scope/__init__.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["DATA_DUMP", "make_scope", "reads_scope", "register"]

DATA_DUMP = "torchair_enable_data_dump"
#: Not torchair's namespace `air`: a process may load both, one after the other.
_SPACE = "ascend_dump_fake_air"

_libraries: list[Any] = []


def make_scope() -> ModuleType:
    """Return the module `torchair.scope`."""
    module = ModuleType("torchair.scope")
    module.data_dump = _DataDump  # type: ignore[attr-defined]  # a module made here
    return module


class _DataDump:
    """The context manager; outside a compiled graph it does nothing."""

    def __enter__(self) -> None:
        # Without torchair's backend no graph is compiled, and there is nothing to mark.
        if _libraries:
            enter, _ = _operators()
            enter([DATA_DUMP], ["True"])

    def __exit__(self, *error: Any) -> None:
        if _libraries:
            _, leave = _operators()
            leave()


def reads_scope(node: Any, inside: bool) -> bool:
    """Return True if the operators after this FX node are in a scope of `data_dump`."""
    name = str(getattr(node, "target", ""))
    if name.startswith(f"{_SPACE}.scope_enter"):
        return DATA_DUMP in node.args[0]
    return inside and not name.startswith(f"{_SPACE}.scope_exit")


def _operators() -> tuple[Any, Any]:
    import torch

    space = getattr(torch.ops, _SPACE)
    return space.scope_enter, space.scope_exit


def register() -> None:
    """Register the two operators in PyTorch, once in a process: operators cannot be removed."""
    if _libraries:
        return
    import torch
    from torch.fx.node import has_side_effect

    library = torch.library.Library(_SPACE, "DEF")
    _libraries.append(library)
    for schema, implementation in (
        ("scope_enter(str[] keys, str[] values) -> ()", _enter),
        ("scope_exit() -> ()", _exit),
    ):
        name = schema.partition("(")[0]
        library.define(schema)
        for key in ("Meta", "CompositeExplicitAutograd"):
            library.impl(name, implementation, key)
        has_side_effect(getattr(getattr(torch.ops, _SPACE), name).default)


def _enter(keys: list[str], values: list[str]) -> None:
    return None


def _exit() -> None:
    return None
