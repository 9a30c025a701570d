"""`ascend-dump ops dynamo_optimized_graph_*.py`: GE's operators with the PyTorch nodes and lines they come from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.failure import error_fields
from ascend_dump.errors import ReadError

if TYPE_CHECKING:
    from ascend_dump.native.torchair.graph import GraphOp

__all__ = ["list_operators"]


def list_operators(
    path: Path, op_type: Optional[str], name: Optional[str], dumped: Optional[bool], as_json: bool
) -> Exit:
    """Print the operators of torchair's graph that pass the tests, then how the graph is damaged, if it is."""
    found, error = _read(path, op_type, name, dumped)
    model = found[0].node.graph if found else ""
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = {"path": path, "model": model, "operators": map(_fields, found)}
        write_document(sys.stdout, "ops", {**fields, "error": None if error is None else error_fields(error)})
    else:
        _write_text(path, model, found)
    if error is None:
        return Exit.OK
    from ascend_dump.report.tables import escape_lines

    print(f"error: {escape_lines(str(error))}", file=sys.stderr)
    return exit_code(error)


def _read(
    path: Path, op_type: Optional[str], name: Optional[str], dumped: Optional[bool]
) -> tuple[list[GraphOp], Optional[ReadError]]:
    from ascend_dump.common.patterns import text_matcher
    from ascend_dump.native.torchair.graph import read_torchair_graph

    of_type = text_matcher(op_type or "*")
    of_name = text_matcher(name or "*")
    found = []
    try:
        for one in read_torchair_graph(path):
            # A node without an operator of its own, such as a view, has nothing to select.
            if not one.node.type or not of_type(one.node.type):
                continue
            if (of_name(one.node.name) or of_name(one.fx)) and dumped in (None, _may_be_dumped(one)):
                found.append(one)
    except ReadError as error:
        return found, error
    return found, None


def _may_be_dumped(one: GraphOp) -> bool:
    reason = one.why_no_dump()
    return reason is None or not reason.certain


def _write_text(path: Path, model: str, found: list[GraphOp]) -> None:
    from ascend_dump.report.tables import Column, counted, escape, write_table

    print(escape(f"{path}: model {model or '-'}"))
    titles = ("type", "PyTorch node", "calls", "source", "not dumped because")
    count = write_table([Column("name", elastic=True), *map(Column, titles)], map(_cells, found), sys.stdout)
    print(f"\n{counted(count, 'operator')}" if count else "no operator matches")


def _cells(one: GraphOp) -> list[str]:
    reason = one.why_no_dump()
    why = "-" if reason is None else reason.reason
    return [one.node.name, one.node.type, one.fx or "-", one.target or "-", one.source or "-", why]


def _fields(one: GraphOp) -> dict[str, Any]:
    reason = one.why_no_dump()
    return {
        "name": one.node.name,
        "type": one.node.type,
        "inputs": one.node.inputs,
        "graph": one.node.graph,
        "fx_node": one.fx or None,
        "fx_target": one.target or None,
        "source": one.source or None,
        "no_dump": None if reason is None else {"reason": reason.reason, "certain": reason.certain},
    }
