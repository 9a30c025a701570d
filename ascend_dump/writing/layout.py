"""The host dialect on disk, in one place for its writer and its reader.

    {path}/worldsize{N}_global_rank{R}/{time}/manifest.json
    {path}/worldsize{N}_global_rank{R}/{time}/{device}/{model}/{model_id}/{step}/
        tensors-00000.safetensors   each distinct tensor of the run once
        index.jsonl                 one Line per record, in the order the operators ran
        statistic.csv               when statistics were asked for

A line is complete once its newline is written, and is written after the bytes it points at.
"""

from __future__ import annotations

import re
from typing import Any, Optional, Union

import msgspec

__all__ = ["CSV_HEADER", "INDEX", "MANIFEST", "SAFETENSORS_DTYPES", "SHARD", "STATISTIC", "Line", "shard_name"]

MANIFEST = "manifest.json"
INDEX = "index.jsonl"
STATISTIC = "statistic.csv"
#: A shard as lines name it, relative to the directory of the steps.
SHARD = re.compile(r"(\d+)/(tensors-\d{5,}\.safetensors)")

#: numpy and ml_dtypes names that safetensors has natively; the others are stored as U8.
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}

CSV_HEADER = (
    "Op Type,Op Name,Phase,Timestamp,IO,Slot,Data Size,Data Type,Shape,Count,Max Value,Min Value,Avg Value,"
    "L2Norm Value,Nan Count,Positive Inf Count,Negative Inf Count,Zero Count,Positive Zero Count,Negative Zero Count"
)

Number = Union[int, float, str, None]


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """One record. `offset` is the file position of element 0; strides are in elements.

    seq        position of the operator in the step
    time       microseconds since the epoch
    storage, address, storage_nbytes, storage_offset, stride, version
               the tensor's place in memory as the framework saw it: which storage (numbered per
               step), its address and size, and the view on it
    blob       [file offset, bytes] of the stored bytes this record reads from; `hash` is theirs
               (xxh3-128)
    stored_stride  strides in the file, when they differ from `stride`
    stats      values of `Statistics` in its order; NaN and Inf as text
    skipped    why nothing is stored
    origin     the operator turned finite inputs into this non-finite output
    """

    seq: int
    op_type: str
    op_name: str
    io: str
    index: int
    time: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    device: str = "cpu"
    phase: str = "other"
    module: str = ""
    source: str = ""
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    storage: int = -1
    address: int = 0
    storage_nbytes: int = 0
    version: int = -1
    offset: int = 0
    stored_stride: Optional[tuple[int, ...]] = None
    skipped: str = ""
    quantization: Optional[dict[str, Any]] = None
    origin: bool = False
    hash: str = ""
    shard: str = ""
    blob: Optional[tuple[int, int]] = None
    stats: Optional[tuple[Number, ...]] = None


def shard_name(step: int, number: int) -> str:
    return f"{step}/tensors-{number:05d}.safetensors"
