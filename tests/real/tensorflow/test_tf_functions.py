"""The fake npu_device under functions and eager operators, in a process with TensorFlow 2's own behaviour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("functions_program.py")


def test_functions_are_graphs_of_the_device_and_eager_operators_run_one_by_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["losses"] == found["plain"]
    assert found["steps"] == [0, 2]
    assert found["types"] == ["MatMulV2"]
    assert found["weights"] == [1.0, pytest.approx(1 / 3, abs=1e-6)]
    assert found["gradients"] == 2
    assert found["single"][-1] == "Square"
    # Behind the installation the function runs on and tells nothing.
    assert found["behind"] == 0
    # The data set multiplies under the same name, on the host; a function in a function is part of its graph.
    assert found["result"] == 66.0**2
    assert found["named"] == {"mul": [6.0], "sq": [66.0**2]}
    assert found["eager"] == [1, "Exp", None]
