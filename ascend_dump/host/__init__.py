"""The host dialect on disk, shared by its writer and its reader."""

from __future__ import annotations

from ascend_dump.host._call import (
    KINDS_OF_VALUES,
    MOST_KEPT,
    SCALARS,
    Arguments,
    Cut,
    GeneratorState,
    Named,
    TensorOf,
    cut_text,
    plain_text,
    read_call,
    text_of,
)
from ascend_dump.host._dtypes import has_values, numpy_dtype
from ascend_dump.host._layout import (
    CSV_HEADER,
    INDEX,
    MANIFEST,
    PADDING,
    REMOVED,
    SAFETENSORS,
    SHARD,
    STATISTIC,
    Line,
    Native,
    encodable,
    shard_name,
)
from ascend_dump.host._reasons import FREED, META, NO_VALUES, UNINITIALISED, UNWAITED, ZERO

__all__ = [
    "CSV_HEADER",
    "FREED",
    "INDEX",
    "KINDS_OF_VALUES",
    "MANIFEST",
    "META",
    "MOST_KEPT",
    "NO_VALUES",
    "PADDING",
    "REMOVED",
    "SAFETENSORS",
    "SCALARS",
    "SHARD",
    "STATISTIC",
    "UNINITIALISED",
    "UNWAITED",
    "ZERO",
    "Arguments",
    "Cut",
    "GeneratorState",
    "Line",
    "Named",
    "Native",
    "TensorOf",
    "cut_text",
    "encodable",
    "has_values",
    "numpy_dtype",
    "plain_text",
    "read_call",
    "shard_name",
    "text_of",
]
