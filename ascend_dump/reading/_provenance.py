"""Of what the operators of a compiled graph were made, from graphs that lie beside a dump.

GE writes `ge_proto_*_Build.txt`: the names of the operators that it fused into one, of each output the operator and
output that it was before (`_datadump_origin_name`, `_datadump_origin_output_index`), and the tensor of PyTorch's graph
(`_fx_tensor_name`). torchair's graph text tells the node of PyTorch's graph that an operator was made for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump._errors import ReadError
from ascend_dump._log import log
from ascend_dump.native.cann.graph import Node, graph_name, read_graph
from ascend_dump.native.cann.names import sanitize

if TYPE_CHECKING:
    from ascend_dump.reading._record import Record
    from ascend_dump.reading._sources import Sources

__all__ = ["MadeOf", "Provenance"]

_FX = re.compile(r"(.+?)\.OUTPUT\.(\d{1,9})", re.DOTALL)


class MadeOf(NamedTuple):
    """What an operator of a compiled graph was in the program.

    names    operators of the graph before it was changed, and nodes of PyTorch's graph, that made what it makes
    outputs  by the number of an output: the operators and outputs that it was, by either of their names
    """

    names: tuple[str, ...] = ()
    outputs: tuple[tuple[int, tuple[tuple[str, int], ...]], ...] = ()


class Provenance:
    """The graphs beside a dump, each read when it is first asked for."""

    def __init__(self, files: Iterable[Path], sources: Optional[Sources]) -> None:
        self._files = sorted(files, key=lambda path: path.name)
        self._sources = sources
        self._paths: Optional[dict[str, Path]] = None
        self._known: dict[str, dict[str, MadeOf]] = {}

    def __bool__(self) -> bool:
        return bool(self._files) or self._sources is not None

    def of(self, record: Record) -> MadeOf:
        """What the operator of a record was made of, as far as a graph of its model tells."""
        model = record.model or ""
        if model not in self._known:
            self._known[model] = self._read(model)
        found = self._known[model].get(record.op_name, MadeOf())
        node = None if self._sources is None else self._sources.node_of(record)
        return found if not node or node in found.names else found._replace(names=(*found.names, node))

    def _read(self, model: str) -> dict[str, MadeOf]:
        if self._paths is None:
            # The last one of a name is that of the last run.
            self._paths = {name: path for path in self._files for name in (_name_of(path),) if name}
        path = self._paths.get(model)
        found: dict[str, MadeOf] = {}
        if path is not None:
            try:
                for node in read_graph(path):
                    made_of = _of_node(node)
                    if made_of.names:
                        # Some names of files are all that is known of an operator's name.
                        found.setdefault(sanitize(node.name), made_of)
                        found[node.name] = made_of
            except ReadError as error:
                log.debug("%s", error)
        return found


def _name_of(path: Path) -> Optional[str]:
    """The directory that the dump of this graph has."""
    try:
        return sanitize(graph_name(path))
    except ReadError as error:
        log.debug("%s", error)
        return None


def _of_node(node: Node) -> MadeOf:
    outputs = []
    for number, origin in enumerate(node.origins):
        told = [(origin.name, origin.output)] if origin.name else []
        told += [(fx, int(output)) for fx, output in reversed(_FX.findall(origin.fx))]
        if told:
            outputs.append((number, tuple(told)))
    # Of those that were fused into one, the last one made what it makes; the others are inside of it.
    names = [*(name for _, told in outputs for name, _ in told), *node.original_names[-1:]]
    return MadeOf(tuple(name for name in dict.fromkeys(names) if name and name != node.name), tuple(outputs))
