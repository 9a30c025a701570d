"""`ascend-dump ops trace_code_graph_*.ir`: list the operators of a graph of MindSpore, for `layers=` and `kernels`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.ops_listing import show

if TYPE_CHECKING:
    from ascend_dump.native.mindspore.graph import GraphOperator

__all__ = ["list_operators"]

_NO_KERNEL = "MindSpore runs no kernel for it"


def list_operators(
    path: Path, op_type: Optional[str], name: Optional[str], dumped: Optional[bool], as_json: bool
) -> Exit:
    """Print the selected operators of the graph. Raises ReadError if the text contains no operators.

    dumped: True for operators that can be dumped, False for those that cannot, None for all
    """
    from ascend_dump.common.patterns import text_matcher
    from ascend_dump.native.mindspore.graph import read_ir

    of_type, of_name = text_matcher(op_type or "*"), text_matcher(name or "*")
    operators = [
        operator
        for operator in read_ir(path)
        if of_type(operator.type) and of_name(operator.name) and dumped in (None, operator.has_kernel)
    ]
    titles = ("type", "source", "not dumped because")
    return show(path, "", operators, None, titles=titles, cells=_cells, fields=_fields, as_json=as_json)


def _cells(operator: GraphOperator) -> list[str]:
    return [operator.name, operator.type, operator.source or "-", "-" if operator.has_kernel else _NO_KERNEL]


def _fields(operator: GraphOperator) -> dict[str, Any]:
    from ascend_dump.native.mindspore.graph import module_of, phase_of

    return {
        "name": operator.name,
        "type": operator.type,
        "module": module_of(operator.name),
        "phase": phase_of(operator.name),
        "source": operator.source,
        "stack": list(operator.stack),
        "no_dump": None if operator.has_kernel else {"reason": _NO_KERNEL, "certain": True},
    }
