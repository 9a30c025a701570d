"""CANN's dump configuration: the dump JSON and GE's session options, built, parsed and checked."""

from __future__ import annotations

from ascend_dump.native.cann.config._dump_path import is_ip_path
from ascend_dump.native.cann.config.check import check_acl_config, check_ge_file
from ascend_dump.native.cann.config.ge_options import check_ge_options
from ascend_dump.native.cann.config.silent import SILENT, SILENT_OPTIONS
from ascend_dump.native.cann.config.situation import Situation

__all__ = [
    "SILENT",
    "SILENT_OPTIONS",
    "Situation",
    "check_acl_config",
    "check_ge_file",
    "check_ge_options",
    "is_ip_path",
]
