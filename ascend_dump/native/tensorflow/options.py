"""The `options` of a request that only TensorFlow has, and the operators that these options name in the graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["OPTIONS", "exact_names", "operators_of"]

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "graph": "GE's graph as text (ge_proto_*_Build.txt): patterns in layers are expanded with it",
        "computational": "operators of the model: the graph with all of them is the computational graph",
        "optimize": "on the host, True: keep Grappler on, so that the dump has its results and names",
        "buffer_bytes": "on the host: maximum number of bytes of tensors that wait for the writer",
    }
)

_PATTERN = re.compile(r"[*?]|\[[^\[\n]*\]|^re:")


def exact_names(names: Union[str, Iterable[str]]) -> list[str]:
    """Return the entries of `layers` that are names and not patterns. names: a list, or a text with blanks."""
    texts = names.split() if isinstance(names, str) else list(names)
    return [text for text in texts if not _PATTERN.search(text)]


def operators_of(request: DumpRequest) -> Optional[list[str]]:
    """Return the operators in the graph file `options["graph"]`, with their names from before fusion.

    None without this option. Raises ReadError.
    """
    graph = request.options.get("graph")
    if graph is None:
        return None
    from ascend_dump.native.cann.graph import read_graph

    operators: dict[str, None] = {}
    for node in read_graph(graph):
        operators.update(dict.fromkeys((node.name, *node.original_names)))
    return list(operators)
