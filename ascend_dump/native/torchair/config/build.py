"""Convert a DumpRequest to the options of `config.dump_config`, or to the dump JSON that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import NotSupported
from ascend_dump.native.cann.config.build import OPTIONS as CANN_OPTIONS
from ascend_dump.native.cann.config.build import acl_config, ge_options

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["ACLGRAPH", "LAYERS", "OPTIONS", "build_options", "build_settings", "needs_json"]

#: The modes of torchair that capture streams (aclgraph) instead of passing graphs to GE.
ACLGRAPH = ("reduce-overhead", "npugraph_ex")
#: The values that torchair accepts as `dump_layer`.
LAYERS = re.compile(r'[0-9a-zA-Z_" /\\.]*')

#: The names that `DumpRequest.options` may contain for torchair, in addition to those for CANN.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "compiler_config": "a torchair.CompilerConfig of your own; filled for the block",
        "dynamic": "as for torch.compile",
        "fullgraph": "as for torch.compile",
        "json": "True: use a JSON file (dump_config_path), even if options would suffice",
        "eager": "True: run the graph eagerly and save every ATen operator as .npy (config.debug.data_dump)",
        "filter": "with eager: a function of an FX node that returns the node, or None to leave it out",
        "data_dump_stage": "in the aclgraph modes: original or optimized",
        "graph_dump": "py, txt or pbtxt: also write the graph with the names of its operators into the dump",
        "graph": "a graph of graph_dump=py (dynamo_optimized_*.py), or of GE (ge_proto_*_Build.txt): patterns in "
        "layers and watch are expanded with it",
        "reset": "True: close GE first, if a graph has initialised it; every graph is compiled anew",
    }
)


def needs_json(request: DumpRequest) -> bool:
    """Return True if a request needs a dump JSON: it asks for one, or `config.dump_config` has no such options."""
    exact = (layer for layer in request.layers if not layer.startswith("re:") and not re.search(r"[*?]|\[.*\]", layer))
    return (
        bool(request.options.get("json"))
        or request.scene is not None
        or bool(request.models)
        or bool(request.stats)
        or request.level == "kernel"
        or any(name in CANN_OPTIONS for name in request.options)
        or any(LAYERS.fullmatch(layer) is None or layer != "".join(layer.split()) for layer in exact)
    )


def build_settings(request: DumpRequest, *, names: Optional[Iterable[str]] = None) -> dict[str, Any]:
    """Return the options of `config.dump_config`, or the dump JSON for `dump_config_path` if they do not suffice.

    Raises ConfigError and NotSupported.
    """
    if needs_json(request):
        return acl_config(request, names=names, known_options=OPTIONS)
    return build_options(request, names=names)


def build_options(request: DumpRequest, *, names: Optional[Iterable[str]] = None) -> dict[str, Any]:
    """Return the options of `config.dump_config` for a request. Raises ConfigError and NotSupported."""
    ge = ge_options(request, names=names, known_options=OPTIONS)
    if ge.get("ge.exec.enableDump") != "1":
        raise NotSupported(
            f"the options of dump_config have no scene={request.scene!r}",
            hint="write a dump JSON (`ascend-dump config --for acl`) and set dump_config_path to it",
        )
    return {
        "enable_dump": True,
        "dump_path": ge["ge.exec.dumpPath"],
        "dump_mode": ge["ge.exec.dumpMode"],
        "quant_dumpable": ge.get("ge.quant_dumpable") == "1",
        "dump_step": ge.get("ge.exec.dumpStep", ""),
        "dump_layer": ge.get("ge.exec.dumpLayer", ""),
        "dump_data": ge["ge.exec.dumpData"],
    }
