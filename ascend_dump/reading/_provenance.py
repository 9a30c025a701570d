"""Find the operators of the program from which a compiler made an operator, in graph files next to a dump.

GE writes `ge_proto_*_Build.txt`. For an operator it has the names of the operators that were fused into it. For each
output it has the original operator and output (`_datadump_origin_name`, `_datadump_origin_output_index`) and the
tensor of PyTorch's FX graph (`_fx_tensor_name`). torchair's graph file has the node of the FX graph for each operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.common.log import log
from ascend_dump.errors import ReadError
from ascend_dump.native.cann.graph import Node, graph_name, read_graph
from ascend_dump.native.cann.names import sanitize

if TYPE_CHECKING:
    from ascend_dump.reading._record import Record
    from ascend_dump.reading.sources import Sources

__all__ = ["MadeOf", "Provenance"]

_FX = re.compile(r"(.+?)\.OUTPUT\.(\d{1,9})", re.DOTALL)


class MadeOf(NamedTuple):
    """The operators of the program from which an operator of a compiled graph was made; empty if unknown.

    names    names of original operators and of nodes of PyTorch's FX graph
    outputs  pairs (index of an output, its (name, output index) in the original graph and in the FX graph)
    """

    names: tuple[str, ...] = ()
    outputs: tuple[tuple[int, tuple[tuple[str, int], ...]], ...] = ()


class Provenance:
    """The graph files next to a dump, each read on first use."""

    def __init__(self, files: Iterable[Path], sources: Optional[Sources]) -> None:
        self._files = sorted(files, key=lambda path: path.name)
        self._sources = sources
        self._paths: Optional[dict[str, Path]] = None
        self._known: dict[str, dict[str, MadeOf]] = {}

    def __bool__(self) -> bool:
        return bool(self._files) or self._sources is not None

    def of(self, record: Record) -> MadeOf:
        """Return the origin of the operator of a record; empty if no graph file of its model has it."""
        model = record.model or ""
        if model not in self._known:
            self._known[model] = self._read(model)
        made_of = self._known[model].get(record.op_name, MadeOf())
        node = None if self._sources is None else self._sources.node_of(record)
        return made_of if not node or node in made_of.names else made_of._replace(names=(*made_of.names, node))

    def _read(self, model: str) -> dict[str, MadeOf]:
        if self._paths is None:
            # Several files may have one graph name. File names are numbered, so the last one is of the last run.
            self._paths = {name: path for path in self._files for name in (_name_of(path),) if name}
        path = self._paths.get(model)
        origins: dict[str, MadeOf] = {}
        if path is not None:
            try:
                for node in read_graph(path):
                    made_of = _of_node(node)
                    if made_of.names:
                        # Some records have only the name as written in the file name, see `sanitize`.
                        origins.setdefault(sanitize(node.name), made_of)
                        origins[node.name] = made_of
            except ReadError as error:
                log.debug("%s", error)
        return origins


def _name_of(path: Path) -> Optional[str]:
    """Return the name that the dump directory of this graph has; None if the graph file cannot be read."""
    try:
        return sanitize(graph_name(path))
    except ReadError as error:
        log.debug("%s", error)
        return None


def _of_node(node: Node) -> MadeOf:
    outputs = []
    for number, origin in enumerate(node.origins):
        origins = [(origin.name, origin.output)] if origin.name else []
        origins += [(fx, int(output)) for fx, output in reversed(_FX.findall(origin.fx))]
        if origins:
            outputs.append((number, tuple(origins)))
    # The last one of the fused operators computes the output of the fusion.
    names = [*(name for _, origins in outputs for name, _ in origins), *node.original_names[-1:]]
    return MadeOf(tuple(name for name in dict.fromkeys(names) if name and name != node.name), tuple(outputs))
