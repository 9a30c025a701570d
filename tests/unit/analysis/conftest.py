"""Mark the tests that compare programs of PyTorch: no version of Python changes what the analysis finds in dumps."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        runs_programs = hasattr(getattr(item, "module", None), "torch")
        if runs_programs and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.thorough)
