"""`ascend-dump ops dynamo_optimized_graph_*.py`: list GE's operators with their PyTorch nodes and source lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.ops_listing import show
from ascend_dump.errors import ReadError

if TYPE_CHECKING:
    from ascend_dump.native.torchair.graph import GraphOp

__all__ = ["list_operators"]


def list_operators(
    path: Path, op_type: Optional[str], name: Optional[str], dumped: Optional[bool], as_json: bool
) -> Exit:
    """Print the selected operators of torchair's graph, then the error if the graph is damaged.

    dumped: True for operators that may be dumped, False for those that cannot be, None for all.
    """
    operators, error = _read(path, op_type, name, dumped)
    return show(
        path,
        operators[0].node.graph if operators else "",
        operators,
        error,
        titles=("type", "PyTorch node", "calls", "source", "not dumped because"),
        cells=_cells,
        fields=_fields,
        as_json=as_json,
    )


def _read(
    path: Path, op_type: Optional[str], name: Optional[str], dumped: Optional[bool]
) -> tuple[list[GraphOp], Optional[ReadError]]:
    from ascend_dump.common.patterns import text_matcher
    from ascend_dump.native.torchair.graph import read_torchair_graph

    of_type = text_matcher(op_type or "*")
    of_name = text_matcher(name or "*")
    operators = []
    try:
        for operator in read_torchair_graph(path):
            # PyTorch nodes without an operator of GE, such as views, are not listed.
            if not operator.node.type or not of_type(operator.node.type):
                continue
            if (of_name(operator.node.name) or of_name(operator.fx)) and dumped in (None, _may_be_dumped(operator)):
                operators.append(operator)
    except ReadError as error:
        return operators, error
    return operators, None


def _may_be_dumped(operator: GraphOp) -> bool:
    reason = operator.why_no_dump()
    return reason is None or not reason.certain


def _cells(operator: GraphOp) -> list[str]:
    reason = operator.why_no_dump()
    why = "-" if reason is None else reason.reason
    names = (operator.fx, operator.target, operator.source)
    return [operator.node.name, operator.node.type, *(name or "-" for name in names), why]


def _fields(operator: GraphOp) -> dict[str, Any]:
    reason = operator.why_no_dump()
    return {
        "name": operator.node.name,
        "type": operator.node.type,
        "inputs": operator.node.inputs,
        "graph": operator.node.graph,
        "fx_node": operator.fx or None,
        "fx_target": operator.target or None,
        "source": operator.source or None,
        "no_dump": None if reason is None else {"reason": reason.reason, "certain": reason.certain},
    }
