"""Convert a request to CANN's dump JSON, and describe the process that will dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascend_dump.adapter import DumpRequest
from ascend_dump.native.cann.config.build import acl_config
from ascend_dump.native.cann.config.situation import Situation, in_container
from ascend_dump_acl import OPTIONS

__all__ = ["build", "look_around"]


def build(request: DumpRequest, path: Path, situation: Situation) -> dict[str, Any]:
    """Return the content of the acl.json for a dump into `path`. Raises ConfigError and NotSupported."""
    names = None if situation.operators is None else [node.name for node in situation.operators]
    return acl_config(request.replace(path=path), names=names, known_options=OPTIONS)


def look_around(request: DumpRequest) -> Situation:
    """Return the situation of this process, with facts about the model from the options.

    Raises ReadError if the graph in the options cannot be read.
    """
    situation = Situation.here()._replace(container=in_container(), status_check=request.options.get("status_check"))
    graph = request.options.get("graph")
    if graph is None:
        return situation
    from ascend_dump.native.cann.graph import read_graph

    return situation._replace(operators=list(read_graph(graph)))
