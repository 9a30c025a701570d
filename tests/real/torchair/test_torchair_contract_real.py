"""The adapter `torchair` under the real torchair: the contract of adapters, and the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest
from conftest import unpack

import ascend_dump

EXAMPLE = Path(__file__).parents[3] / "examples" / "04_torchair"


@pytest.mark.parametrize("version", ["2.9.0", "2.14.0"])
def test_the_contract_is_kept(version: str, run_program: Callable[..., Path]) -> None:
    run_program("adapter_contract", version)


def test_the_example_runs_unchanged(tmp_path: Path) -> None:
    environment = {**os.environ, "ASCEND_DUMP_FAKE": "torchair_native", "TORCHAIR": str(unpack("2.13.0"))}
    printed = []
    for arguments in ([], ["--capture", "dumps"]):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(EXAMPLE / "train.py"), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        printed.append([line for line in done.stdout.splitlines() if line.startswith("rank 0 step")])
    assert len(printed[0]) == 4
    assert printed[0] == printed[1]
    dump = ascend_dump.open(tmp_path / "dumps")
    assert dump.known_values("step") == {0, 2}
    assert len(dump.known_values("model")) == 2
