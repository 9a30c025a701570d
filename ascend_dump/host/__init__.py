"""The host dialect on disk, shared by its writer and its reader."""

from __future__ import annotations

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
    "MANIFEST",
    "META",
    "NO_VALUES",
    "PADDING",
    "REMOVED",
    "SAFETENSORS",
    "SHARD",
    "STATISTIC",
    "UNINITIALISED",
    "UNWAITED",
    "ZERO",
    "Line",
    "Native",
    "encodable",
    "has_values",
    "numpy_dtype",
    "shard_name",
]
