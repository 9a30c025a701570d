"""The files and lines of the dump format on disk, defined once for its writer and its reader.

    {path}/worldsize{N}_global_rank{R}/{time}/manifest.json
    {path}/worldsize{N}_global_rank{R}/{time}/{device}/{model}/{model_id}/{step}/
        tensors-00000.safetensors   a shard: tensors of the step. A tensor that an earlier step has stored with the same
                                    bytes is not stored again
        index.jsonl                 one Line per record, in the order in which the operators ran. A large one becomes
                                    index.jsonl.gz once the step is complete (`_index_files`)
        statistic.csv               only if statistics were requested
        removed.jsonl               instead of index.jsonl, if the step was removed (`keep=`). Then only those shards
                                    are left that lines of newer steps refer to

A line is written after the bytes that it refers to, and is complete once its newline is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, NamedTuple, Optional, Union

import msgspec
from msgspec import Meta

from ascend_dump.common.paths import MANIFEST
from ascend_dump.dump_format._ranks import CollectiveCall, Placement
from ascend_dump.statistics import STATISTIC_NAMES, TABLE, Statistic

__all__ = [
    "LAST_TIME",
    "MANIFEST",
    "PADDING",
    "REMOVED",
    "SAFETENSORS",
    "SHARD",
    "STATISTIC",
    "SYMPTOM",
    "Line",
    "Native",
    "csv_header",
    "encodable",
    "shard_name",
    "stored_statistics",
]

STATISTIC = "statistic.csv"
#: Prefix of the type of records that belong to no operator: tensors that the user sees, such as a loss of NaN.
SYMPTOM = "ascend_dump::"
#: The index of a removed step. The index is renamed to this name, because renaming is atomic.
REMOVED = "removed.jsonl"
#: The path of a shard in a line, relative to the directory of the steps: step and file name.
SHARD = re.compile(r"(\d{1,18})/(tensors-\d{5,18}\.safetensors)", re.ASCII)
#: Prefix of the names of entries in a shard that fill gaps between tensors.
PADDING = "__padding__"


class Native(NamedTuple):
    """A type of safetensors: its name in the format, and the bytes of an element."""

    name: str
    itemsize: int


#: Types of safetensors by the names of numpy and ml_dtypes. Tensors of other types are stored as U8.
SAFETENSORS = {
    "bool": Native("BOOL", 1),
    "uint8": Native("U8", 1),
    "int8": Native("I8", 1),
    "uint16": Native("U16", 2),
    "int16": Native("I16", 2),
    "float16": Native("F16", 2),
    "bfloat16": Native("BF16", 2),
    "uint32": Native("U32", 4),
    "int32": Native("I32", 4),
    "float32": Native("F32", 4),
    "uint64": Native("U64", 8),
    "int64": Native("I64", 8),
    "float64": Native("F64", 8),
    "float8_e4m3fn": Native("F8_E4M3", 1),
    "float8_e5m2": Native("F8_E5M2", 1),
}

_CSV_COLUMNS = "Op Type,Op Name,Phase,Timestamp,IO,Slot,Data Size,Data Type,Shape,Count"

Number = Union[int, float, str, None]
# Decoding refuses lines with numbers outside of these limits.
_Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: The last microsecond of the year 9999; no calendar goes further.
LAST_TIME = 253_402_300_799_999_999
_Micros = Annotated[int, Meta(ge=-62_135_596_800_000_000, le=LAST_TIME)]  # from the year 1 on
_Sizes = Annotated[tuple[_Size, ...], Meta(max_length=64)]
_Strides = Annotated[tuple[_Int, ...], Meta(max_length=64)]


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """A record. Strides are in elements; empty fields are left out of the JSON.

    seq        position of the operator in the step
    time       microseconds since the epoch
    storage, address, storage_nbytes, storage_offset, stride, version
               the tensor in the program's memory: number of its storage in the step, address and size of the storage,
               the view of the storage, and the framework's version counter of the tensor
    shard, offset  the file with the tensor, and the byte position of element 0 in it; "" if the tensor is not stored
    blob       [position in the shard, size] of the byte range that `hash` (xxh3-128) covers; the tensor is in it
    stored_stride  strides in the shard, if they differ from `stride`
    stats      values of `Statistics` in its order, see `stored_statistics`; NaN and Inf are texts
    unmeasured the reason why there are no statistics although they were requested
    skipped    the reason why the tensor is not stored
    origin     True for a non-finite output whose operator had finite inputs
    argument   for an output: its name in the operator's schema (`indices`). For an output that is not returned: the
               argument that the operator wrote to (`exp_avgs[3]`)
    parameter  as `Record.parameter`. For an operator outside of all modules: the parameter `fc.weight`, its gradient
               `fc.weight.grad`, or a state of the optimizer `exp_avg of fc.weight`. For an operator of a module: the
               parameter, only in its first record of a step. For the update of a parameter (`fc/update_0`): the same
               names, and `change of fc.weight`
    requires_grad  for an input: True if it is a leaf of autograd's graph and requires a gradient, as parameters do
    call       the arguments of the operator as JSON (`dump_format.read_call`). Only the operator's first line has
               them, and the first line of its outputs if that is written later
    collective for an operator that several ranks run together: its group and number
    placement  for a tensor that is divided over ranks: the part that this rank has
    """

    seq: _Size
    op_type: str
    op_name: str
    io: str
    index: _Size
    time: _Micros
    dtype: str
    shape: _Sizes
    nbytes: _Size
    device: str = "cpu"
    phase: str = "other"
    module: str = ""
    source: str = ""
    stride: _Strides = ()
    storage_offset: _Size = 0
    storage: _Int = -1
    address: int = 0
    storage_nbytes: _Size = 0
    version: _Int = -1
    offset: _Size = 0
    stored_stride: Optional[_Strides] = None
    skipped: str = ""
    quantization: Optional[dict[str, Any]] = None
    origin: bool = False
    argument: str = ""
    hash: str = ""
    shard: str = ""
    blob: Optional[tuple[_Size, _Size]] = None
    stats: Optional[Annotated[tuple[Number, ...], Meta(min_length=1, max_length=1 + len(TABLE))]] = None
    unmeasured: str = ""
    requires_grad: bool = False
    parameter: str = ""
    call: msgspec.Raw = msgspec.Raw()
    collective: Optional[CollectiveCall] = None
    placement: Optional[Placement] = None


def stored_statistics(names: Collection[str]) -> tuple[Statistic, ...]:
    """Return the statistics that `Line.stats` contains after the count, in order, if `names` are requested.

    These are all statistics that are recorded by default, and the optional ones up to the last requested one.
    """
    last = max((TABLE.index(entry) for entry in TABLE if entry.name in names), default=0)
    return TABLE[: max(len(STATISTIC_NAMES), last + 1)]


def csv_header(names: Collection[str]) -> str:
    """Return the first line of statistic.csv if these statistics are requested."""
    return ",".join((_CSV_COLUMNS, *(entry.csv for entry in stored_statistics(names))))


def shard_name(step: int, number: int) -> str:
    return f"{step}/tensors-{number:05d}.safetensors"


def encodable(text: str) -> str:
    """Return the text with escapes instead of characters that UTF-8 lacks: file names may have undecodable bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
