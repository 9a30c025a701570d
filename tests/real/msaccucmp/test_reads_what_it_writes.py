"""What the real converter writes, in all its types, is read as a dump."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import places
import pytest

import ascend_dump

pytestmark = pytest.mark.skipif(find_spec("msprobe") is None, reason="mindstudio-probe is not installed")

DATA = places.DATA / "cann"
RUNNER = Path(__file__).with_name("run_converter.py")


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("npy", None), ("bin", None), ("msnpy", None), ("npy", "NCHW"), ("bin", "NCHW"), ("msnpy", "NCHW")],
)
def test_every_file_of_every_type_is_read(kind: str, layout: str, tmp_path: Path) -> None:
    # It stops at float8 in files of type bin.
    files = [file for file in sorted((DATA / "in").iterdir()) if kind != "bin" or "e5m2" not in file.name]
    files = [file for file in files if kind != "bin" or "e4m3" not in file.name]
    out = tmp_path / "out"
    jobs = [{"file": str(file), "out": str(out), "type": kind, "format": layout} for file in files]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    done = subprocess.run(
        [sys.executable, RUNNER, tmp_path / "jobs.json"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    records = list(ascend_dump.open(out))
    assert {record.path for record in records} == set(out.iterdir())
    assert len(records) >= (4 if layout else 30)
    for record in records:
        value = record.numpy()
        if record.path.suffix == ".npy":
            np.testing.assert_array_equal(value, np.load(record.path))
        else:
            assert value.nbytes == record.path.stat().st_size
