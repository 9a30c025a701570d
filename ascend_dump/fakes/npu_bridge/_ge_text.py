"""Write a graph as text, as GE does: `ge_proto_<n>_graph_<id>_Build.txt`.

GE can write a graph after each stage of its compilation; the last stage is Build. The stage Build is always written, in
full, if a dump path is set. The fake writes no other stages and no ONNX files, but `<n>` counts all stages, as in GE.
Sources: GE graph_metadef graph_utils.cc (names, directories, DUMP_GE_GRAPH, DUMP_GRAPH_LEVEL, DUMP_GRAPH_FORMAT) and
graph_manager.cc.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_dump.adapter import open_private
from ascend_dump.native.cann.graph import escape

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.npu_bridge.plan import Planned, Spec

__all__ = ["write_graph"]

#: Number of stages that GE writes up to Build, by which the number `<n>` of a file rises from graph to graph. The real
#: number depends on the version of GE; this is an example.
_STAGES = 17
#: Name of a type -> GE's name, for types whose GE name is not "DT_" and the name in capitals.
_DTYPES = {
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "bfloat16": "DT_BF16",
}
_BUILD = "Build"


def write_graph(npu: Npu, name: str, number: int, ops: Sequence[Planned], *, dump_path: str) -> None:
    """Write the text of a graph, if a dump path is set or the environment requests it.

    The environment also names the directory. number: number of the graph in its process, from 1.

    (assumption ge.graph_text)
    """
    env = npu.environ
    if not dump_path and not _is_requested(env):
        return
    directory = os.path.join(npu.working_directory, _directory(env, npu.device_id))
    file = Path(directory, f"ge_proto_{number * _STAGES:08d}_graph_{number}_{_BUILD}.txt")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with open(open_private(file, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as opened:
            opened.writelines(_text(name, ops))
    except OSError as error:
        # As in GE (GraphUtils::DumpGEGraph), a failure is no error: the graph runs.
        npu.log.append(f"cannot write the graph {file}: {error}")


def _is_requested(env: Mapping[str, str]) -> bool:
    if env.get("DUMP_GE_GRAPH", "") not in ("1", "2", "3"):
        return False
    formats = env.get("DUMP_GRAPH_FORMAT", "ge_proto|onnx").split("|")
    level = env.get("DUMP_GRAPH_LEVEL", "2")
    # Levels 1 to 3 include the stage Build, level 4 does not. Any other value is a list of parts of
    # names of stages, separated by `|`.
    stage = level in ("1", "2", "3") or (level != "4" and any(part and part in _BUILD for part in level.split("|")))
    return "ge_proto" in formats and stage


def _directory(env: Mapping[str, str], device: int) -> str:
    pid = os.getpid()
    if env.get("NPU_COLLECT_PATH"):
        return os.path.join(env["NPU_COLLECT_PATH"], "extra-info", "graph", f"{pid}_{device}")
    if env.get("DUMP_GRAPH_PATH"):
        return os.path.join(env["DUMP_GRAPH_PATH"], f"pid_{pid}_deviceid_{device}")
    return env.get("ASCEND_WORK_PATH") or "."


def _text(name: str, ops: Iterable[Planned]) -> Iterable[str]:
    yield f'graph {{\n  name: "{_plain(name)}"\n'
    for number, op in enumerate(ops):
        yield f'  op {{\n    name: "{_plain(op.name)}"\n    type: "{op.type}"\n'
        for spec in op.inputs:
            yield f'    input: "{_plain(spec.name)}"\n'
        if op.type == "FrameworkOp":
            yield _attribute("original_type", f's: "{op.original_type}"')
            yield _attribute("_iterator_name", 's: "Iterator"') if op.original_type == "IteratorGetNext" else ""
        yield _attribute("_no_task", "b: true") if op.no_task else ""
        names = f'list {{\n          s: "{_plain(op.name)}"\n          val_type: VT_LIST_STRING\n        }}'
        yield _attribute("_datadump_original_op_names", names)
        yield "    has_out_attr: true\n" + (f"    id: {number}\n" if number else "")
        for kind, specs in (("input_desc", op.inputs), ("output_desc", op.outputs)):
            for spec in specs:
                yield _description(kind, spec)
        yield "  }\n"
    yield "}\n"


def _attribute(key: str, value: str) -> str:
    return f'    attr {{\n      key: "{key}"\n      value {{\n        {value}\n      }}\n    }}\n'


def _description(kind: str, spec: Spec) -> str:
    dtype = _DTYPES.get(spec.dtype, f"DT_{spec.dtype.upper()}")
    dims = "".join(f"        dim: {dim}\n" for dim in ((-2,) if spec.shape is None else spec.shape))
    return f'    {kind} {{\n      dtype: {dtype}\n      shape {{\n{dims}      }}\n      layout: "ND"\n    }}\n'


def _plain(name: str) -> str:
    return escape(name).decode("ascii")
