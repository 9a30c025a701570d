"""Check the dump JSON of a capture, and write it to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ascend_dump.common.paths import open_private
from ascend_dump.common.problem import Problem
from ascend_dump.errors import WriteError
from ascend_dump.native.cann.config.check import check_acl_config
from ascend_dump.native.cann.config.situation import Situation

__all__ = ["problems_of_config", "save_config"]


def problems_of_config(config: dict[str, Any], planned: Path, situation: Situation) -> list[Problem]:
    """Return the problems of a capture's dump JSON.

    planned: its dump path, which need not exist yet, because the capture creates it before CANN reads the JSON
    """
    return check_acl_config(json.dumps(config).encode(), situation=situation._replace(planned=os.fspath(planned)))


def save_config(file: Path, config: dict[str, Any]) -> None:
    """Write a dump JSON, readable by its owner only. Raises WriteError."""
    try:
        with open(open_private(file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "w", encoding="utf-8") as opened:
            opened.write(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise WriteError(f"{file} cannot be written: {error.strerror}", hint="free some space") from error
