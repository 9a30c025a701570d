"""The directories of the project and of the tests' data, whatever the working directory is."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"
