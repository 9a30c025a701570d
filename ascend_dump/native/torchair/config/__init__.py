"""The dump options of torchair's CompilerConfig (`config.dump_config`): build and check them."""

from __future__ import annotations

from ascend_dump.native.torchair.config.build import build_options
from ascend_dump.native.torchair.config.check import check_file, check_options

__all__ = ["build_options", "check_file", "check_options"]
