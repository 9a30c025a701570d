"""The problems that an adapter's check finds, for a run directory as a capture plans it."""

from __future__ import annotations

from typing import Any

from ascend_dump.adapter import DumpRequest, Problem, RunDirectory, current_rank, load

__all__ = ["findings"]


def findings(framework: str, request: DumpRequest, target: Any) -> list[Problem]:
    return load(framework).check(request, target, RunDirectory.planned(request.path, current_rank()))
