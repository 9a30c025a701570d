"""Find the model directory of a dump that belongs to the computational graph.

GE builds a graph for each signature of `session.run`. So a training run leaves directories for initialisation, saving
and evaluation, in addition to the directory of the computational graph, which trains. GE writes each built graph as
`ge_proto_*_Build.txt`. The name of the graph is the name of its directory in the dump (document "Dump Data Collection"
of TensorFlow).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump import ReadError
from ascend_dump.native.cann.graph import build_graphs, find_computational, find_model_folders, graph_name
from ascend_dump.native.cann.names import sanitize

__all__ = ["Model", "graph_directory", "models_of", "settle_environment"]

_Path = Union[str, "os.PathLike[str]"]

#: Environment variables that make GE write graphs: without weights, and only graphs that are executed.
_ENVIRONMENT = {"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_LEVEL": "3"}
_DIRECTORY = "DUMP_GRAPH_PATH"
_COLLECT = "NPU_COLLECT_PATH"


class Model(NamedTuple):
    """A graph that GE has built.

    file           its text, `ge_proto_*_Build.txt`
    folders        its directories in the dump
    computational  True for the computational graph
    """

    name: str
    file: Path
    folders: tuple[Path, ...]
    computational: bool


def models_of(root: _Path, graphs: _Path, names: Iterable[str] = (), since: float = 0.0) -> list[Model]:
    """Return the graphs below the directory `graphs`, with their directories below the dump `root`.

    A graph is computational if its text contains `Iterator`, the data pipeline of training (method 1 of the document).
    With `names`, it is computational if it contains all these operators of the user's model (method 2).

    since: files that are older than this time, in seconds since the epoch, are ignored

    Files that cannot be read are ignored too.
    """
    operators = list(names)
    files = [file for file in build_graphs(graphs) if _is_new(file, since)]
    models: dict[str, Model] = {}
    for file in files:
        try:
            name = graph_name(file)
            computes = bool(find_computational([file], operators))
        except ReadError:
            continue
        before = models.get(name)
        folders = tuple(find_model_folders(root, name)) if before is None else before.folders
        # A graph that was built several times has several files; it is computational if one of them is.
        models[name] = Model(name, file, folders, computes or (before is not None and before.computational))
    return list(models.values())


def marks_of(models: Iterable[Model]) -> dict[str, Mapping[str, str]]:
    """Return attributes for records, by the name of their model directory; {} if no computational graph was found."""
    listed = list(models)
    if not any(model.computational for model in listed):
        return {}
    return {
        sanitize(model.name): {
            "graph": "computational" if model.computational else "other",
            "graph_file": str(model.file),
        }
        for model in listed
    }


def settle_environment(default: Path) -> tuple[dict[str, Optional[str]], Path]:
    """Set environment variables that make GE write its graphs, into `default` unless the user has set a directory.

    Returns the earlier values of the variables, and the directory of the graphs.
    """
    before: dict[str, Optional[str]] = {}
    if "DUMP_GE_GRAPH" not in os.environ:
        for name, value in _ENVIRONMENT.items():
            before[name] = os.environ.get(name)
            os.environ.setdefault(name, value)
    if not os.environ.get(_DIRECTORY) and not os.environ.get(_COLLECT):
        before[_DIRECTORY] = os.environ.get(_DIRECTORY)
        os.environ[_DIRECTORY] = os.fspath(default)
    return before, graph_directory()


def graph_directory() -> Path:
    """Return the directory into which GE writes graphs, according to the environment variables."""
    collect = os.environ.get(_COLLECT)
    if collect:
        return Path(collect, "extra-info", "graph")
    return Path(os.environ.get(_DIRECTORY) or os.environ.get("ASCEND_WORK_PATH") or os.getcwd())


def _is_new(file: Path, since: float) -> bool:
    try:
        return file.stat().st_mtime >= since
    except OSError:
        return False
