"""Faults of a checkpoint: weights that were not loaded, or loaded wrong."""

from __future__ import annotations

import re

import torch
from torch import nn

from program_pairs.case import Edit, Truth, owner_of
from program_pairs.program import Program


def _changed(value: torch.Tensor, how: str) -> torch.Tensor:
    if how == "fresh":
        return torch.randn_like(value) * value.std().clamp(min=1e-2)
    if how == "zero":
        return torch.zeros_like(value)
    if how == "transposed":
        return value.t().contiguous()
    if how == "rolled":
        return value.roll(1, dims=0)
    if how == "positions":
        return value.roll(1, dims=1)
    if how == "reversed":
        return value.flip(0)
    if how == "half":
        return value * 0.5
    if how == "shifted":
        return value + 0.05
    if how == "interleaved":
        rows = value.shape[0]
        order = torch.arange(rows).reshape(2, rows // 2).t().reshape(-1)
        return value[order]
    raise ValueError(how)


def weight(path: str, how: str, *modules: str) -> Edit:
    """Change a parameter before the program runs."""

    def apply(program: Program) -> None:
        owner, leaf = owner_of(program.model, path)
        parameter = getattr(owner, leaf)
        with torch.no_grad():
            parameter.copy_(_changed(parameter.detach().clone(), how))

    module = re.escape(path.rpartition(".")[0])
    return Edit(f"weight_{how}@{path}", apply, Truth(modules=(module, *modules), parameters=(re.escape(path),)))


def untied(path: str, *modules: str) -> Edit:
    """Give a tied weight a copy of its own: equal at first, other gradients and other values after a step."""

    def apply(program: Program) -> None:
        owner, leaf = owner_of(program.model, path)
        setattr(owner, leaf, nn.Parameter(getattr(owner, leaf).detach().clone()))

    module = re.escape(path.rpartition(".")[0])
    truth = Truth(modules=(module, *modules), parameters=(re.escape(path), r".*(embed|shared|wte).*"))
    return Edit(f"untied@{path}", apply, truth)


def frozen(path: str) -> Edit:
    """Freeze a parameter."""

    def apply(program: Program) -> None:
        owner, leaf = owner_of(program.model, path)
        getattr(owner, leaf).requires_grad_(False)

    module = re.escape(path.rpartition(".")[0])
    return Edit(
        f"frozen@{path}",
        apply,
        Truth(modules=(module,), parameters=(re.escape(path),), lines=("optimizer_step",), visible=False),
    )


def buffer(path: str, how: str, *modules: str) -> Edit:
    """Change a buffer before the program runs."""
    edit = weight(path, how, *modules)
    return Edit(edit.name.replace("weight", "buffer", 1), edit.apply, edit.truth)
