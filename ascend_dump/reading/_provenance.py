"""Find the original operators of a compiled graph's operators, from graph files next to a dump.

GE writes `ge_proto_*_Build.txt`. It has the names of fused operators, for each output the original operator and
output (`_datadump_origin_name`, `_datadump_origin_output_index`), and the tensor of PyTorch's graph
(`_fx_tensor_name`). torchair's graph text has the node of PyTorch's graph from which an operator was made.
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
    """The origin of an operator of a compiled graph.

    names    the operators of the original graph, and the nodes of PyTorch's graph, that compute its outputs
    outputs  by the number of an output: the original operators and outputs, by either of their names
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
            # Of several files for one name the last one is that of the last run.
            self._paths = {name: path for path in self._files for name in (_name_of(path),) if name}
        path = self._paths.get(model)
        origins: dict[str, MadeOf] = {}
        if path is not None:
            try:
                for node in read_graph(path):
                    made_of = _of_node(node)
                    if made_of.names:
                        # For some records only the name in the file name is known.
                        origins.setdefault(sanitize(node.name), made_of)
                        origins[node.name] = made_of
            except ReadError as error:
                log.debug("%s", error)
        return origins


def _name_of(path: Path) -> Optional[str]:
    """Return the name of the dump directory of this graph; None if the file cannot be read."""
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
    # Of several fused operators, the last one computes the output.
    names = [*(name for _, origins in outputs for name, _ in origins), *node.original_names[-1:]]
    return MadeOf(tuple(name for name in dict.fromkeys(names) if name and name != node.name), tuple(outputs))
