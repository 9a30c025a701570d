"""Replacing modules of a network by path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from program_pairs.case import Edit, Truth, owner_of
from program_pairs.program import Program


def swap(model: nn.Module, where: str, make: Callable[[Any], nn.Module], kind: Any = nn.Module) -> list[str]:
    """Replace each module of a kind whose whole path matches, except those that were replaced before."""
    found = [
        name
        for name, module in model.named_modules()
        if re.fullmatch(where, name) and isinstance(module, kind) and not getattr(module, "is_own", False)
    ]
    for name in found:
        owner, leaf = owner_of(model, name)
        old = model.get_submodule(name)
        new = make(old)
        new.train(old.training)
        new.is_own = True  # type: ignore[assignment]
        if leaf.isdigit() and isinstance(owner, (nn.Sequential, nn.ModuleList)):
            owner[int(leaf)] = new
        else:
            setattr(owner, leaf, new)
    if not found:
        raise LookupError(f"no {kind} matches {where}")
    return found


def swapping(
    name: str, where: str, flaw: str, make: Callable[[Any], nn.Module], kind: Any = nn.Module, tolerance: float = 0.0
) -> Edit:
    """Return the edit that replaces modules; a fault in these modules if there is a flaw."""

    def apply(program: Program) -> None:
        swap(program.model, where, make, kind)

    truth: Truth | None = Truth(modules=(where,), lines=(f"{name}_{flaw}",)) if flaw else None
    label = f"{name}_{flaw}@{short(where)}" if flaw else f"own_{name}" + ("" if where == ".*" else f"@{short(where)}")
    return Edit(label, apply, truth, tolerance=tolerance)


def short(where: str) -> str:
    """Return a pattern of a path as part of a name."""
    return where.replace("\\", "").replace("/", "_")
