"""The keys of a dump JSON: in which block each stands, whether MindSpore asks for it, and what it is when left out.

Sources: the document "Using Dump in the Graph Mode" and `dump_json_parser.cc` of MindSpore 2.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["BLOCKS", "COMMON", "DEFAULTS", "E2E", "KEYS", "REQUIRED", "Key"]

COMMON, E2E = "common_dump_settings", "e2e_dump_settings"


class Key(NamedTuple):
    """required: MindSpore refuses a file without it. default: what MindSpore takes when it is left out."""

    block: str
    name: str
    default: Any = None
    required: bool = False


#: In the order in which MindSpore asks whether the required ones are there.
KEYS = (
    Key(COMMON, "dump_mode", 0, required=True),
    Key(COMMON, "net_name", "", required=True),
    Key(COMMON, "iteration", "all", required=True),
    Key(COMMON, "input_output", 0, required=True),
    Key(COMMON, "kernels", (), required=True),
    Key(COMMON, "support_device", (), required=True),
    Key(COMMON, "op_debug_mode", 0),
    Key(COMMON, "path", ""),
    Key(COMMON, "saved_data", "tensor"),
    Key(COMMON, "statistic_category", ("max", "min", "l2norm")),
    Key(COMMON, "overflow_number", 0),
    Key(COMMON, "initial_iteration", 0),
    Key(COMMON, "file_format", "bin"),
    Key(E2E, "enable", False),
    Key(E2E, "trans_flag", True),
    Key(E2E, "stat_calc_mode", "host"),
    Key(E2E, "device_stat_precision_mode", "high"),
    Key(E2E, "sample_mode", 0),
    Key(E2E, "sample_num", 100),
    Key(E2E, "save_kernel_args", False),
)
REQUIRED = tuple(key.name for key in KEYS if key.required)
DEFAULTS: Mapping[str, Any] = MappingProxyType({key.name: key.default for key in KEYS})
#: Block -> the keys that MindSpore reads there; it ignores others.
BLOCKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {block: frozenset(key.name for key in KEYS if key.block == block) for block in (COMMON, E2E)}
)
