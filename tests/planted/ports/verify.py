"""Verify in float64, without the tool, that harmless ports agree with their references, and that faults act."""

from __future__ import annotations

import argparse
import math
import warnings

import torch
from port_programs.cases import CASES, Case, build_port, build_reference
from port_programs.program import Program

_STEPS = 3
#: Relative difference of losses up to which a port is right, and the change from which on a fault is one.
_HARMLESS, _FAULT = 1e-7, 1e-6
#: Relative difference of the lengths of all updates up to which a port trains as its reference does.
_UPDATES = 1e-5


def _largest(values: list[float], references: list[float]) -> float:
    pairs = zip(values, references, strict=True)
    return max(abs(value - reference) / abs(reference) for value, reference in pairs)


def _parameter_change(program: Program, right: Program) -> float:
    """Return the largest change of a parameter or a buffer, relative to its norm."""
    values, references = program.model.state_dict(), right.model.state_dict()
    changes = []
    for name, reference in references.items():
        if reference.is_floating_point():
            distance = float((values[name] - reference).nan_to_num().norm())
            changes.append(distance / max(float(reference.nan_to_num().norm()), 1e-30))
    return max(changes)


def _run(program: Program) -> tuple[list[float], float]:
    """Run the program; return its losses, and the length of all updates of parameters together."""
    parameters = list(program.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    losses = program.train(_STEPS)
    updates = [float((parameter - old).detach().norm()) for parameter, old in zip(parameters, before)]
    if program.evaluate:
        losses = [*losses, program.evaluate()]
    return losses, math.hypot(*updates)


def measure(case: Case) -> tuple[float, float]:
    """Return the largest differences of losses and of parameters.

    A harmless port is compared with the reference: its parameters are split, joined and turned otherwise, so the
    lengths of all updates are compared. A fault is compared with the harmless port.
    """
    program = build_port(case)
    losses, updates = _run(program)
    right = build_port(Case(case.network)) if case.is_fault else build_reference(case)
    right_losses, right_updates = _run(right)
    difference = _largest(losses, right_losses)
    if case.is_fault:
        return difference, _parameter_change(program, right)
    return difference, abs(updates - right_updates) / (right_updates or 1.0)


def main() -> None:
    """Print each case, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    cases = [case for case in CASES if arguments.only in case.name]
    wrong = 0
    for case in cases:
        losses, parameters = measure(case)
        is_as_said = max(losses, parameters) > _FAULT if case.is_fault else losses < _HARMLESS and parameters < _UPDATES
        wrong += not is_as_said
        print(
            f"{'ok' if is_as_said else 'WRONG':6}losses {losses:.1e}  parameters {parameters:.1e}  {case.name}",
            flush=True,
        )
    print(f"{len(cases)} cases, {wrong} not as said")


if __name__ == "__main__":
    main()
