"""Installing ascend_dump beside MindSpore 2.10 leaves what it pins as it is."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from interpreters import planned_installation


def test_nothing_that_is_installed_is_moved(tmp_path: Path) -> None:
    assert version("mindspore").startswith("2.10")
    assert version("numpy").startswith("1.26")
    missing = ["ml-dtypes", "msgspec"]
    assert set(planned_installation(tmp_path, missing)) == {"ascend-dump", *missing}
