"""The keys of a dump JSON, with their defaults and possible values.

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
    """A key of a dump JSON.

    block     the object that contains the key, COMMON or E2E
    default   the value that MindSpore uses if the key is missing
    required  True if MindSpore refuses a file without the key
    """

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
#: The keys that MindSpore reads in each block; it ignores all others.
BLOCKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {block: frozenset(key.name for key in KEYS if key.block == block) for block in (COMMON, E2E)}
)

# The following tables have the values of keys, for building and for reading a file.

#: MindSpore's values of `input_output` and `saved_data`, by the values of `mode` and `data` in a request.
MODES: Mapping[str, int] = MappingProxyType({"all": 0, "input": 1, "output": 2})
DATA: Mapping[str, str] = MappingProxyType({"stats": "statistic", "tensor": "tensor", "full": "full"})
#: MindSpore's values of `op_debug_mode` by the scene of a request. The values 1 and 2 have the effect of 3.
DEBUG_MODES: Mapping[Optional[str], int] = MappingProxyType({None: 0, "overflow": 3, "exception": 4})
#: MindSpore's names of statistics in `statistic_category`, by the names in a request.
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
#: The values of `statistic_category` that the host can compute. `DEVICE_STATISTICS` has those that the device computes.
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
#: The values of keys that allow only a few words, in the order of MindSpore's messages.
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "saved_data": tuple(DATA.values()),
        "stat_calc_mode": ("host", "device"),
        "device_stat_precision_mode": ("high", "low"),
        "file_format": ("npy", "bin"),
    }
)
