"""Operators of a program that are not part of what its model computes.

A program keeps the logits of some tokens, or picks those of the next one. Which tokens it picks is its own matter: the
operators that do so are not the same operators in two programs, even if they have one name. And a general engine
multiplies by factors that are 1 for a model.
"""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["picking_operators", "unchanging_operators"]


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


def unchanging_operators(operators: Sequence[Operator], others: Sequence[Operator]) -> set[int]:
    """Return the identities of operators whose output has the bytes of their input, such as a multiplication by 1.

    Only those of which the other side, with the operators `others`, has no counterpart of that class in the module.
    """
    changing = {_class_in_module(other) for other in others if computes_floats(other) and not _is_unchanging(other)}
    return {
        id(operator)
        for operator in operators
        if computes_floats(operator) and _is_unchanging(operator) and _class_in_module(operator) not in changing
    }


def _is_unchanging(operator: Operator) -> bool:
    contents = {record.content for record in (*operator.inputs, *operator.outputs)}
    return len(operator.inputs) == len(operator.outputs) == len(contents) == 1 and None not in contents


def _class_in_module(operator: Operator) -> tuple[str, str]:
    return operator_class(operator.op_type), operator.module or ""
