"""`torchair.scope.data_dump()`: the GE operators of the code inside this `with` block are marked for a dump.

The block adds an operator at its beginning and one at its end to the graph. The two have no result. They are registered
with a side effect, so that the compiler keeps them. Source: torchair 2.13, scope/_scope.py and scope/__init__.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["DATA_DUMP", "make_scope", "reads_scope", "register"]

DATA_DUMP = "torchair_enable_data_dump"
#: The namespace of the two operators. torchair's own is `air`, and a process may load both packages.
_SPACE = "ascend_dump_fake_air"

#: Contains the library with the two operators once `register` was called.
_libraries: list[Any] = []


def make_scope() -> ModuleType:
    """Return the module `torchair.scope`."""
    module = ModuleType("torchair.scope")
    module.data_dump = _DataDump  # type: ignore[attr-defined]  # a module made here
    return module


class _DataDump:
    """The context manager `data_dump`. Outside a compiled graph it does nothing."""

    def __enter__(self) -> None:
        # `get_npu_backend` registers the operators. Before it is called, no graph can be compiled.
        if _libraries:
            enter, _ = _operators()
            enter([DATA_DUMP], ["True"])

    def __exit__(self, *error: Any) -> None:
        if _libraries:
            _, leave = _operators()
            leave()


def reads_scope(node: Any, inside: bool) -> bool:
    """Return True if the operators after this FX node are in a scope of `data_dump`.

    inside: the same for the operators before it.
    """
    name = str(getattr(node, "target", ""))
    if name.startswith(f"{_SPACE}.scope_enter"):
        return DATA_DUMP in node.args[0]
    return inside and not name.startswith(f"{_SPACE}.scope_exit")


def _operators() -> tuple[Any, Any]:
    import torch

    space = getattr(torch.ops, _SPACE)
    return space.scope_enter, space.scope_exit


def register() -> None:
    """Register the two operators in PyTorch. This is done once in a process, because operators cannot be removed."""
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
