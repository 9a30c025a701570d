"""The distance of two programs, measured without any tool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from program_pairs.case import Case, build
from program_pairs.program import Program, run

#: Relative difference up to which a harmless edit is taken for right, and from which on a fault is one.
HARMLESS, FAULT = 1e-4, 1e-4


@dataclass(frozen=True)
class Distance:
    """Relative differences: of losses and outputs, of gradients, of changes of parameters, and of an average."""

    outputs: float
    gradients: float
    updates: float
    average: float

    @property
    def largest(self) -> float:
        """The largest of them."""
        return max(self.outputs, self.gradients, self.updates, self.average)


def _relative(first: Tensor, second: Tensor, floor: float = 0.0) -> float:
    if first.shape != second.shape:
        return float("inf")
    first, second = first.double(), second.double()
    scale = max(float(second.norm()), float(first.norm()), floor)
    return 0.0 if scale == 0 else float((first - second).norm()) / scale


def _worst(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the worst of the tensors that both have; tensors that are zero up to rounding count little."""
    names = [name for name in first if name in second and first[name].shape == second[name].shape]
    total = sum(float(second[name].double().square().sum()) for name in names) ** 0.5
    floor = 1e-4 * total / max(len(names), 1) ** 0.5
    return max((_relative(first[name], second[name], floor) for name in names), default=0.0)


def _gradients(program: Program) -> dict[str, Tensor]:
    prefix = program.module_prefix
    named = program.model.named_parameters()
    return {name.removeprefix(prefix): value.grad for name, value in named if value.grad is not None}


def _lacking(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return 1 if a parameter of both programs has a gradient in one of them only."""
    return 1.0 if set(first) ^ set(second) else 0.0


def _updates(program: Program) -> dict[str, Tensor]:
    prefix = program.module_prefix
    end = program.model.state_dict()
    return {
        name.removeprefix(prefix): end[name].double() - start.double()
        for name, start in program.start.items()
        if start.is_floating_point()
    }


def distance(actual: Program, reference: Program, is_fault: bool) -> Distance:
    """Compare two programs that ran."""
    losses = _relative(torch.stack(list(actual.losses)), torch.stack(list(reference.losses)))
    outputs = _relative(torch.cat(actual.outputs), torch.cat(reference.outputs))
    first, second = _gradients(actual), _gradients(reference)
    parameters = {name for name, _ in reference.model.named_parameters()}
    here = {name for name, _ in actual.model.named_parameters()}
    both = parameters & {name.removeprefix(actual.module_prefix) for name in here}
    first, second = ({name: grad[name] for name in grad if name in both} for grad in (first, second))
    gradients = max(_worst(first, second), _lacking(first, second) if is_fault else 0.0)
    average = 0.0
    if actual.average is not None and reference.average is not None:
        average = _worst(dict(actual.average.named_parameters()), dict(reference.average.named_parameters()))
    return Distance(max(losses, outputs), gradients, _worst(_updates(actual), _updates(reference)), average)


def run_pair(case: Case, in_double: bool) -> tuple[Program, Program]:
    """Run both programs of a case."""
    actual, reference = build(case.network, case.edits), build(case.network, ())
    for program in (reference, actual):
        if in_double:
            program.to_double()
        run(program)
    return actual, reference


def measure(case: Case) -> Distance:
    """Run both programs of a case, in float64 where the edits allow it, and compare them."""
    actual, reference = run_pair(case, case.tolerance == 0)
    return distance(actual, reference, case.is_fault)


def complaint(case: Case) -> tuple[str, Distance]:
    """Return what is wrong with a case, and how far its programs are apart."""
    found = measure(case)
    if case.is_fault:
        enough = found.largest > max(FAULT, 3 * case.tolerance)
        return ("" if enough and found.largest == found.largest else "the fault does too little"), found
    if case.tolerance:
        return ("" if found.outputs <= case.tolerance else "not harmless"), found
    return ("" if found.largest <= HARMLESS else "not harmless"), found
