"""Outputs that MindSpore's kernels leave unwritten: two runs that differ there alone are the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import PROGRAMS, run_command

import ascend_dump


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills fresh memory as glibc does")
def test_a_batch_norm_in_inference_is_the_same_in_two_runs(tmp_path: Path) -> None:
    for name, pattern in (("reference", 85), ("actual", 170)):
        run_command(
            *(sys.executable, PROGRAMS / "same_networks_dumps.py", "conv", tmp_path / name),
            cwd=tmp_path,
            MALLOC_PERTURB_=pattern,
        )
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert found.verdict == "noise", found.worst_pairs()
    assert not found.origins
    undefined = {(one.record.op_type, one.record.index) for one in found.pairs if one.undefined}
    assert undefined == {("BatchNorm", index) for index in (1, 2, 3, 4)}
