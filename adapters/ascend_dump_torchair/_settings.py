"""Convert a request to torchair's settings: the kind of dump (road), and the options to set on a CompilerConfig."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ascend_dump import ConfigError, NotSupported
from ascend_dump.adapter import DumpRequest, RunDirectory, text_matcher
from ascend_dump.native.cann.config.build import OPTIONS as CANN_OPTIONS
from ascend_dump.native.cann.config.build import acl_config
from ascend_dump.native.torchair.config.build import ACLGRAPH, OPTIONS, build_options, needs_json

__all__ = [
    "SettingsPlan",
    "TorchairSettings",
]

_SWITCHES = ("json", "eager", "reset")


class TorchairSettings(NamedTuple):
    """The settings of torchair for a request.

    road     the kind of dump: "options" (GE, by options), "json" (GE, by a dump JSON), "aclgraph", or "eager" (the
             dumper of graphs that run eagerly)
    options  the options to set on the CompilerConfig
    file     the content of the dump JSON, None if none is needed
    """

    road: str
    options: Mapping[str, Any]
    file: Optional[dict[str, Any]] = None


def _find_road(request: DumpRequest, mode: str) -> str:
    """Return the kind of dump that can fulfil the request. mode: the mode of the CompilerConfig.

    Raises NotSupported and ConfigError.
    """
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
    return "json" if needs_json(request) else "options"


def _refuse_scenes(request: DumpRequest, what: str, hint: str) -> None:
    if request.scene is not None:
        raise NotSupported(f"{what} has no scene={request.scene!r}", hint=hint)
    for name in request.options:
        if name in CANN_OPTIONS:
            raise NotSupported(f"{what} has no options[{name!r}]", hint=hint)


def _names_of(request: DumpRequest) -> Optional[list[str]]:
    """Return the names of operators in the graph file of the request; None if the request names no graph file.

    Raises ConfigError and ReadError.
    """
    graph = request.options.get("graph")
    if graph is None:
        return None
    if not isinstance(graph, (str, os.PathLike)):
        raise ConfigError(f"options['graph']={graph!r}: expected the path of a file", hint=OPTIONS["graph"])
    from ascend_dump.native.torchair.graph import operator_names

    return operator_names(graph)


class SettingsPlan:
    """The settings of a request for one run. They are built once for all configs with the same mode and options.

    file  path of the dump JSON, which is written if needed; by default next to the directory of the run
    """

    def __init__(self, request: DumpRequest, run: RunDirectory, file: Optional[Path] = None) -> None:
        self._request = request
        self._run = run
        self.file = run.beside("torchair.json") if file is None else file
        self._built: dict[tuple[str, frozenset[str]], TorchairSettings] = {}

    def is_of(self, request: DumpRequest, run: RunDirectory) -> bool:
        return self._request is request and self._run == run

    def settings(self, options: Mapping[str, Any]) -> TorchairSettings:
        """Return the settings for a config with these options.

        Raises ConfigError, NotSupported (also for an option that the config does not have), and ReadError for the
        graph file.
        """
        key = (options["mode"], frozenset(options))
        if key not in self._built:
            self._built[key] = _build(self._request, options["mode"], options.keys(), self._run.path, self.file)
        return self._built[key]


def _build(request: DumpRequest, mode: str, has: Set[str], root: Path, file: Path) -> TorchairSettings:
    """Build the settings. mode: mode of the config. has: names of its options. file: path of the dump JSON."""
    for name in request.options:
        if name not in OPTIONS and name not in CANN_OPTIONS:
            raise ConfigError(f"options: {name!r} is unknown", hint=f"known: {', '.join([*OPTIONS, *CANN_OPTIONS])}")
    road = _find_road(request, mode)
    options: dict[str, Any] = {}
    config_file = None
    if road == "eager":
        options = {
            "debug.data_dump.type": "npy",
            "debug.data_dump.path": os.fspath(root),
            "debug.data_dump.filter": _filter(request),
            "dump_config.enable_dump": False,
        }
    elif road == "aclgraph":
        options = {"dump_config.dump_path": os.fspath(root), "dump_config.enable_dump": True}
        if "data_dump_stage" in request.options:
            options["dump_config.data_dump_stage"] = request.options["data_dump_stage"]
    else:
        request, names = request.replace(path=root), _names_of(request)
        if road == "json":
            config_file = acl_config(request, names=names, known_options=OPTIONS)
            options = {"dump_config.enable_dump": False, "dump_config.dump_config_path": os.fspath(file)}
        else:
            options = {f"dump_config.{name}": value for name, value in build_options(request, names=names).items()}
            if "dump_config.dump_config_path" in has:
                options["dump_config.dump_config_path"] = None
            if "dump_config.dump_data" not in has and request.data == "tensor":
                del options["dump_config.dump_data"]
    if "graph_dump" in request.options:
        options["debug.graph_dump.type"] = request.options["graph_dump"]
        options["debug.graph_dump.path"] = os.fspath(root)
    for option in options:
        if option not in has:
            raise NotSupported(
                f"this torchair has no option config.{option}", hint="install a later version of torch_npu"
            )
    return TorchairSettings(road, options, config_file)


def _filter(request: DumpRequest) -> Any:
    """Return the function by which the eager dumper selects FX nodes, None to select all.

    It is the function in options={'filter': …}, or a function that compares the names of a node and of its operator
    with `layers=`.
    """
    function = request.options.get("filter")
    if function is not None:
        if not callable(function):
            raise ConfigError(f"options['filter']={function!r}: expected a function", hint=OPTIONS["filter"])
        return function
    if not request.layers:
        return None
    matchers = [text_matcher(layer) for layer in request.layers]

    def select(node: Any) -> Any:
        names = (node.name, str(node.target))
        return node if any(matches(name) for matches in matchers for name in names) else None

    return select
