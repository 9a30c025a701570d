"""Read GE's graph files (`ge_proto_*.txt`): the operators of a graph, and the operators that are never dumped.

GE writes a graph as protobuf text (ModelDef) before and after each pass of its compiler. `*_Build.txt` is the graph as
it is executed. A training program has several graphs: for initialisation, for each `session.run` and so on. The one
with the training step is called the computational graph. Files can have hundreds of megabytes, so operators are read
one after the other.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump, DumpNotFound, ReadError
from ascend_dump.native.cann._graph_text import GraphText, Node, OutputOrigin, escape
from ascend_dump.native.cann.names import sanitize
from ascend_dump.storage import located
from ascend_dump.storage.files import NotRegularFile, open_descriptor, walked

__all__ = [
    "NoDump",
    "Node",
    "OutputOrigin",
    "build_graphs",
    "escape",
    "find_computational",
    "find_model_folders",
    "graph_name",
    "read_graph",
    "why_no_dump",
]

_Path = Union[str, "os.PathLike[str]"]

_BUILD_SUFFIX = "_Build.txt"
#: A text that only the computational graph contains: the operator of the data pipeline.
_PIPELINE = b"Iterator"


class NoDump(NamedTuple):
    """The reason why an operator is not dumped. certain: False if it depends on where GE runs the operator."""

    reason: str
    certain: bool = True


def _reasons() -> dict[str, NoDump]:
    """Return the reasons by operator type.

    The types are listed in GE's documents, or GE's local engine executes them without a task for the device.
    """
    groups = {
        "GE evaluates the condition itself, only operators inside the branches run on the device": (
            "If _If StatelessIf Case StatelessCase While _While StatelessWhile For"
        ),
        "it only brings data into the graph; its values are the inputs of the operators that read it": (
            "Data RefData AippData QueueData UnfedData Const Constant ConstPlaceHolder FileConstant Variable"
        ),
        "it is a data-flow operator that runs on the host": "Stack StackPush StackPop StackClose",
        "it calls a subgraph, only operators inside that run on the device": (
            "PartitionedCall StatefulPartitionedCall"
        ),
        "GE creates no task for it, its output is the same memory as its input": (
            "NoOp ControlTrigger Merge Reshape Bitcast PhonyConcat PhonySplit Flatten FlattenV2 ExpandDims "
            "ReFormat Squeeze SqueezeV2 SqueezeV3 Unsqueeze UnsqueezeV2 UnsqueezeV3"
        ),
    }
    by_type = {name: NoDump(reason) for reason, names in groups.items() for name in names.split()}
    on_host = NoDump("if GE runs it on the host as a data-flow operator, it is not dumped", certain=False)
    output = NoDump("it usually has no task; its values are the outputs of the operators before it", certain=False)
    return {**by_type, "Concat": on_host, "Split": on_host, "NetOutput": output}


_NEVER_DUMPED = _reasons()


def why_no_dump(node: Node) -> Optional[NoDump]:
    """Return the reason why an operator is never dumped; None if it can be dumped.

    An operator in a branch that is not executed is not dumped either, but the graph does not show that.
    """
    if node.dumped_without_task:
        return None
    if node.no_task:
        return NoDump("GE marked it `_no_task`: no task for it is sent to the device")
    return _NEVER_DUMPED.get(node.type)


def read_graph(path: _Path) -> Iterator[Node]:
    """Yield the operators of a graph file in their order in the file.

    Raises DumpNotFound, and CorruptDump if the text is not a graph or is cut off. Operators before the damage are
    yielded first.
    """
    with _mapped(path) as data:
        yield from GraphText(path, data).nodes()


def graph_name(path: _Path) -> str:
    """Return the name of the first graph in a file, which is also the name of a directory in the dump.

    The file is parsed only up to this name. Raises as `read_graph`.
    """
    with _mapped(path) as data:
        parser = GraphText(path, data)
        for _ in parser.nodes(until_named=True):
            break
        return parser.graph


def build_graphs(directory: _Path) -> list[Path]:
    """Return the `ge_proto_*_Build.txt` files below a directory, in the order in which they were written."""
    graphs = []
    for parent, names in walked(located(directory)):
        graphs += [parent / name for name in names if name.startswith("ge_proto_") and name.endswith(_BUILD_SUFFIX)]
    return sorted(graphs, key=lambda path: (path.parent, _number(path.name), path.name))


def find_computational(paths: Iterable[_Path], names: Iterable[str] = ()) -> list[Path]:
    """Return the computational graphs among several, by the two methods of the TensorFlow document on dump data.

    names: names of operators in the user's model. Return the graphs whose text contains all of them; without names, the
    graphs whose text contains `Iterator`, the data pipeline of training. Raises DumpNotFound, ReadError.
    """
    texts = [escape(name) for name in names] or [_PIPELINE]
    return [located(path) for path in paths if _contains_all(path, texts)]


def find_model_folders(root: _Path, name: str) -> list[Path]:
    """Return the directories below `root` that contain the dump of the graph with this name."""
    folder = sanitize(name)
    folders = []
    for parent, directories, _ in os.walk(root):
        if folder in directories:
            folders.append(Path(parent, folder))
            directories.remove(folder)
    return sorted(folders)


def _contains_all(path: _Path, texts: list[bytes]) -> bool:
    try:
        with _mapped(path) as data:
            return all(data.find(text) >= 0 for text in texts)
    except CorruptDump:  # an empty file: GE was stopped before it wrote this graph
        return False


def _number(name: str) -> int:
    digits = name[len("ge_proto_") :].partition("_")[0]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else 0


def _mapped(path: _Path) -> mmap.mmap:
    try:
        descriptor = open_descriptor(path)
    except FileNotFoundError:
        raise DumpNotFound("no such file", path=path, hint="dump graphs with DUMP_GE_GRAPH=2") from None
    except NotRegularFile:
        raise ReadError("not a regular file", path=path, hint="give a ge_proto_*.txt file") from None
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from None
    try:
        if not os.fstat(descriptor).st_size:
            raise CorruptDump("an empty file is not a graph", path=path, offset=0)
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        # A part of the file that was never written to disk reads as zero bytes. Only the text before it is used.
        end = data.find(b"\0")
        if end < 0:
            return data
        data.close()
        if not end:
            raise CorruptDump("it begins with a zero byte, so it is not a text", path=path, offset=0)
        return mmap.mmap(descriptor, end, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ReadError(f"cannot be mapped: {error.strerror}", path=path) from None
    finally:
        os.close(descriptor)
