"""The keys of a dump JSON, their defaults, and the names of their values, in one table.

Sources: the document "Using Dump in the Graph Mode" and `dump_json_parser.cc` of MindSpore 2.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

__all__ = [
    "BLOCKS",
    "COMMON",
    "DATA",
    "DEBUG_MODES",
    "DEFAULTS",
    "DEVICE_STATISTICS",
    "E2E",
    "HOST_STATISTICS",
    "KEYS",
    "MODES",
    "REQUIRED",
    "STATISTICS",
    "WORDS",
    "DumpJsonKey",
]

COMMON, E2E = "common_dump_settings", "e2e_dump_settings"


class DumpJsonKey(NamedTuple):
    """A key of a dump JSON. required: MindSpore refuses a file without it. default: its value if it is left out."""

    block: str
    name: str
    default: Any = None
    required: bool = False


#: The keys, in the order in which MindSpore checks that the required ones are present.
KEYS = (
    DumpJsonKey(COMMON, "dump_mode", 0, required=True),
    DumpJsonKey(COMMON, "net_name", "", required=True),
    DumpJsonKey(COMMON, "iteration", "all", required=True),
    DumpJsonKey(COMMON, "input_output", 0, required=True),
    DumpJsonKey(COMMON, "kernels", (), required=True),
    DumpJsonKey(COMMON, "support_device", (), required=True),
    DumpJsonKey(COMMON, "op_debug_mode", 0),
    DumpJsonKey(COMMON, "path", ""),
    DumpJsonKey(COMMON, "saved_data", "tensor"),
    DumpJsonKey(COMMON, "statistic_category", ("max", "min", "l2norm")),
    DumpJsonKey(COMMON, "overflow_number", 0),
    DumpJsonKey(COMMON, "initial_iteration", 0),
    DumpJsonKey(COMMON, "file_format", "bin"),
    DumpJsonKey(E2E, "enable", False),
    DumpJsonKey(E2E, "trans_flag", True),
    DumpJsonKey(E2E, "stat_calc_mode", "host"),
    DumpJsonKey(E2E, "device_stat_precision_mode", "high"),
    DumpJsonKey(E2E, "sample_mode", 0),
    DumpJsonKey(E2E, "sample_num", 100),
    DumpJsonKey(E2E, "save_kernel_args", False),
)
REQUIRED = tuple(key.name for key in KEYS if key.required)
DEFAULTS: Mapping[str, Any] = MappingProxyType({key.name: key.default for key in KEYS})
#: Block -> the keys that MindSpore reads there; it ignores others.
BLOCKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {block: frozenset(key.name for key in KEYS if key.block == block) for block in (COMMON, E2E)}
)

# The values, for building a file and for reading it.

#: Name of a value in a request -> its name in MindSpore.
MODES: Mapping[str, int] = MappingProxyType({"all": 0, "input": 1, "output": 2})
DATA: Mapping[str, str] = MappingProxyType({"stats": "statistic", "tensor": "tensor", "full": "full"})
#: A scene -> op_debug_mode; 1 and 2 have the effect of 3.
DEBUG_MODES: Mapping[Optional[str], int] = MappingProxyType({None: 0, "overflow": 3, "exception": 4})
STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "max": "max",
        "min": "min",
        "mean": "avg",
        "l2norm": "l2norm",
        "nan": "nan count",
        "posinf": "positive inf count",
        "neginf": "negative inf count",
        "zero": "zero count",
    }
)
#: The values of statistic_category: those computed on the host, and those computed on the device.
HOST_STATISTICS = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
    "hash",
    "hash:sha1",
    "hash:md5",
)
DEVICE_STATISTICS = ("max", "min", "avg", "l2norm")
#: Keys that allow a few words only, in the order of MindSpore's messages.
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "saved_data": tuple(DATA.values()),
        "stat_calc_mode": ("host", "device"),
        "device_stat_precision_mode": ("high", "low"),
        "file_format": ("npy", "bin"),
    }
)
