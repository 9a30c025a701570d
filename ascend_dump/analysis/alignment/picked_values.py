"""Values of a model that a program picks or copies outside of all modules, and computes nothing from.

A program keeps the logits of some tokens, or picks those of the next one. Which tokens it picks is its own matter: the
operators that do so are not the same operators in two programs, even if they have one name.
"""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of

__all__ = ["picking_operators"]


def picking_operators(operators: Sequence[Operator]) -> set[int]:
    """Return the identities of the operators of a call that pick or copy values from which nothing is computed."""
    found: set[int] = set()
    used: set[int] = set()
    for operator in reversed(operators):
        storages = [memory[0] for record in operator.outputs if (memory := storage_of(record)) is not None]
        if not operator.module and moves_elements(operator.op_type) and storages and used.isdisjoint(storages):
            found.add(id(operator))
        elif operator.module or computes_floats(operator):
            used.update(memory[0] for record in operator.inputs if (memory := storage_of(record)) is not None)
    return found
