"""A request as torchair's options: which road it takes, and what is set on a CompilerConfig for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ascend_dump._errors import ConfigError, NotSupported
from ascend_dump._patterns import text_matcher
from ascend_dump._request import DumpRequest
from ascend_dump.native.cann.config.build import OPTIONS as CANN_OPTIONS
from ascend_dump.native.cann.config.build import acl_config, ge_options
from ascend_dump_torchair._config import has, mode_of

__all__ = [
    "ACLGRAPH",
    "LAYERS",
    "OF_MODULES",
    "OF_ROADS",
    "OPTIONS",
    "Settings",
    "build_options",
    "build_settings",
    "find_road",
    "names_of",
]

#: The modes that capture graphs instead of handing them to GE.
ACLGRAPH = ("reduce-overhead", "npugraph_ex")
#: What torchair takes as `dump_layer`.
LAYERS = re.compile(r'[0-9a-zA-Z_" /\\.]*')

#: What `options` may hold beside what the dump JSON itself knows.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "compiler_config": "a torchair.CompilerConfig of your own; filled for the block",
        "dynamic": "as torch.compile takes it",
        "fullgraph": "as torch.compile takes it",
        "json": "True: set the dump by a JSON file (dump_config_path) also where options could say it",
        "eager": "True: run the graph eagerly and save every ATen operator as .npy (config.debug.data_dump)",
        "filter": "with eager: a function of an FX node that returns the node, or None to leave it out",
        "data_dump_stage": "of the aclgraph modes: original or optimized",
        "graph_dump": "py, txt or pbtxt: also write the graph with the names of its operators into the dump",
        "graph": "a graph of graph_dump=py (dynamo_optimized_*.py), or of GE (ge_proto_*_Build.txt): patterns in "
        "layers and watch are expanded with it",
        "reset": "True: close GE first, when a graph has initialised it already; every graph is compiled anew",
    }
)
_SWITCHES = ("json", "eager", "reset")
#: Options that only some roads look at; those of torch.compile need a module that is compiled for the block.
OF_ROADS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "json": ("json",),
        "filter": ("eager",),
        "data_dump_stage": ("aclgraph",),
        "graph": ("options", "json"),
    }
)
OF_MODULES = ("dynamic", "fullgraph")


class Settings(NamedTuple):
    """road: "options", "json", "aclgraph" or "eager". options: of the CompilerConfig. file: the dump JSON."""

    road: str
    options: Mapping[str, Any]
    file: Optional[dict[str, Any]] = None


def find_road(request: DumpRequest, mode: str) -> str:
    """Which of torchair's ways can say the request. Raises NotSupported and ConfigError."""
    for name in _SWITCHES:
        if not isinstance(request.options.get(name, False), bool):
            raise ConfigError(
                f"options[{name!r}]={request.options[name]!r}: expected True or False", hint=OPTIONS[name]
            )
    captured = mode in ACLGRAPH
    if request.options.get("eager"):
        _refuse_scenes(request, "the eager dumper", "leave out options={'eager': True}")
        return "eager"
    if captured:
        hint = "use the mode max-autotune, or framework='torch_npu' for the kernels that the graph launches"
        _refuse_scenes(request, f"the mode {mode}", hint)
        return "aclgraph"
    json_only = (
        request.scene is not None,
        bool(request.models),
        bool(request.stats),
        request.level == "kernel",
        any(name in CANN_OPTIONS for name in request.options),
        any(LAYERS.fullmatch(layer) is None or layer != "".join(layer.split()) for layer in _exact(request.layers)),
    )
    return "json" if request.options.get("json") or any(json_only) else "options"


def _exact(layers: Iterable[str]) -> list[str]:
    """The layers that are no patterns."""
    return [layer for layer in layers if not layer.startswith("re:") and not re.search(r"[*?]|\[.*\]", layer)]


def _refuse_scenes(request: DumpRequest, what: str, hint: str) -> None:
    if request.scene is not None:
        raise NotSupported(f"{what} has no scene={request.scene!r}", hint=hint)
    for name in request.options:
        if name in CANN_OPTIONS:
            raise NotSupported(f"{what} has no options[{name!r}]", hint=hint)


def names_of(request: DumpRequest) -> Optional[list[str]]:
    """The operators of the graph that the request names. Raises ConfigError and ReadError."""
    graph = request.options.get("graph")
    if graph is None:
        return None
    if not isinstance(graph, (str, os.PathLike)):
        raise ConfigError(f"options['graph']={graph!r}: expected the path of a file", hint=OPTIONS["graph"])
    from ascend_dump.native.cann.graph import read_graph
    from ascend_dump.native.torchair.graph import parse_graph_file, read_torchair_graph

    if parse_graph_file(Path(graph).name) is not None:
        return [one.node.name for one in read_torchair_graph(graph) if one.node.type]
    return [node.name for node in read_graph(graph)]


def build_settings(request: DumpRequest, config: Any, root: Path, file: Path) -> Settings:
    """What to set on `config` for a dump into `root`. file: where the dump JSON will be.

    Raises ConfigError, NotSupported, and ReadError for the graph.
    """
    for name in request.options:
        if name not in OPTIONS and name not in CANN_OPTIONS:
            known = ", ".join([*OPTIONS, *CANN_OPTIONS])
            raise ConfigError(f"options: {name!r} is unknown", hint=f"known: {known}")
    road = find_road(request, mode_of(config))
    request = request.replace(path=root)
    found: dict[str, Any] = {}
    config_file = None
    if road == "json":
        config_file = acl_config(request, names=names_of(request), known_options=OPTIONS)
        found = {"dump_config.enable_dump": False, "dump_config.dump_config_path": os.fspath(file)}
    elif road == "eager":
        found = {
            "debug.data_dump.type": "npy",
            "debug.data_dump.path": os.fspath(root),
            "debug.data_dump.filter": _filter(request),
            "dump_config.enable_dump": False,
        }
    elif road == "aclgraph":
        found = {"dump_config.dump_path": os.fspath(root), "dump_config.enable_dump": True}
        if "data_dump_stage" in request.options:
            found["dump_config.data_dump_stage"] = request.options["data_dump_stage"]
    else:
        found = {f"dump_config.{name}": value for name, value in build_options(request, names_of(request)).items()}
        if has(config, "dump_config.dump_config_path"):
            found["dump_config.dump_config_path"] = None
        if not has(config, "dump_config.dump_data") and request.data == "tensor":
            del found["dump_config.dump_data"]
    if "graph_dump" in request.options:
        found["debug.graph_dump.type"] = request.options["graph_dump"]
        found["debug.graph_dump.path"] = os.fspath(root)
    return Settings(road, found, config_file)


def build_options(request: DumpRequest, names: Optional[Iterable[str]] = None) -> dict[str, Any]:
    """The options of `config.dump_config` for what they can say. Raises ConfigError and NotSupported."""
    asked = ge_options(request, names=names, known_options=OPTIONS)
    if asked.get("ge.exec.enableDump") != "1":
        raise NotSupported(
            f"the options of dump_config have no scene={request.scene!r}",
            hint="write a dump JSON (`ascend-dump config --for acl`) and set dump_config_path to it",
        )
    return {
        "enable_dump": True,
        "dump_path": asked["ge.exec.dumpPath"],
        "dump_mode": asked["ge.exec.dumpMode"],
        "quant_dumpable": asked.get("ge.quant_dumpable") == "1",
        "dump_step": asked.get("ge.exec.dumpStep", ""),
        "dump_layer": asked.get("ge.exec.dumpLayer", ""),
        "dump_data": asked["ge.exec.dumpData"],
    }


def _filter(request: DumpRequest) -> Any:
    """Which FX nodes the eager dumper saves: by the name of the node or of its ATen operator."""
    given = request.options.get("filter")
    if given is not None:
        if not callable(given):
            raise ConfigError(f"options['filter']={given!r}: expected a function", hint=OPTIONS["filter"])
        return given
    if not request.layers:
        return None
    matchers = [text_matcher(layer) for layer in request.layers]

    def wanted(node: Any) -> Any:
        names = (node.name, str(node.target))
        return node if any(matches(name) for matches in matchers for name in names) else None

    return wanted
