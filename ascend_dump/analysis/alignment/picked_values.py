"""Find operators that do not belong to what a model computes, so that they are not compared.

A program keeps the logits of some tokens, or picks the logits of the next token. Each program picks other tokens, so
operators that pick are not the same in two programs, even if they have the same name. Besides, a general engine
multiplies by factors that are 1 for this model.
"""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["is_unchanging", "picking_operators", "unchanging_operators"]


def picking_operators(operators: Sequence[Operator]) -> set[int]:
    """Return the `id` of each operator of a call that picks or copies values from which nothing more is computed.

    Operators inside of modules are never returned.
    """
    picking: set[int] = set()
    storages_read: set[int] = set()
    for operator in reversed(operators):
        storages = [memory[0] for record in operator.outputs if (memory := storage_of(record)) is not None]
        if not operator.module and moves_elements(operator.op_type) and storages and storages_read.isdisjoint(storages):
            picking.add(id(operator))
        elif operator.module or computes_floats(operator):
            storages_read.update(memory[0] for record in operator.inputs if (memory := storage_of(record)) is not None)
    return picking


def unchanging_operators(operators: Sequence[Operator], operators_of_other_side: Sequence[Operator]) -> set[int]:
    """Return the `id` of each operator whose output has the bytes of its input, such as a multiplication by 1.

    An operator is not returned if an operator of the same class and module changes its input on the other side.
    """
    changing = {
        _class_in_module(operator)
        for operator in operators_of_other_side
        if computes_floats(operator) and not is_unchanging(operator)
    }
    return {
        id(operator)
        for operator in operators
        if computes_floats(operator) and is_unchanging(operator) and _class_in_module(operator) not in changing
    }


def is_unchanging(operator: Operator) -> bool:
    """Return True if the output of an operator has the bytes of its only input."""
    contents = {record.content for record in (*operator.inputs, *operator.outputs)}
    return len(operator.inputs) == len(operator.outputs) == len(contents) == 1 and None not in contents


def _class_in_module(operator: Operator) -> tuple[str, str]:
    return operator_class(operator.op_type), operator.module or ""
