"""Parse and build file names and directory levels of MindSpore's Dump, without accessing files.

    {path}/rank_{R}/{net_name}/{graph_id}/{iteration}/{op_type}.{op_name}.{task}.{stream}.{us}.{io}.{index}.{format}[.{dtype}].npy
    {path}/rank_{R}/{net_name}/{graph_id}/constants/Parameter.data-{id}.0.0.{us}.output.0.DefaultFormat[.{dtype}].npy
    {path}/rank_{R}/graphs/ms_output_trace_code_graph_{graph_id}.{ir,pb}
    {path}/rank_{R}/execution_order/ms_execution_order_graph_{graph_id}.csv

MindSpore 2.10 writes the `dtype`, but its documentation for CPU and GPU has names without it. The capitalisation of
`dtype` varies (`Float32`, `float16`). In `op_name`, `_` replaces the slashes of the full name; only the graph files
have the full name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

__all__ = [
    "AUXILIARY",
    "CONSTANTS",
    "PARAMETER",
    "STEP_DIRECTORY",
    "MindsporeLevels",
    "NpyName",
    "build_name",
    "holds_record",
    "parse_levels",
    "parse_name",
    "written",
]

#: The operator type in the names of files with weights, optimizer states and inputs of the graph.
PARAMETER = "Parameter"
CONSTANTS = "constants"
#: Names of files without tensors: graphs, execution orders, and copies of the configuration.
AUXILIARY = re.compile(
    r"ms_output_trace_code_graph_\d+\.(?:ir|pb)|ms_(?:global_)?execution_order_graph_\d+\.csv|acl_dump_\d+\.json",
    re.ASCII,
)
#: The path of an iteration's directory, relative to the dump path. Group 1: the iteration.
STEP_DIRECTORY = re.compile(r"rank_\d{1,9}/[^/]+/\d{1,18}/(\d{1,18})", re.ASCII)
#: The directory with the settings of a dump, beside the directories of graphs.
METADATA_DIRECTORY = ".dump_metadata"
#: The file that maps shortened file names to the original ones; written by CANN and by jit_level O2.
_MAPPING_FILE = "mapping.csv"
_OVERFLOW_JSON = re.compile(r"opdebug\.node_opdebug\..*\.json", re.ASCII | re.IGNORECASE)

_REPLACED_CHARACTERS = str.maketrans(dict.fromkeys("/. \\", "_"))
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_RANK = re.compile(r"rank_(\d{1,9})", re.ASCII)
_RUN = re.compile(r"\d{14}", re.ASCII)


class NpyName(NamedTuple):
    """The fields of a file name.

    timestamp  microseconds since the epoch
    position   the index among the inputs or outputs
    dtype      in MindSpore's spelling; None if the name lacks it
    """

    op_type: str
    op_name: str
    task_id: int
    stream_id: int
    timestamp: int
    io: str
    position: int
    format: str
    dtype: Optional[str] = None


class MindsporeLevels(NamedTuple):
    """The fields of the directory levels above a file. A field without a level is None.

    run        a level `YYYYmmddHHMMSS` above `rank_{R}`
    constants  True for the directory of constants
    """

    rank: Optional[int] = None
    net: Optional[str] = None
    graph: Optional[int] = None
    iteration: Optional[int] = None
    run: Optional[str] = None
    constants: bool = False
    #: The number of levels from the file up to `rank_{R}`; 0 if there is none.
    depth: int = 0


def parse_name(name: str) -> Optional[NpyName]:
    """Return the fields of a file name; None if MindSpore does not write such names.

    The name is parsed from the right, because operator names may contain dots.
    """
    if not name.endswith(".npy"):
        return None
    fields = name[:-4].split(".")
    for tail in (4, 3):
        if len(fields) >= tail + 5 and fields[-tail] in ("input", "output"):
            break
    else:
        return None
    io, index, layout = fields[-tail], fields[-tail + 1], fields[-tail + 2]
    dtype = fields[-1] if tail == 4 else None
    task, stream, stamp = fields[-tail - 3 : -tail]
    if not all(_DIGITS.fullmatch(number) for number in (index, task, stream, stamp)):
        return None
    if not _WORD.fullmatch(layout) or (dtype is not None and not _WORD.fullmatch(dtype)):
        return None
    op_type, op_name = fields[0], ".".join(fields[1 : -tail - 3])
    if not op_type or not op_name:
        return None
    return NpyName(op_type, op_name, int(task), int(stream), int(stamp), io, int(index), layout, dtype)


def build_name(name: NpyName) -> str:
    """Return the file name with these fields."""
    fields = [str(part) for part in name if part is not None]
    return ".".join([*fields, "npy"])


def holds_record(name: str) -> bool:
    """Return True if a file that MindSpore wrote may contain a tensor, statistics or an overflow record.

    name: the file name. Names of data files have no common form: files in CANN's format (`file_format` bin, jit_level
    O2) have no suffix, and long names are replaced by numbers. So the result is True for all names except those of
    graphs, copies of the configuration, arguments of operators, and `mapping.csv`.
    """
    if AUXILIARY.fullmatch(name) or name == _MAPPING_FILE:
        return False
    return not name.endswith(".json") or _OVERFLOW_JSON.fullmatch(name) is not None


def written(full_name: str) -> str:
    """Return the form of a full name in file names: slashes, dots, blanks and backslashes become `_`."""
    return full_name.translate(_REPLACED_CHARACTERS)


def parse_levels(parts: Sequence[str]) -> MindsporeLevels:
    """Return the fields of the levels above a file. parts: the names of the directories, outermost first."""
    for position in range(len(parts) - 3, -1, -1):
        match = _RANK.fullmatch(parts[position])
        graph = parts[position + 2] if match else ""
        if match is None or not _DIGITS.fullmatch(graph):
            continue
        below = parts[position + 3 :]
        iteration = int(below[0]) if below and _DIGITS.fullmatch(below[0]) else None
        # Below the graph only an iteration and `constants` are allowed.
        if len(below) != len([level for level in below if level == CONSTANTS]) + (iteration is not None):
            continue
        run = next((part for part in reversed(parts[:position]) if _RUN.fullmatch(part)), None)
        return MindsporeLevels(
            int(match[1]), parts[position + 1], int(graph), iteration, run, CONSTANTS in below, len(parts) - position
        )
    return MindsporeLevels()
