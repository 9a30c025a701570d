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

__all__ = ["picking_operators", "unchanging_operators"]


def picking_operators(operators: Sequence[Operator]) -> set[int]:
    """Return the `id` of each operator of a call that picks or copies values from which nothing more is computed.

    Operators inside of modules are never returned.
    """
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
    """Return the `id` of each operator whose output has the bytes of its input, such as a multiplication by 1.

    An operator is not returned if the other side has one of its class in this module that does change its input.

    others: the operators of the other side
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
