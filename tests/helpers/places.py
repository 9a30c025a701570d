"""The directories of the project and of the tests' data, whatever the working directory is."""

from __future__ import annotations

import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"


def extract(archive: str, directory: Path) -> None:
    """Extract an archive of the tests' data into a directory. Python before 3.9.17 has no filter."""
    with tarfile.open(DATA / archive) as opened:
        opened.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
