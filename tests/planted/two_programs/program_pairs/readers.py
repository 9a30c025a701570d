"""The modules that read a wrong tensor first: what a dump of modules shows of a fault between modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from program_pairs.case import Case, build
from program_pairs.program import Program, run

#: Relative difference from which on an input is another one.
_DIFFERENT = 1e-5

Call = tuple[str, list[Tensor], list[int]]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)


def _calls(program: Program) -> list[Call]:
    """Run the program, and return its calls of modules in the order in which they begin."""
    calls: list[Call] = []

    def hook_of(name: str) -> Any:
        def hook(_module: Any, positional: Any, named: Any) -> None:
            inputs = list(_tensors((positional, named)))
            calls.append((name, [tensor.detach().clone() for tensor in inputs], [id(tensor) for tensor in inputs]))

        return hook

    for name, module in program.model.named_modules():
        path = name.removeprefix(program.module_prefix)
        module.register_forward_pre_hook(hook_of("" if name == "module" else path), with_kwargs=True)
    run(program)
    return calls


def _differ(first: list[Tensor], second: list[Tensor]) -> bool:
    """Compare the first tensors only: masks and tables that follow have other types in other implementations."""
    if not first or not second:
        return bool(first) != bool(second)
    one, other = first[0], second[0]
    if one.shape != other.shape or one.is_floating_point() != other.is_floating_point():
        return True
    distance = float((one.double() - other.double()).nan_to_num().norm())
    return distance > _DIFFERENT * max(float(other.double().nan_to_num().norm()), 1e-30)


def first_readers(case: Case) -> set[str]:
    """Return the first module whose input differs, and the modules inside of it that begin with the same tensor."""
    programs = build(case.network, case.edits), build(case.network, ())
    if case.tolerance == 0:
        for program in programs:
            program.to_double()
    with torch.random.fork_rng():
        actual, reference = (_calls(program) for program in programs)
    of_reference: dict[str, list[list[Tensor]]] = {}
    for name, inputs, _ in reference:
        of_reference.setdefault(name, []).append(inputs)
    readers: set[str] = set()
    outer, first = "", list[int]()
    for name, inputs, identities in actual:
        others = of_reference.get(name, [])
        other = others.pop(0) if others else None
        if readers:
            if not name.startswith(f"{outer}.") or not set(identities) & set(first):
                break
            readers.add(name)
        elif name and other is not None and _differ(inputs, other):
            readers.add(name)
            outer, first = name, identities
    return readers
