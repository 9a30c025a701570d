"""Find an operator's line of the program and its node of PyTorch's graph, in torchair's graph files next to a dump."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.errors import ReadError
from ascend_dump.native.torchair.graph import parse_graph_file, read_torchair_graph
from ascend_dump.storage.files import children

if TYPE_CHECKING:
    from ascend_dump.reading._record import Record

__all__ = ["Sources", "graphs_beside", "is_ge_graph", "is_graph_file"]

log = logging.getLogger("ascend_dump")

_MODEL = re.compile(r"graph_(\d{1,9})", re.ASCII)


class _GraphNames(NamedTuple):
    """The content of a graph file, by the names of operators: lines of the program, and nodes of PyTorch's graph."""

    lines: dict[str, str]
    nodes: dict[str, str]


class Sources:
    """torchair's graph files, each read on first use."""

    def __init__(self, files: Iterable[Path]) -> None:
        named = [(parsed, path) for path in files for parsed in (parse_graph_file(path.name),) if parsed is not None]
        # Later files of the same graph replace earlier ones below: the optimized graph of the last run is used.
        named.sort(key=lambda pair: (pair[0].kind == "optimized", pair[0].time))
        self._files = {(parsed.id, parsed.rank): path for parsed, path in named}
        self._known: dict[Path, _GraphNames] = {}

    def __bool__(self) -> bool:
        return bool(self._files)

    def find(self, record: Record) -> Optional[str]:
        """Return `file:line` of the program for the operator of a record; None if it is unknown.

        The operator's name may be the one in GE's graph or the one in PyTorch's graph.
        """
        names = self._names_of(record)
        return None if names is None else names.lines.get(record.op_name)

    def node_of(self, record: Record) -> Optional[str]:
        """Return the node of PyTorch's graph from which the operator of a record was made; None if it is unknown."""
        names = self._names_of(record)
        return None if names is None else names.nodes.get(record.op_name)

    def _names_of(self, record: Record) -> Optional[_GraphNames]:
        path = self.graph_of(record)
        if path is None:
            return None
        if path not in self._known:
            self._known[path] = _read(path)
        return self._known[path]

    def graph_of(self, record: Record) -> Optional[Path]:
        """Return the file of the graph with the operator of a record; None if it is unknown."""
        rank = record.rank or 0
        model = _MODEL.fullmatch(record.model or "")
        if model is not None:
            return self._files.get((int(model[1]), rank))
        if record.model is not None:
            return None
        # If the record has no model, the graph is certain only if the rank has a single one.
        paths = [path for (_, of_rank), path in self._files.items() if of_rank == rank]
        return paths[0] if len(paths) == 1 else None


def _read(path: Path) -> _GraphNames:
    names = _GraphNames({}, {})
    last: dict[str, str] = {}
    try:
        for operator in read_torchair_graph(path):
            if operator.source:
                names.lines.setdefault(operator.node.name, operator.source)
                names.lines.setdefault(operator.fx, operator.source)
            if operator.fx and operator.node.type:
                last[operator.fx] = operator.node.name
    except ReadError as error:
        log.debug("%s", error)
    # If several operators were made from a node, the last one computes its value.
    names.nodes.update((name, node) for node, name in last.items())
    return names


def is_graph_file(name: str) -> bool:
    """Return True if this is the name of a graph file of torchair. Fast, as it is called for every file of a dump."""
    return name.startswith("dynamo_") and parse_graph_file(name) is not None


def graphs_beside(root: Path) -> list[Path]:
    """Return the graph files of torchair and GE in the parent directory of `root`.

    By default they write graphs to the working directory, which is often the parent of the dump.
    """
    try:
        above = root.absolute().parent
        return [above / name for name in children(above)[1] if is_graph_file(name) or is_ge_graph(name)]
    except OSError:
        return []


def is_ge_graph(name: str) -> bool:
    """Return True if this is the name of a graph file of GE. Fast, as it is called for every file of a dump."""
    return name.startswith("ge_proto_") and name.endswith("_Build.txt")
