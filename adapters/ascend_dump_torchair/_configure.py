"""Set the dump options of a config permanently."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ascend_dump import ConfigError
from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, current_rank, make_private_directory
from ascend_dump_torchair._check import check
from ascend_dump_torchair._config import is_config
from ascend_dump_torchair._session import fill
from ascend_dump_torchair._settings import SettingsPlan

__all__ = ["configure"]


def configure(config: Any, request: DumpRequest) -> list[Problem]:
    """Set the dump options of a config permanently, as described in `ascend_dump_torchair.configure`."""
    if not is_config(config):
        raise ConfigError(
            f"a {type(config).__name__} is no torchair.CompilerConfig", hint="give torchair.CompilerConfig()"
        )
    root = Path(os.path.abspath(request.path))
    run = RunDirectory(root, current_rank())
    plan = SettingsPlan(request, run, root / f"torchair-{os.getpid()}.json")
    problems = check(request, config, run, plan)
    refused = [problem for problem in problems if problem.severity == "error"]
    if refused:
        text = "\n".join(str(problem) for problem in refused)
        raise ConfigError(text, hint="nothing was set; see the hints above", code=refused[0].code)
    make_private_directory(root)
    fill(plan, config)
    return problems
