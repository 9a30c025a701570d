"""The keys of a dump JSON: in which block each stands, whether MindSpore asks for it, and what it is when left out.

Sources: the document "Using Dump in the Graph Mode" and `dump_json_parser.cc` of MindSpore 2.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["BLOCKS", "COMMON", "DEFAULTS", "E2E", "KEYS", "REQUIRED", "DumpJsonKey"]

COMMON, E2E = "common_dump_settings", "e2e_dump_settings"


class DumpJsonKey(NamedTuple):
    """required: MindSpore refuses a file without it. default: what MindSpore takes when it is left out."""

    block: str
    name: str
    default: Any = None
    required: bool = False


#: In the order in which MindSpore asks whether the required ones are there.
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
