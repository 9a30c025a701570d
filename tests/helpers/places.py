"""Where the tests find the project and their data, from any folder."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"
