"""Outputs that TensorFlow's kernels leave unwritten: two runs that differ there alone are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascend_dump

PROGRAM = Path(__file__).parent / "undefined_program.py"


def run(path: Path, pattern: int) -> Path:
    """The program, where fresh memory is full of one byte."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path)],
        env={**os.environ, "MALLOC_PERTURB_": str(pattern)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills fresh memory as glibc does")
def test_two_runs_differ_where_the_rules_say_and_nowhere_else(tmp_path: Path) -> None:
    found = ascend_dump.compare(run(tmp_path / "actual", 170), run(tmp_path / "reference", 85))
    assert found.verdict == "noise", found.worst_pairs()
    assert not found.origins
    undefined = {(one.record.op_name, one.record.index) for one in found.pairs if one.undefined}
    norms = {(name, index) for name in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3") for index in (3, 4)}
    assert undefined == norms | {("Svd", 1), ("Svd", 2), ("SelfAdjointEigV2", 1), ("Eig", 1)}, "those in inference"
