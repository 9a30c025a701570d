"""What `options=` may hold for TensorFlow, beside what GE's session options know, and the operators it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    from ascend_dump._request import DumpRequest

__all__ = ["OPTIONS", "exact_names", "operators_of"]

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "graph": "GE's graph as text (ge_proto_*_Build.txt): patterns in layers are expanded with it",
        "computational": "operators of the model: the graph that holds them all is the computational one",
        "optimize": "on the host, True: keep Grappler on, whose results and names the dump then has",
        "buffer_bytes": "on the host: how many bytes of tensors may wait for the writer",
    }
)

_PATTERN = re.compile(r"[*?]|\[.*\]|^re:")


def exact_names(names: Union[str, Iterable[str]]) -> list[str]:
    """The names among layers that are no patterns."""
    texts = names.split() if isinstance(names, str) else list(names)
    return [text for text in texts if not _PATTERN.search(text)]


def operators_of(request: DumpRequest) -> Optional[list[str]]:
    """The operators of `options["graph"]`, None without. Raises ReadError."""
    graph = request.options.get("graph")
    if graph is None:
        return None
    from ascend_dump.native.cann.graph import read_graph

    found: dict[str, None] = {}
    for node in read_graph(graph):
        found.update(dict.fromkeys((node.name, *node.original_names)))
    return list(found)
