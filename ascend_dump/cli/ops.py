"""`ascend-dump ops`: list the operators of a graph, and the reasons why some are never dumped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.ops_listing import show
from ascend_dump.cli.shared.reading import json_option, progress
from ascend_dump.errors import ConfigError, DumpNotFound, ReadError
from ascend_dump.storage import located

if TYPE_CHECKING:
    from ascend_dump.native.cann.graph import Node

_Test = Callable[["Node"], bool]


@click.command(short_help="List the operators of a graph, for layers=.")
@click.argument("graph", type=click.Path())
@click.option("--type", "op_type", metavar="TEXT", help="Operator types: a glob such as MatMul*, or re:PATTERN.")
@click.option(
    "--name", metavar="TEXT", help="Names of operators, or of operators fused into them: a glob, or re:PATTERN."
)
@click.option("--dumped/--not-dumped", default=None, help="Only operators that can be dumped, or only the others.")
@json_option
def ops(graph: str, op_type: Optional[str], name: Optional[str], dumped: Optional[bool], as_json: bool) -> Exit:
    """List the operators of GRAPH by their names for layers=.

    GRAPH is a ge_proto_*.txt of GE, a dynamo_*_graph_*.py of torchair, or a trace_code_graph_*.ir of MindSpore.

    If GRAPH is a directory, the computational graph among its ge_proto_*_Build.txt files is used: the graph with the
    data pipeline (Iterator), or else the graph whose text contains --name. The column `not dumped because` contains the
    reason for operators that are never dumped. Operators in an unused branch are not dumped either.

    For a dynamo_*_graph_*.py file, torchair's graph as Python text, the PyTorch node of each operator and its source
    line are listed too, if the text has them; --name also matches PyTorch nodes.

    An .ir file is part of a dump of MindSpore (graphs/), or written with MS_DEV_SAVE_GRAPHS=2; the numbers after -op
    may differ in the dump of a second graph.

    The heading names the `model`: the directory that will contain the dump of a graph of GE.
    """
    from ascend_dump.native.cann.graph import graph_name
    from ascend_dump.native.cann.names import sanitize

    if graph.endswith(".py"):
        from ascend_dump.cli.shared.ops_torchair import list_operators

        return list_operators(located(graph), op_type, name, dumped, as_json)
    if graph.endswith(".ir"):
        from ascend_dump.cli.shared.ops_mindspore import list_operators

        return list_operators(located(graph), op_type, name, dumped, as_json)
    path = _choose(located(graph), name)
    model = sanitize(graph_name(path))
    tests = _tests(op_type, name)
    if dumped is not None:
        tests.append(lambda node: _may_be_dumped(node) is dumped)
    nodes, error = _read(path, tests)
    titles = ("type", "fused from", "not dumped because")
    return show(path, model, nodes, error, titles=titles, cells=_cells, fields=_fields, as_json=as_json)


def _read(path: Path, tests: list[_Test]) -> tuple[list[Node], Optional[ReadError]]:
    """Return the operators that pass all tests; and the error that ended the reading early, or None."""
    from ascend_dump.native.cann.graph import read_graph

    nodes = []
    try:
        for node in progress(read_graph(path), "operators"):
            if all(test(node) for test in tests):
                nodes.append(node)
    except ReadError as error:
        return nodes, error
    return nodes, None


def _choose(path: Path, name: Optional[str]) -> Path:
    if not path.is_dir():
        return path
    from ascend_dump.native.cann.graph import build_graphs, find_computational

    graphs = build_graphs(path)
    if not graphs:
        raise DumpNotFound(
            "contains no ge_proto_*_Build.txt",
            path=path,
            hint="set DUMP_GE_GRAPH=2 and DUMP_GRAPH_PATH before the run, or give the directory it wrote to; "
            "for MindSpore, give a file: graphs/*.ir of a dump",
        )
    candidates = find_computational(graphs)
    if len(candidates) != 1 and name is not None:
        candidates = find_computational(candidates or graphs, [name.strip("*")])
    if len(candidates) == 1:
        return candidates[0]
    listed = "\n".join(f"  {graph}" for graph in (candidates or graphs)[:20])
    which = f"{len(candidates)} of them fit" if candidates else "none of them fits"
    raise ConfigError(
        f"{path} contains {len(graphs)} graphs as executed (ge_proto_*_Build.txt), {which}:\n{listed}",
        hint="give one of the files, or --name with the name of an operator of your model",
    )


def _tests(op_type: Optional[str], name: Optional[str]) -> list[_Test]:
    from ascend_dump.common.patterns import text_matcher

    tests: list[_Test] = []
    if op_type is not None:
        of_type = text_matcher(op_type)
        tests.append(lambda node: of_type(node.type) or of_type(node.original_type))
    if name is not None:
        of_name = text_matcher(name)
        tests.append(lambda node: of_name(node.name) or any(map(of_name, node.original_names)))
    return tests


def _may_be_dumped(node: Node) -> bool:
    from ascend_dump.native.cann.graph import why_no_dump

    reason = why_no_dump(node)
    return reason is None or not reason.certain


def _fused(node: Node) -> Iterator[str]:
    return (name for name in node.original_names if name != node.name)


def _cells(node: Node) -> list[str]:
    from ascend_dump.native.cann.graph import why_no_dump

    reason = why_no_dump(node)
    kind = f"{node.type} ({node.original_type})" if node.original_type else node.type
    return [node.name, kind, ", ".join(_fused(node)) or "-", "-" if reason is None else reason.reason]


def _fields(node: Node) -> dict[str, Any]:
    from ascend_dump.native.cann.graph import why_no_dump

    reason = why_no_dump(node)
    fields: dict[str, Any] = {
        "name": node.name,
        "type": node.type,
        "original_type": node.original_type or None,
        "original_names": node.original_names,
        "inputs": node.inputs,
        "graph": node.graph,
        "id": node.id,
        "stream_id": node.stream_id,
    }
    fields["no_dump"] = None if reason is None else {"reason": reason.reason, "certain": reason.certain}
    return fields
